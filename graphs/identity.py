"""What makes two runs the same run: resolved config, suite fingerprint, code."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import JsonValue

from graphs.config import RunConfig
from harness.records import Record

SHARED_SCOPE = "shared"
"""Ledger scope of runs of one code version that reuse each other's identical work; no run's name starts so."""

CODE_PACKAGES = ("harness", "memory", "evals", "policy", "agents", "graphs")
"""Packages whose code decides results; the command line and the service do not."""


class RunIdentity(Record):
    """Resuming under a different identity is refused."""

    config: dict[str, JsonValue]
    """The resolved configuration."""
    suite_fingerprint: str
    policy_fingerprint: str
    """Content id of the weights that the run starts from."""
    code_version: str


def ledger_scope(config: RunConfig, run_id: str) -> str:
    """Scope of a run's work: its own, or the home's shared one, which holds no work of other code."""
    return f"{SHARED_SCOPE}-{code_version()}" if config.strategy.share_work else run_id


@cache
def code_version() -> str:
    """Distribution version and a hash over the source and prompt files that decide results."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in CODE_PACKAGES:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in (".py", ".md") and file.is_file():
                digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    try:
        number = version("cohelix")
    except PackageNotFoundError:
        number = "0"
    return f"{number}+{digest.hexdigest()[:12]}"
