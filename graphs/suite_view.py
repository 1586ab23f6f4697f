"""Read-only views of task suites, as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from evals.config import MapTabConfig
from evals.suites.base import Suite
from evals.suites.maptab_check import validate_maptab
from evals.suites.registry import SUITES, build_suite, suite_names
from graphs.loading import load_suite_config
from harness.errors import UserError
from harness.records import Split, Task
from harness.render import render

View = dict[str, Any]
SPLITS: tuple[Split, ...] = get_args(Split)


def list_suites() -> list[View]:
    """Names and descriptions, built-in ones first."""
    return [
        {"name": name, "description": SUITES[name].description if name in SUITES else "from another distribution"}
        for name in suite_names()
    ]


def suite_view(name: str, overrides: Sequence[str], *, split: str, index: int) -> View:
    """Sizes, strata, seed harness and one rendered task.

    Raises:
        UserError: no such suite, split or task.
    """
    suite = build_suite(load_suite_config(name, overrides))
    harness = suite.seed_harness()
    task = _task(suite, index, split=split)
    return {
        "name": suite.name,
        "family": suite.family,
        "fingerprint": suite.fingerprint,
        "splits": {known: _split_view(suite.tasks(split=known)) for known in SPLITS},
        "seed_harness": {"harness_id": harness.harness_id, **harness.model_dump(mode="json")},
        "plays": [play.model_dump(mode="json") for play in suite.playbook()],
        "task": task.model_dump(mode="json"),
        "prompt": [message.model_dump(mode="json") for message in render(harness, task.inputs)],
    }


def validate_suite(name: str, overrides: Sequence[str]) -> View:
    """Verifier and exact solver over the suite's own gold.

    Files in the MapTab layout are checked for both domains and every variant that is there.
    """
    config = load_suite_config(name, overrides)
    if isinstance(config, MapTabConfig):
        rows = validate_maptab(Path(config.root))
        is_valid = all(row.disagrees == 0 for row in rows)
        return {"suite": name, "is_valid": is_valid, "variants": [row.model_dump(mode="json") for row in rows]}
    report = build_suite(config).validate()
    return {**report.model_dump(mode="json"), "is_valid": report.is_valid}


def _split_view(tasks: Sequence[Task]) -> View:
    strata = Counter(" ".join(f"{key}={value}" for key, value in task.strata.items()) for task in tasks)
    return {"tasks": len(tasks), "strata": dict(sorted(strata.items()))}


def _task(suite: Suite, index: int, *, split: str) -> Task:
    known = [name for name in SPLITS if name == split]
    if not known:
        raise UserError("cannot show a task", got=f"split {split!r}", expected=f"one of {list(SPLITS)}")
    tasks = suite.tasks(split=known[0])
    if not index < len(tasks):
        raise UserError("cannot show a task", got=f"number {index}", expected=f"0..{len(tasks) - 1} in {split}")
    return tasks[index]
