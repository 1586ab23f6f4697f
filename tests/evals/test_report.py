"""The closing table says what the records say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_suite import Adder, Sums, harness, tasks

from evals.report import (
    CostLine,
    CurvePoint,
    Measured,
    Report,
    ReportSource,
    build_report,
    gate_line,
    plot_curve,
    to_json,
    to_markdown,
)
from evals.runner import Evaluation, EvaluationRequest, evaluate
from harness.errors import UserError
from harness.records import Sampling, Split
from memory.records import DecisionRecord


def measure(right: int, split: Split, replicates: int = 1) -> Evaluation:
    """Ten tasks of which the first ``right`` are answered right."""
    engine = Adder()
    engine.answers = {f"{k}+1": "-1" for k in range(right, 10)}
    made = EvaluationRequest(suite=Sums(), harness=harness(), tasks=tasks(10, split), split=split,
                             sampling=Sampling(), purpose="report", replicates=replicates)  # fmt: skip
    return evaluate(made, engine)


def decision(**changes: Any) -> DecisionRecord:
    fields: dict[str, Any] = {
        "run_id": "r1", "round_number": 0, "outcome": "accept", "checkpoint_id": "c", "incumbent_id": "h1",
        "candidate_id": "h2", "incumbent_score": 0.5, "candidate_score": 0.8,
        "statistics": {"improved": [f"t{n}" for n in range(8)], "regressed": ["a", "b"]}, "reason": "c > b",
    }  # fmt: skip
    return DecisionRecord(**(fields | changes))


def source(**changes: Any) -> ReportSource:
    fields: dict[str, Any] = {
        "run_id": "r1", "strategy": "vace", "suite": "sums", "seed": 7, "seconds": 61.4,
        "measured": (
            Measured(label="base", evaluation=measure(2, "val")),
            Measured(label="final", evaluation=measure(8, "val")),
            Measured(label="base", evaluation=measure(2, "test", 3)),
            Measured(label="final", evaluation=measure(8, "test", 3)),
        ),
        "decisions": (decision(), decision(round_number=1, outcome="reject", candidate_score=0.0)),
        "costs": (CostLine(role="teacher", model="rules", calls=3, prompt_tokens=10, completion_tokens=4, cost_usd=0),),
        "curve": (CurvePoint(series="val", step=0, value=0.2), CurvePoint(series="val", step=5, value=0.8)),
        "artefacts": {"run": "/home/x/runs/r1"},
    }  # fmt: skip
    return ReportSource(**(fields | changes))


def made() -> Report:
    return build_report(source())


def test_accuracies_and_intervals_by_hand() -> None:
    line = made().score("final", split="val")
    assert line is not None and line.replicate_std is None
    # 8 of 10, Wilson: 49.0 to 94.3
    assert (line.mean, line.low, line.high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    thrice = made().score("final", split="test")
    assert thrice is not None
    assert thrice.replicate_means == (0.8, 0.8, 0.8) and thrice.replicate_std == pytest.approx(0.0)
    assert made().score("final", split="train") is None


def test_the_gain_is_paired_by_task() -> None:
    val, test = made().gains
    # tasks 2..7 improve: 6 ones and 4 zeros, mean 0.6, s = √(6·0.16 + 4·0.36)/9 = √(2.4/9) = 0.51640
    # t_.975,9 = 2.26216: 0.6 ± 2.26216·0.51640/√10 = 0.6 ± 0.36941
    assert (val.mean, val.low, val.high) == pytest.approx((0.6, 0.23059, 0.96941), abs=1e-4)
    assert (val.improved, val.regressed, val.tasks, val.split, test.split) == (6, 0, 10, "val", "test")


def test_gate_rows_count_tasks_and_show_the_exact_sign_test() -> None:
    line = gate_line(decision())
    assert (line.improved, line.regressed, line.incumbent_score, line.candidate_score) == (8, 2, 0.5, 0.8)
    assert line.p_value == pytest.approx(112 / 1024)  # 2·(1 + 10 + 45)/1024
    counted = gate_line(decision(statistics={"improved": 8, "regressed": 2}))
    assert (counted.improved, counted.regressed) == (8, 2)


def test_a_candidate_that_was_never_measured_has_no_numbers() -> None:
    line = gate_line(decision(outcome="reject", candidate_score=None, statistics={"improved": [], "regressed": []}))
    assert (line.improved, line.regressed, line.p_value, line.candidate_score) == (None, None, None, None)


def test_a_score_of_zero_is_shown_as_zero() -> None:
    text = to_markdown(made())
    assert "| 1 | 50.0 | 0.0 | reject | 8 | 2 | 0.109 | c > b |" in text


def test_markdown_holds_every_table() -> None:
    lines = to_markdown(made()).splitlines()
    assert lines[0] == "# Run r1: vace on sums, seed 7"
    assert "| final | val | 80.0 | 49.0 – 94.3 |  | 10 | 0 |" in lines
    assert "| base | test | 20.0 | 0.0 – 50.2 | 0.0 over 3 | 10 | 0 |" in lines  # 0.2 ± 0.30163, cut at 0
    assert "| val | +60.0 | +23.1 – +96.9 | 0.005 | 6 | 0 | 10 |" in lines  # t = 3.674, df 9
    assert "| teacher | rules | 3 | 10 | 4 | 0.0000 | 0.0 |" in lines
    assert "- run: `/home/x/runs/r1`" in lines and lines[-1] == "Wall time: 61 s"


def test_text_cannot_break_a_table() -> None:
    text = to_markdown(build_report(source(decisions=(decision(reason="a | b\nc"),))))
    assert "| a \\| b c |" in text


def test_empty_tables_are_left_out() -> None:
    text = to_markdown(build_report(source(decisions=(), costs=(), measured=(), artefacts={}, seconds=0.0)))
    assert text == "# Run r1: vace on sums, seed 7\n"


def test_json_is_json_and_reads_back() -> None:
    payload = to_json(made())
    assert payload["outcomes"] == {"accept": 1, "reject": 1}
    again = json.loads(json.dumps(payload, allow_nan=False))
    del again["outcomes"]
    assert Report.model_validate(again) == made()


def test_base_and_final_measured_differently_are_refused() -> None:
    with pytest.raises(ValueError, match="replicates"):
        build_report(
            source(
                measured=(
                    Measured(label="base", evaluation=measure(2, "test", 3)),
                    Measured(label="final", evaluation=measure(8, "test")),
                )
            )
        )
    with pytest.raises(ValueError, match="once per split"):
        build_report(source(measured=(Measured(label="base", evaluation=measure(2, "val")),) * 2))


def test_a_curve_is_drawn_to_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = plot_curve(made(), tmp_path / "deep" / "curve.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000
    with pytest.raises(UserError, match="no curve to draw"):
        plot_curve(build_report(source(curve=())), tmp_path / "none.png")


def test_a_report_needs_no_matplotlib_and_no_torch() -> None:
    script = "import sys, evals.report, evals.runner; print([m for m in ('matplotlib', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
