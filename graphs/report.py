"""The closing report of a run, read from its stores and kept as the run's summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from evals.evaluation import Evaluation
from evals.report import CostLine, CurvePoint, Measured, ReportSource, build_report, to_json, to_markdown
from graphs.config import RunConfig
from graphs.recorder import first_of_each
from harness.protocols import WorkLedger
from memory.files import write_atomic, write_json
from memory.records import StepRecord
from memory.store import DATABASE_NAME, Store


def closing_report(
    store: Store, run_id: str, config: RunConfig, ledger: WorkLedger, result: Mapping[str, Any]
) -> dict[str, JsonValue]:
    """Build the report, write it beside the run as markdown and JSON, and return the JSON.

    Args:
        store: the home's store.
        run_id: the run.
        config: its configuration.
        ledger: holds the evaluations.
        result: what the graph's last node left in the ledger.
    """
    steps = store.steps.list(run_id)
    source = ReportSource(
        run_id=run_id,
        strategy=config.strategy.title,
        suite=store.runs.get(run_id).suite,
        seed=config.seed,
        measured=tuple(_measured(ledger, row) for row in result["measured"]),
        decisions=store.lineage.decisions(run_id),
        costs=_costs(steps),
        curve=tuple(_curve(store, run_id, steps)),
        artefacts=artefacts(store, run_id),
        seconds=sum(step.seconds for step in steps),
    )
    report = build_report(source)
    payload = {
        **to_json(report),
        **{name: result[name] for name in ("condition", "rounds", "stop_reason", "first_pair", "final_pair")},
    }
    folder = store.runs.folder(run_id)
    write_atomic(folder / "report.md", to_markdown(report).encode())
    write_json(folder / "report.json", payload)
    return payload


def artefacts(store: Store, run_id: str) -> dict[str, str]:
    """Where things are, by name."""
    return {
        "run": str(store.runs.folder(run_id)),
        "checkpoints": str(store.home / "checkpoints"),
        "store": str(store.home / DATABASE_NAME),
    }


def _measured(ledger: WorkLedger, row: Mapping[str, Any]) -> Measured:
    evaluation = Evaluation.model_validate(ledger.find(row["evaluation_id"]))
    return Measured(label=row["label"], evaluation=evaluation)


def _costs(steps: Sequence[StepRecord]) -> tuple[CostLine, ...]:
    """Sums over the calls of all steps by role and backend; tokens and money of a piece of work count once."""
    totals: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    calls = [call for step in steps for call in step.calls]
    paid = set(first_of_each([str(call["work_key"]) for call in calls]))
    for index, call in enumerate(calls):
        total = totals[str(call["role"]), str(call["backend"]) or "-"]
        total["calls"] += 1
        total["seconds"] += _number(call["seconds"])
        usage = call["usage"]
        for name, amount in usage.items() if isinstance(usage, dict) and index in paid else ():
            total[name] += _number(amount)
    return tuple(
        CostLine(
            role=role,
            model=model,
            calls=int(total["calls"]),
            prompt_tokens=int(total["prompt_tokens"]),
            completion_tokens=int(total["completion_tokens"]),
            cost_usd=total["cost_usd"],
            seconds=total["seconds"],
        )
        for (role, model), total in sorted(totals.items())
    )


def _number(value: JsonValue) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _curve(store: Store, run_id: str, steps: Sequence[StepRecord]) -> list[CurvePoint]:
    """Val accuracy per deployed pair, over the rollout steps behind it; train accuracy per rollout step."""
    points = [
        CurvePoint(
            series="val accuracy", step=store.lineage.checkpoint(pair.checkpoint_id).rollout_steps, value=pair.val_score
        )
        for pair in store.lineage.pairs(run_id)
        if pair.val_score is not None
    ]
    for step in steps:
        for call in step.calls:
            wrote = call["wrote"]
            rows = wrote.get("steps") if isinstance(wrote, dict) and call["role"] == "trainer" else None
            for row in rows if isinstance(rows, list) else []:
                if isinstance(row, dict):
                    number, value = int(_number(row["step"])) + 1, _number(row["exact_mean"])
                    points.append(CurvePoint(series="train accuracy", step=number, value=value))
    return points
