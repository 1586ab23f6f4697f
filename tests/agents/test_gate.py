"""Audit first, then strictly better on what both sides scored; nothing else commits."""

import pytest
from metro_cases import HARNESS, SUITE, VAL
from solver_engine import SolverEngine

from agents.explorer import Explorer
from agents.gate import Gate, GateConfig
from evals.evaluation import Evaluation
from evals.request import EvaluationRequest
from harness.audit import AuditRules, SizeBudget
from harness.edit import AppendExecution, apply_edits
from harness.records import Sampling

CANDIDATE = apply_edits(HARNESS, [AppendExecution(text="Go on to the destination.")])
IDS = [task.task_id for task in VAL]


def measured(harness, missed=(), lost=(), *, tasks=VAL, purpose="gate", **options) -> Evaluation:
    request = EvaluationRequest(
        suite=SUITE, harness=harness, tasks=tasks, split=tasks[0].split, sampling=Sampling(), purpose=purpose,
        max_retries=0, **options,
    )  # fmt: skip
    return Explorer().explore(request, SolverEngine(missed, lost)).evaluation


def judge(before: Evaluation, after: Evaluation, **config):
    return Gate(GateConfig(**config)).judge(HARNESS, CANDIDATE, incumbent_evaluation=before, candidate_evaluation=after)


def test_a_strictly_better_candidate_is_accepted():
    decision = judge(measured(HARNESS, IDS[:2]), measured(CANDIDATE, IDS[2:3]))
    # b: 2 of 4 pass; c: 3 of 4 pass; tasks 0 and 1 improved, task 2 regressed.
    assert (decision.outcome, decision.incumbent_score, decision.candidate_score) == ("accept", 0.5, 0.75)
    assert (decision.improved, decision.regressed, decision.tasks) == (tuple(IDS[:2]), (IDS[2],), 4)
    # Sign test, 2 against 1: 2 * (1 + 3) / 8 = 1.
    assert decision.p_sign == 1.0
    # Differences 1, 1, -1, 0: mean 0.25, sd 0.957, t = 0.522, df 3.
    assert decision.p_paired == pytest.approx(0.638, abs=1e-3)
    assert decision.reasons == ("c = 0.7500 > b = 0.5000 over 4 tasks",)


def test_a_tie_keeps_the_incumbent():
    decision = judge(measured(HARNESS, IDS[:1]), measured(CANDIDATE, IDS[1:2]))
    assert decision.outcome == "tie"
    assert (decision.improved, decision.regressed) == ((IDS[0],), (IDS[1],))


def test_a_worse_candidate_is_rejected():
    assert judge(measured(HARNESS), measured(CANDIDATE, IDS[:1])).outcome == "reject"


def test_an_attempt_that_one_side_lost_counts_for_neither():
    # Task 3: passed by the incumbent, lost by the candidate. Left out: b = 2/3, c = 3/3.
    decision = judge(measured(HARNESS, IDS[:1]), measured(CANDIDATE, lost=IDS[3:]), max_unscored_share=0.25)
    assert decision.outcome == "accept"
    assert (decision.incumbent_score, decision.candidate_score) == (pytest.approx(2 / 3), 1.0)
    assert (decision.tasks, decision.excluded, decision.unscored_share) == (3, (IDS[3],), 0.25)


def test_past_the_share_of_unscored_pairs_it_refuses_to_decide():
    before, after = measured(HARNESS, IDS[:1]), measured(CANDIDATE, lost=IDS[3:])
    decision = judge(before, after, max_unscored_share=0.24)
    assert decision.outcome == "refuse"
    assert "1 of 4 attempt pairs" in decision.reasons[0]
    assert judge(before, after).outcome == "refuse"  # the default is 5 %


def test_disjoint_losses_leave_nothing_to_compare_and_are_refused():
    decision = judge(measured(HARNESS, lost=IDS[:2]), measured(CANDIDATE, lost=IDS[2:]), max_unscored_share=0.9)
    assert decision.outcome == "refuse"
    assert "nothing can be compared" in decision.reasons[0]


def test_a_fault_of_the_audit_rejects_whatever_was_measured():
    rules = AuditRules(budget=SizeBudget(execution_chars=10))
    decision = judge(measured(HARNESS, IDS), measured(CANDIDATE), audit=rules)
    assert decision.outcome == "reject"
    assert [finding.code for finding in decision.findings] == ["section_too_long"]
    assert decision.candidate_score == 1.0


def test_a_no_op_is_rejected_without_a_measurement():
    # Wound 10: a coin toss over a no-op never happens.
    decision = Gate().judge(HARNESS, HARNESS)
    assert (decision.outcome, decision.candidate_score) == ("reject", None)
    assert decision.findings[0].code == "no_effective_edit"


def test_a_legal_candidate_without_a_measurement_is_refused():
    assert Gate().judge(HARNESS, CANDIDATE).outcome == "refuse"


def test_no_candidate_keeps_the_incumbent_and_its_score():
    decision = Gate().judge(HARNESS, None, incumbent_evaluation=measured(HARNESS, IDS[:1]))
    assert (decision.outcome, decision.candidate_id, decision.incumbent_score) == ("reject", "", 0.75)


def test_without_the_rule_every_legal_candidate_commits_and_an_illegal_one_does_not():
    gate = Gate(GateConfig(rule="legal"))
    worse = {"incumbent_evaluation": measured(HARNESS), "candidate_evaluation": measured(CANDIDATE, IDS)}
    assert gate.judge(HARNESS, CANDIDATE, **worse).outcome == "accept"
    assert gate.judge(HARNESS, HARNESS).outcome == "reject"


def test_replicates_are_averaged_per_task_over_the_pairs_that_both_scored():
    before, after = measured(HARNESS, IDS[:1], replicates=3), measured(CANDIDATE, replicates=3)
    decision = judge(before, after)
    assert (decision.incumbent_score, decision.candidate_score, decision.tasks) == (0.75, 1.0, 4)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda: measured(CANDIDATE), lambda: measured(CANDIDATE), "the incumbent's evaluation is of"),
        (lambda: measured(HARNESS), lambda: measured(CANDIDATE, tasks=VAL[:3]), "different tasks"),
        (lambda: measured(HARNESS), lambda: measured(CANDIDATE, replicates=2), "differ in replicates"),
        (
            lambda: measured(HARNESS, tasks=SUITE.tasks(split="test"), purpose="report"),
            lambda: measured(CANDIDATE),
            "measured on 'test', expected 'val'",
        ),
        (
            lambda: measured(HARNESS).model_copy(update={"policy_id": "other"}),
            lambda: measured(CANDIDATE),
            "differ in policy_id",
        ),
    ],
)
def test_unlike_measurements_are_refused(before, after, message):
    with pytest.raises(ValueError, match=message):
        judge(before(), after())


def test_the_decision_becomes_a_row_of_the_store_with_everything_in_it():
    decision = judge(measured(HARNESS, IDS[:2]), measured(CANDIDATE))
    row = decision.to_record(run_id="r", round_number=2, checkpoint_id="c")
    assert (row.outcome, row.incumbent_score, row.candidate_score) == ("accept", 0.5, 1.0)
    assert row.statistics["improved"] == IDS[:2]
    assert row.evaluations == decision.evaluations
    assert type(decision).model_validate(decision.model_dump(mode="json")) == decision
