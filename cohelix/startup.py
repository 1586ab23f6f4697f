"""Before any command: whose packages these are, and streams that can be written to."""

from __future__ import annotations

import io
import os
import sys
from importlib.util import find_spec
from pathlib import Path

NAMES = ("harness", "memory", "evals", "policy", "agents", "graphs", "service")
"""Top-level packages of this distribution, besides cohelix itself."""


def shadowed() -> dict[str, str]:
    """Names that resolve to another distribution, with the place they resolve to."""
    home = Path(__file__).resolve().parent.parent
    wrong: dict[str, str] = {}
    for name in NAMES:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parent.parent != home:
            wrong[name] = str(origin) if origin else "nothing"
    return wrong


def shadow_message(wrong: dict[str, str]) -> str:
    """What a person can do about shadowed names."""
    found = "\n".join(f"  import {name} -> {place}" for name, place in sorted(wrong.items()))
    return (
        "another distribution, or a folder you run in, hides packages of cohelix:\n"
        f"{found}\n"
        "expected them beside the installed cohelix package. Do one of: install cohelix alone in a fresh virtual "
        "environment; uninstall the other distribution (openai-agents also installs a package named 'agents'); "
        "run from another folder; unset PYTHONPATH."
    )


def prepare_streams() -> None:
    """Let output end neither in a closed descriptor nor in a letter that the terminal's encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
