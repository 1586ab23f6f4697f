from __future__ import annotations

import dataclasses
import math

import pytest
from scripted_engine import DictLedger, ScriptedEngine
from tiny_suite import HARNESS, make_tasks

from harness.records import Scored, Unscored
from policy.config import DynamicSampling, RlConfig
from policy.errors import NonFiniteTraining, TooManyUnscored
from policy.rollout import Collector
from policy.task_stream import TaskStream


def length_score(task, generation):
    """Reward: a tenth per character; exact from five characters on."""
    return Scored(parts={"exact": float(len(generation.text) >= 5)}, reward=len(generation.text) / 10)


def number_of(user: str) -> int:
    return int(user.rsplit(" ", 1)[1])


def collector(engine, *, score=length_score, tasks=12, **settings) -> Collector:
    config = RlConfig(**{"prompts_per_step": 3, "group_size": 4, **settings})
    return Collector(engine, HARNESS, TaskStream(make_tasks(tasks), 5), config, score, seed=5, rows_at_once=16)


def test_groups_without_signal_are_replaced_until_the_batch_is_full():
    # tasks with an odd number always answer the same; even ones differ within the group
    engine = ScriptedEngine(lambda user, index: "aaa" if number_of(user) % 2 else "a" * (1 + index))
    batch = collector(engine).collect(0, 0, DictLedger())
    assert len(batch.trained) == 3 and batch.stop == ""
    assert all(number_of_task(group) % 2 == 0 for group in batch.trained)
    dropped = [group for group in batch.groups if group.fate == "no_signal"]
    assert dropped and all(number_of_task(group) % 2 == 1 for group in dropped)
    assert batch.count("no_signal") + batch.count("trained") + batch.count("surplus") == len(batch.groups)
    assert len({group.task_id for group in batch.groups}) == len(batch.groups), "one group per prompt in a step"
    assert batch.next_position == max(group.position for group in batch.groups) + 1
    # every attempt is a trace, the dropped ones too
    assert len(batch.traces()) == 4 * len(batch.groups)
    assert len({trace.trace_id for trace in batch.traces()}) == len(batch.traces())


def number_of_task(group) -> int:
    return int(group.task_id[1:])


def test_with_dynamic_sampling_off_every_group_is_trained_on():
    engine = ScriptedEngine(lambda user, index: "aaa")
    off = DynamicSampling(enabled=False)
    batch = collector(engine, dynamic_sampling=off).collect(0, 0, DictLedger())
    assert len(batch.groups) == len(batch.trained) == 3 and len(engine.calls) == 1


def test_rewards_that_differ_by_rounding_only_are_no_signal():
    def score(task, generation):
        return Scored(parts={"exact": 0.0}, reward=0.1 + 0.2 if len(generation.text) > 1 else 0.3)

    engine = ScriptedEngine(lambda user, index: "a" * (1 + index % 2))
    batch = collector(engine, score=score).collect(0, 0, DictLedger())
    assert batch.count("no_signal") == len(batch.groups) and batch.trained == ()


def test_the_bound_stops_with_counts():
    engine = ScriptedEngine(lambda user, index: "aaa")
    batch = collector(engine, dynamic_sampling=DynamicSampling(max_groups_factor=2.0)).collect(4, 0, DictLedger())
    # 2.0 * 3 prompts: six groups at most
    assert len(batch.groups) == 6
    assert "rollout step 4: 3 of 3 groups are missing after 6 sampled groups (6 with all rewards equal)" in batch.stop


def test_a_pool_is_not_sampled_twice_in_one_step():
    engine = ScriptedEngine(lambda user, index: "aaa")
    batch = collector(engine, tasks=4).collect(0, 2, DictLedger())
    assert len(batch.groups) == 4 and "pool of 4 tasks" in batch.stop


def test_unscored_attempts_are_out_of_the_group_and_counted():
    # the first attempt of every group fails in the engine; the others differ
    engine = ScriptedEngine(lambda user, index: None if index == 0 else "a" * index)
    batch = collector(engine, max_unscored_share=0.5).collect(0, 0, DictLedger())
    for group in batch.trained:
        assert len(group.scored) == 3 and group.unscored_count == 1
        assert group.attempts[0].verdict == Unscored(boundary="engine", error="out of memory")


