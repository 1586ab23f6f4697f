"""Read-only views of a home, as JSON: runs, steps, reports, harness lineage. Imports nothing heavy."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from harness.diff import HarnessDiff, diff_harness, format_diff
from harness.errors import UserError
from memory.errors import NotFound, RunBusy
from memory.records import RunRecord, StepRecord
from memory.store import DATABASE_NAME, Store

View = dict[str, Any]
"""A JSON object."""


def open_existing(home: Path) -> Store:
    """Open a home that has been used before; a view never creates one.

    Raises:
        UserError: there is none.
    """
    if not (home / DATABASE_NAME).exists():
        raise UserError(
            "nothing to show", got=f"no runs in {home}", do="start one with `cohelix run`, or name its --home"
        )
    return Store.open(home)


def list_runs(home: Path) -> list[View]:
    """One line per run, oldest first."""
    with open_existing(home) as store:
        return [_run_line(store, record) for record in store.runs.list()]


def trace_run(home: Path, run_id: str, *, step: int | None = None) -> View:
    """Every executed node in order, with harness diffs; one step in full when ``step`` is given.

    ``identity`` tells what produced it: resolved config, suite and weights fingerprints, code version.

    Raises:
        NotFound: no such run.
        UserError: no such step; the message lists the numbers.
    """
    with open_existing(home) as store:
        record = store.runs.get(run_id)
        steps = store.steps.list(run_id)
        if step is not None:
            numbers = [row.number for row in steps]
            if step not in numbers:
                raise UserError(f"run {run_id} has no step {step}", expected=f"one of {numbers}")
            steps = tuple(row for row in steps if row.number == step)
        return {
            "run": _run_line(store, record),
            "identity": record.identity,
            "steps": [_step_view(store, row) for row in steps],
        }


def training_run(home: Path, run_id: str) -> View:
    """What every training step measured, block after block; the steps of a block that is running are there already.

    Raises:
        NotFound: no such run.
    """
    with open_existing(home) as store:
        record = store.runs.get(run_id)
        blocks: dict[str, list[View]] = {}
        for row in store.metrics.find(run_id):
            step = {"step": row.step, "created_at": row.created_at, "metrics": row.metrics}
            blocks.setdefault(row.block_key, []).append(step)
        return {
            "run": _run_line(store, record),
            "blocks": [{"block_key": key, "steps": steps} for key, steps in blocks.items()],
        }


def report_run(home: Path, run_id: str) -> View:
    """The closing report: accuracies with intervals, decisions, pairs, artefacts, next commands."""
    with open_existing(home) as store:
        record = store.runs.get(run_id)
        summary, where = record.summary or {}, f"--home {shlex.quote(str(home))}"
        return {
            "run": _run_line(store, record),
            "report": summary.get("report"),
            "error": summary.get("error"),
            "amendments": [change.model_dump(mode="json") for change in record.amendments],
            "decisions": [decision.model_dump(mode="json") for decision in store.lineage.decisions(run_id)],
            "pairs": [
                {**pair.model_dump(mode="json"), "pair_id": pair.pair_id} for pair in store.lineage.pairs(run_id)
            ],
            "artefacts": {
                "run": str(store.runs.folder(run_id)),
                "checkpoints": str(store.home / "checkpoints"),
                "store": str(store.home / DATABASE_NAME),
            },
            "next": [
                f"cohelix trace {run_id} {where}",
                f"cohelix harness log --run {run_id} {where}",
            ]
            if record.status == "finished"
            else [f"cohelix resume {run_id} {where}"],
        }


def harness_log(home: Path, run_id: str | None = None) -> list[View]:
    """Harness versions in the order they were stored, with parents and notes."""
    with open_existing(home) as store:
        if run_id is not None:
            store.runs.get(run_id)
        return [version.model_dump(mode="json") for version in store.lineage.harnesses(run_id)]


def harness_show(home: Path, harness_id: str) -> View:
    """One version's whole content."""
    with open_existing(home) as store:
        full = find_harness_id(store, harness_id)
        return {"harness_id": full, **store.lineage.harness(full).model_dump(mode="json")}


def harness_diff(home: Path, before_id: str, after_id: str) -> View:
    """What changed between two versions."""
    with open_existing(home) as store:
        return _diff_view(_diff(store, find_harness_id(store, before_id), find_harness_id(store, after_id)))


def find_harness_id(store: Store, text: str) -> str:
    """The one version whose id is ``text`` or starts with it (``harness-`` may be left out).

    Raises:
        NotFound: none.
        UserError: several; they are listed.
    """
    known = [version.harness_id for version in store.lineage.harnesses()]
    found = [name for name in known if name.startswith(text) or name.removeprefix("harness-").startswith(text)]
    if not found:
        raise NotFound(f"no harness {text!r}; list them with `cohelix harness log`")
    if len(found) > 1 and text not in found:
        raise UserError(f"harness id {text!r} is ambiguous", got=", ".join(found), do="give more of its letters")
    return text if text in found else found[0]


def _run_line(store: Store, record: RunRecord) -> View:
    report = (record.summary or {}).get("report")
    line: View = {
        "run_id": record.run_id,
        "status": _true_status(store, record),
        "strategy": record.strategy,
        "condition": _condition(record),
        "suite": record.suite,
        "seed": record.config.get("seed"),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
    if isinstance(report, dict):
        scores: Any = report["scores"]
        line |= {f"{row['label']}_test": row for row in scores if row["split"] == "test"}
        line["rounds"] = report["rounds"]
    return line


def _true_status(store: Store, record: RunRecord) -> str:
    """``running`` only while a process holds the run; a killed one is ``interrupted``."""
    if record.status != "running":
        return record.status
    try:
        with store.runs.hold(record.run_id):
            return "interrupted"
    except RunBusy:
        return "running"


def _condition(record: RunRecord) -> JsonValue:
    strategy = record.config.get("strategy")
    return strategy.get("condition", record.strategy) if isinstance(strategy, dict) else None


def _step_view(store: Store, step: StepRecord) -> View:
    view: View = step.model_dump(mode="json")
    candidate, incumbent = step.wrote.get("candidate_id"), step.read.get("harness_id")
    if step.node == "propose" and candidate and isinstance(candidate, str) and isinstance(incumbent, str):
        view["harness_diff"] = _diff_view(_diff(store, incumbent, candidate))
    return view


def _diff(store: Store, before_id: str, after_id: str) -> HarnessDiff:
    return diff_harness(store.lineage.harness(before_id), store.lineage.harness(after_id))


def _diff_view(diff: HarnessDiff) -> View:
    return {**diff.model_dump(mode="json"), "text": format_diff(diff)}
