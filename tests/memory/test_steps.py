"""Executed nodes are kept in order, once."""

import pytest

from memory.errors import Conflict
from memory.records import StepRecord
from memory.redaction import REDACTED
from memory.store import Store


def test_steps_read_back_in_order_of_number(store: Store) -> None:
    steps = [StepRecord(run_id="r", number=n, node=f"node{n}", wrote={"n": n}, cost_usd=0.5) for n in (1, 0)]
    for step in steps:
        store.steps.record(step)
    assert store.steps.list("r") == tuple(reversed(steps))
    assert store.steps.list("other") == ()


def test_the_next_number_follows_the_last(store: Store) -> None:
    assert store.steps.next_number("r") == 0
    store.steps.record(StepRecord(run_id="r", number=4, node="gate"))
    assert store.steps.next_number("r") == 5


def test_the_same_step_twice_is_one_and_another_under_its_number_is_refused(store: Store) -> None:
    step = StepRecord(run_id="r", number=0, node="gate")
    store.steps.record(step)
    store.steps.record(step)
    with pytest.raises(Conflict, match="another step 0"):
        store.steps.record(step.model_copy(update={"node": "train"}))
    assert store.steps.list("r") == (step,)


def test_secrets_in_calls_are_removed(store: Store) -> None:
    kept = store.steps.record(StepRecord(run_id="r", number=0, node="x", calls=({"header": "Bearer abcdefgh1"},)))
    assert kept.calls == ({"header": f"Bearer {REDACTED}"},) == store.steps.list("r")[0].calls
