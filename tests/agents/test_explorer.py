"""The explorer runs the policy itself, keeps every trace, and lets no purpose read a split it must not."""

import pytest
from metro_cases import HARNESS, SUITE, TRAIN, VAL
from solver_engine import SolverEngine

from agents.explorer import Explorer
from evals.request import EvaluationRequest
from harness.records import Sampling

TEST = SUITE.tasks(split="test")


def request(tasks, purpose, **options) -> EvaluationRequest:
    return EvaluationRequest(
        suite=SUITE, harness=HARNESS, tasks=tasks, split=tasks[0].split, sampling=Sampling(), purpose=purpose, **options
    )


def test_it_measures_and_hands_every_trace_to_the_sink():
    kept = []
    missed = {TRAIN[0].task_id, TRAIN[1].task_id}
    made = Explorer(sink=kept.extend).explore(request(TRAIN, "explore", replicates=2), SolverEngine(missed))
    # 2 of 8 tasks fail in both replicates.
    assert made.evaluation.mean == 0.75
    assert [trace.trace_id for trace in kept] == list(made.evaluation.trace_ids)
    assert len(kept) == 16
    assert made.record.wrote["mean"] == 0.75
    assert made.record.usage.completion_tokens == 48  # 16 attempts of 3 tokens
    assert made.record.saw["tasks"] == 8


def test_recorded_work_is_not_run_again():
    class Ledger(dict):
        def find(self, key):
            return self.get(key)

        def record(self, key, *, kind, result):
            return self.setdefault(key, result)

    ledger, engine = Ledger(), SolverEngine()
    first = Explorer(ledger=ledger).explore(request(VAL, "gate"), engine)
    second = Explorer(ledger=ledger).explore(request(VAL, "gate"), engine)
    assert first.evaluation == second.evaluation
    assert engine.calls == len(VAL)


@pytest.mark.parametrize(
    ("tasks", "purpose", "message"),
    [(VAL, "explore", "'train' alone"), (TEST, "gate", "only 'report'"), (TEST, "explore", "'train' alone")],
)
def test_a_purpose_cannot_read_another_split(tasks, purpose, message):
    with pytest.raises(ValueError, match=message):
        Explorer().explore(request(tasks, purpose), SolverEngine())


def test_the_report_may_read_test():
    assert Explorer().explore(request(TEST, "report"), SolverEngine()).evaluation.mean == 1.0
