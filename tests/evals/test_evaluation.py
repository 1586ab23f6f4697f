"""Pairing and intervals of evaluations."""

from typing import Any

import pytest
from small_suite import Adder, Sums, harness, tasks

from evals.runner import EmptyMean, Evaluation, EvaluationRequest, evaluate, pair_evaluations
from harness.records import Sampling


def measure(engine: Adder, **changes: Any) -> Evaluation:
    fields: dict[str, Any] = {"suite": Sums(), "harness": harness(), "tasks": tasks(4), "split": "val",
                              "sampling": Sampling(), "purpose": "gate", "max_retries": 0}  # fmt: skip
    return evaluate(EvaluationRequest(**(fields | changes)), engine)


def test_an_attempt_unscored_on_one_side_leaves_both_sides() -> None:
    before, after = Adder(fails=lambda question, attempt: question == "0+1"), Adder()
    before.answers = {"1+1": "0"}
    after.answers = {"0+1": "0"}  # this loss must not count: the other side has no score for the task
    paired = pair_evaluations(measure(before), measure(after))
    assert paired.task_ids == ("sum-1", "sum-2", "sum-3")
    assert (paired.incumbent, paired.candidate) == ((0.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    assert (paired.excluded_tasks, paired.excluded, paired.attempts) == (("sum-0",), 1, 4)
    assert paired.excluded_share == 0.25 and paired.differences == (1.0, 0.0, 0.0)


def test_replicates_are_matched_one_by_one() -> None:
    # Task 0 loses replicate 1 on the left; its pair is then replicate 0 alone on both sides.
    before = Adder(fails=lambda question, attempt: question == "0+1" and attempt == 2)
    paired = pair_evaluations(measure(before, replicates=2), measure(Adder(slip=0.5), replicates=2))
    right = measure(Adder(slip=0.5), replicates=2)
    assert paired.candidate[0] == right.attempts[0].score
    assert (paired.excluded, paired.attempts, paired.excluded_tasks) == (1, 8, ())


def test_nothing_scored_on_both_sides_raises() -> None:
    left = Adder(fails=lambda question, attempt: question in ("0+1", "1+1"))
    right = Adder(fails=lambda question, attempt: question in ("2+1", "3+1"))
    with pytest.raises(EmptyMean, match="under both versions"):
        pair_evaluations(measure(left), measure(right))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling": Sampling(seed=3)}, "sampling"),
        ({"replicates": 2}, "replicates"),
        ({"split": "test", "tasks": tasks(4, split="test")}, "split"),
        ({"tasks": tasks(3)}, "different tasks"),
    ],
)
def test_evaluations_that_were_not_measured_alike_are_not_paired(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        pair_evaluations(measure(Adder()), measure(Adder(), **changes))


def test_the_interval_is_wilson_for_single_passes_and_t_over_tasks_otherwise() -> None:
    engine = Adder()
    engine.answers = {"0+1": "0", "1+1": "0"}
    made = measure(engine, tasks=tasks(10))  # 8 of 10: Wilson 0.4902..0.9433
    assert (made.interval().low, made.interval().high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    twice = measure(engine, tasks=tasks(10), replicates=2)
    # The same task means, twice over: t over 10 tasks, 0.8 ± 2.2622·0.42164/√10 = 0.8 ± 0.30163, cut at 1.
    assert (twice.interval().low, twice.interval().high) == pytest.approx((0.49837, 1.0), abs=1e-4)


def test_replicate_means_by_hand() -> None:
    engine = Adder(fails=lambda question, attempt: attempt == 1 and question != "1+1")
    engine.answers = {"1+1": "0"}
    made = measure(engine, replicates=2, batch_size=4)
    # replicate 0 scored task 1 alone (wrong); replicate 1 scored all four, three right
    assert made.replicate_means == (0.0, 0.75)
