"""The closing report of a run: plain data, markdown, JSON, and a curve where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from evals.evaluation import Evaluation, pair_evaluations
from evals.report_records import (
    CostLine,
    CurvePoint,
    GainLine,
    GateLine,
    Label,
    Measured,
    Report,
    ReportSource,
    ScoreLine,
)
from evals.statistics import paired_changes, paired_t, sample_std, sign_test
from harness.errors import UserError
from harness.records import Split
from memory.records import DecisionRecord

__all__ = [
    "CostLine",
    "CurvePoint",
    "Measured",
    "Report",
    "ReportSource",
    "build_report",
    "gain_line",
    "gate_line",
    "plot_curve",
    "score_line",
    "to_json",
    "to_markdown",
]


def build_report(source: ReportSource) -> Report:
    """Compute the closing table.

    Args:
        source: evaluations, decisions, costs and places of one run.

    Raises:
        ValueError: a pair was measured twice on one split, or base and final were not measured alike.
    """
    places = [(item.label, item.evaluation.split) for item in source.measured]
    if len(set(places)) != len(places):
        raise ValueError(f"each of base and final may be measured once per split; got {places}; use replicates")
    return Report(
        run_id=source.run_id,
        strategy=source.strategy,
        suite=source.suite,
        seed=source.seed,
        seconds=source.seconds,
        scores=tuple(score_line(item.label, item.evaluation) for item in source.measured),
        gains=_gains(source.measured),
        gates=tuple(gate_line(decision) for decision in source.decisions),
        costs=source.costs,
        curve=source.curve,
        artefacts=source.artefacts,
    )


def score_line(label: Label, evaluation: Evaluation) -> ScoreLine:
    """Accuracy with its interval, and the spread over sampling seeds."""
    interval = evaluation.interval()
    means = evaluation.replicate_means
    return ScoreLine(
        label=label,
        split=evaluation.split,
        mean=evaluation.mean,
        low=interval.low,
        high=interval.high,
        tasks=len(evaluation.scores),
        replicate_means=means,
        replicate_std=sample_std(means) if len(means) > 1 else None,
        unscored=evaluation.unscored,
        policy_id=evaluation.policy_id,
        harness_id=evaluation.harness_id,
    )


def gain_line(base: Evaluation, final: Evaluation) -> GainLine:
    """Final minus base, paired by task.

    Raises:
        ValueError: they were not measured alike.
    """
    paired = pair_evaluations(base, final)
    changes = paired_changes(paired.incumbent, paired.candidate)
    if len(paired.task_ids) < 2:
        only = paired.differences[0]
        test_mean, low, high, p_value = only, -1.0, 1.0, None  # one task says nothing about the spread
    else:
        test = paired_t(paired.differences)
        test_mean, low, high, p_value = test.mean, test.low, test.high, test.p_value
    return GainLine(
        split=base.split,
        mean=test_mean,
        low=low,
        high=high,
        p_value=p_value,
        improved=changes.improved,
        regressed=changes.regressed,
        tasks=len(paired.task_ids),
    )


def gate_line(decision: DecisionRecord) -> GateLine:
    """One row of the gate table; reads ``improved`` and ``regressed`` (task ids or counts) of the statistics."""
    improved = _count(decision.statistics.get("improved"))
    regressed = _count(decision.statistics.get("regressed"))
    p_value = None
    if improved is None or regressed is None or decision.candidate_score is None:
        improved = regressed = None  # the candidate was never measured, so 0 changes would mislead
    else:
        p_value = sign_test(improved, regressed)
    return GateLine(
        round_number=decision.round_number,
        name=decision.name,
        outcome=decision.outcome,
        incumbent_score=decision.incumbent_score,
        candidate_score=decision.candidate_score,
        improved=improved,
        regressed=regressed,
        p_value=p_value,
        reason=decision.reason,
    )


def to_json(report: Report) -> dict[str, JsonValue]:
    """The report as JSON, with the number of decisions by outcome."""
    payload: dict[str, JsonValue] = report.model_dump(mode="json")
    return payload | {"outcomes": dict(report.outcomes)}


def to_markdown(report: Report) -> str:
    """The report as markdown tables; empty tables are left out."""
    heading = f"# Run {report.run_id}: {report.strategy} on {report.suite}, seed {report.seed}"
    blocks = [heading, _score_table(report), _gain_table(report), _gate_table(report), _cost_table(report)]
    if report.artefacts:
        blocks.append("\n".join(f"- {name}: `{place}`" for name, place in report.artefacts.items()))
    if report.seconds:
        blocks.append(f"Wall time: {report.seconds:.0f} s")
    return "\n\n".join(block for block in blocks if block) + "\n"


def plot_curve(report: Report, path: Path) -> Path:
    """Draw the report's series over steps into an image file.

    Args:
        report: with at least one curve point.
        path: destination; its suffix decides the format.

    Raises:
        UserError: matplotlib is not installed, or there is nothing to draw.
    """
    if not report.curve:
        raise UserError(f"run {report.run_id} has no curve to draw", do="train for at least one rollout step")
    try:
        from matplotlib.figure import Figure  # imported late: reports without plots must not need it
    except ImportError as error:
        raise UserError("plots need matplotlib", do="pip install 'cohelix[plot]'") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for series in dict.fromkeys(point.series for point in report.curve):
        points = sorted((point.step, point.value) for point in report.curve if point.series == series)
        axes.plot([step for step, _ in points], [value for _, value in points], marker="o", markersize=3, label=series)
    axes.set_xlabel("step")
    axes.set_title(f"{report.strategy} on {report.suite}, seed {report.seed}")
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _gains(measured: Sequence[Measured]) -> tuple[GainLine, ...]:
    found = {(item.label, item.evaluation.split): item.evaluation for item in measured}
    splits: tuple[Split, ...] = ("train", "val", "test")
    return tuple(
        gain_line(found["base", split], found["final", split])
        for split in splits
        if ("base", split) in found and ("final", split) in found
    )


def _count(value: JsonValue) -> int | None:
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _score_table(report: Report) -> str:
    rows = [
        (line.label, line.split, _percent(line.mean), f"{_percent(line.low)} – {_percent(line.high)}",
         "" if line.replicate_std is None else f"{_percent(line.replicate_std)} over {len(line.replicate_means)}",
         str(line.tasks), str(line.unscored))
        for line in report.scores
    ]  # fmt: skip
    return _table(("pair", "split", "accuracy %", "95 % interval", "std over seeds", "tasks", "unscored"), rows)


def _gain_table(report: Report) -> str:
    rows = [
        (line.split, f"{100 * line.mean:+.1f}", f"{100 * line.low:+.1f} – {100 * line.high:+.1f}",
         _p_value(line.p_value), str(line.improved), str(line.regressed), str(line.tasks))
        for line in report.gains
    ]  # fmt: skip
    return _table(("split", "final − base, points", "95 % interval", "p", "improved", "regressed", "tasks"), rows)


def _gate_table(report: Report) -> str:
    rows = [
        (str(line.round_number), _percent(line.incumbent_score), _percent(line.candidate_score), line.outcome,
         _number(line.improved), _number(line.regressed), _p_value(line.p_value), line.reason)
        for line in report.gates
    ]  # fmt: skip
    headings = ("round", "incumbent b %", "candidate c %", "decision", "improved", "regressed", "p", "reason")
    return _table(headings, rows)


def _cost_table(report: Report) -> str:
    rows = [
        (line.role, line.model, str(line.calls), str(line.prompt_tokens), str(line.completion_tokens),
         f"{line.cost_usd:.4f}", f"{line.seconds:.1f}")
        for line in report.costs
    ]  # fmt: skip
    return _table(("role", "model", "calls", "prompt tokens", "completion tokens", "cost USD", "seconds"), rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _p_value(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
