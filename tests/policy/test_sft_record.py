"""Which traces become records, and which are refused by name."""

from __future__ import annotations

import pytest
from test_grpo import rollout_batch
from tiny_suite import HARNESS, make_tasks

from harness.records import Scored, Trace, Unscored
from harness.render import render
from policy.errors import TrainingError
from policy.sft.record import sampled_token_ids, sft_records

TASKS = make_tasks(3)


def trace(number: int = 0, *, exact: float = 1.0, **changes) -> Trace:
    fields = {
        "trace_id": f"trace-{number}",
        "task_id": f"t{number}",
        "split": "train",
        "policy_id": "policy-teacher",
        "harness_id": HARNESS.harness_id,
        "purpose": "distil",
        "completion": "abc",
        "finish_reason": "stop",
        "verdict": Scored(parts={"exact": exact}, reward=exact),
    }
    return Trace(**{**fields, **changes})


def test_a_record_is_the_rendered_prompt_and_the_accepted_completion():
    (record,) = sft_records([trace(1)], TASKS, HARNESS)
    assert record.prompt == render(HARNESS, TASKS[1].inputs)
    assert (record.record_id, record.completion, record.harness_id) == ("trace-1", "abc", HARNESS.harness_id)
    assert record.token_ids == ()


def test_only_exact_scored_traces_are_kept_unless_asked_otherwise():
    lost = trace(2, verdict=Unscored(boundary="engine", error="lost"))
    traces = [trace(0), trace(1, exact=0.9), lost]
    assert [record.record_id for record in sft_records(traces, TASKS, HARNESS)] == ["trace-0"]
    kept = sft_records(traces, TASKS, HARNESS, is_exact_only=False)
    assert [record.record_id for record in kept] == ["trace-0", "trace-1"], "an unscored trace is never a record"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finish_reason": "length"}, "trace-0 ended by 'length'"),
        ({"harness_id": "harness-other"}, "trace-0 ran under harness harness-other"),
        ({"task_id": "t9"}, "trace-0 is of task t9"),
        ({"split": "val"}, r"trace-0 is of task t0 \(split val\)"),
    ],
)
def test_a_trace_that_cannot_be_learned_from_is_refused_by_name(changes, words):
    with pytest.raises(TrainingError, match=words):
        sft_records([trace(0, **changes)], TASKS, HARNESS)


def test_sampled_ids_go_with_their_trace():
    batch = rollout_batch()
    ids = sampled_token_ids([batch])
    first = batch.traces()[0]
    assert ids[first.trace_id] == batch.groups[0].attempts[0].token_ids
    assert len(ids) == 8
    kept = trace(0, trace_id=first.trace_id)
    assert sft_records([kept], TASKS, HARNESS, token_ids=ids)[0].token_ids == ids[first.trace_id]