def test_a_group_whose_scored_attempts_are_equal_has_no_signal_whatever_failed():
    engine = ScriptedEngine(lambda user, index: None if index == 0 else "aaa")
    batch = collector(engine, max_unscored_share=0.5).collect(0, 0, DictLedger())
    assert batch.count("no_signal") == len(batch.groups)


def test_too_many_failures_are_refused():
    engine = ScriptedEngine(lambda user, index: None if index == 0 else "a" * index)
    with pytest.raises(TooManyUnscored, match="of 12 attempts have no score.*out of memory"):
        collector(engine, max_unscored_share=0.05).collect(0, 0, DictLedger())


def test_a_reward_that_is_not_a_number_stops_training_and_records_nothing():
    ledger = DictLedger()
    engine = ScriptedEngine(lambda user, index: "a" * (index + 1))
    with pytest.raises(NonFiniteTraining, match="reward nan"):
        collector(engine, score=lambda t, g: Scored(parts={"exact": 0.0}, reward=math.nan)).collect(0, 0, ledger)
    assert ledger.entries == {}


def test_a_verdict_lost_once_is_asked_for_again():
    asked = []

    def score(task, generation):
        asked.append(task.task_id)
        if len(asked) == 1:
            return Unscored(boundary="judge", error="timeout")
        return length_score(task, generation)

    engine = ScriptedEngine(lambda user, index: "a" * (index + 1))
    batch = collector(engine, score=score, max_unscored_share=0.0).collect(0, 0, DictLedger())
    assert sum(group.unscored_count for group in batch.groups) == 0 and len(asked) == 13


def test_a_recorded_batch_is_not_sampled_again_and_is_the_same():
    ledger = DictLedger()
    engine = ScriptedEngine(lambda user, index: "a" * (index + 1))
    first = collector(engine).collect(2, 3, ledger)
    again = collector(engine).collect(2, 3, ledger)
    assert first == again and len(engine.calls) == 1
    collector(engine).collect(3, 3, ledger)
    assert len(engine.calls) == 2, "another step is other work"


OTHER_HARNESS = HARNESS.model_copy(update={"output_contract": "Only letters, please."})


@pytest.mark.parametrize(
    "change",
    [
        {"harness": OTHER_HARNESS},
        {"seed": 6},
        {"identity": {"suite": "another"}},
        {"config": RlConfig(prompts_per_step=3, group_size=4, temperature=0.5)},
        {"config": RlConfig(prompts_per_step=3, group_size=4, max_tokens=9)},
        {"config": RlConfig(prompts_per_step=3, group_size=4, dynamic_sampling=DynamicSampling(enabled=False))},
        {"config": RlConfig(prompts_per_step=3, group_size=4, threads=2)},
    ],
    ids=lambda change: "-".join(change),
)
def test_what_decides_a_batch_is_in_its_key_so_two_harness_versions_never_mix(change):
    engine = ScriptedEngine(lambda user, index: "a" * (index + 1))
    ledger, first = DictLedger(), collector(engine)
    other = dataclasses.replace(first, **change)
    assert first.collect(0, 0, ledger).harness_id == HARNESS.harness_id
    assert other.key(0, 0) != first.key(0, 0)
    assert other.collect(0, 0, ledger).harness_id == other.harness.harness_id
    assert len(engine.calls) == 2, "the recorded batch is another one's"


def test_other_weights_sample_their_own_batch():
    ledger, asked = DictLedger(), []
    for policy_id in ("policy-1", "policy-2"):
        engine = ScriptedEngine(lambda user, index: "a" * (index + 1))
        engine.policy_id = policy_id
        assert collector(engine).collect(0, 0, ledger).policy_id == policy_id
        asked += engine.calls
    assert len(asked) == 2


def test_every_attempt_has_its_own_seed_and_every_step_its_own_stream():
    engine = ScriptedEngine(lambda user, index: "a" * (index + 1))
    for step in (0, 1):
        collector(engine).collect(step, 0, DictLedger())
    seeds = [prompt.seed for prompt in engine.calls[0]]
    assert len(set(seeds)) == len(seeds) == 12
    assert engine.samplings[0].seed != engine.samplings[1].seed
