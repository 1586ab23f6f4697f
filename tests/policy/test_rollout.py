from __future__ import annotations

import dataclasses
import math

import pytest
from scripted_engine import DictLedger, ScriptedEngine
from tiny_suite import HARNESS, make_tasks

from harness.records import Scored, Unscored
from policy.config import DynamicSampling, OverlongShaping, RlConfig
from policy.errors import NonFiniteTraining, TooManyUnscored, TrainingError
from policy.rollout import Collector
from policy.task_stream import TaskStream, WeightedStream


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
        {"config": RlConfig(prompts_per_step=3, group_size=4, overlong=OverlongShaping(buffer=128))},
        {"stream": WeightedStream(make_tasks(12), {"t1": 2.0}, 5)},
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


class AlteringEngine(ScriptedEngine):
    """A scripted engine whose generations are changed before anyone sees them."""

    def __init__(self, answer, change) -> None:
        super().__init__(answer)
        self._change = change

    def generate(self, prompts, sampling, *, progress=None):
        made = super().generate(prompts, sampling, progress=progress)
        return [self._change(number, generation) for number, generation in enumerate(made)]


def growing(user: str, index: int) -> str:
    return "a" * (index + 1)


def test_truncated_and_unscored_attempts_are_marked_and_keep_their_parts():
    def change(number, generation):
        return generation.model_copy(update={"finish_reason": "length"}) if number % 4 == 3 else generation

    engine = AlteringEngine(lambda user, index: None if index == 0 else growing(user, index), change)
    batch = collector(engine, max_unscored_share=0.5).collect(0, 0, DictLedger())
    for group in batch.groups:
        assert [attempt.is_scored for attempt in group.attempts] == [False, True, True, True]
        assert [attempt.is_truncated for attempt in group.attempts] == [False, False, False, True]
        assert group.attempts[1].verdict.parts == {"exact": 0.0}


def test_the_length_penalty_is_in_the_final_reward_and_among_its_parts():
    # max 4, buffer 2, scale 0.1: lengths 1, 2 are free; 3: -1/2 * 0.1 = -0.05; 4: -0.1
    shaped = {"overlong": OverlongShaping(buffer=2, scale=0.1), "max_tokens": 4}
    batch = collector(ScriptedEngine(growing), **shaped).collect(0, 0, DictLedger())
    verdicts = batch.trained[0].scored
    assert [verdict.reward for verdict in verdicts] == pytest.approx([0.1, 0.2, 0.3 - 0.05, 0.4 - 0.1])
    assert [verdict.parts["overlong"] for verdict in verdicts] == pytest.approx([0.0, 0.0, -0.05, -0.1])
    plain = collector(ScriptedEngine(growing), max_tokens=4).collect(0, 0, DictLedger())
    assert "overlong" not in plain.trained[0].scored[0].parts


def test_the_length_penalty_makes_signal_where_rewards_alone_have_none():
    def flat(task, generation):
        return Scored(parts={"exact": 1.0}, reward=1.0)

    shaped = {"overlong": OverlongShaping(buffer=2, scale=0.1), "max_tokens": 4}
    assert collector(ScriptedEngine(growing), score=flat).collect(0, 0, DictLedger()).trained == ()
    assert len(collector(ScriptedEngine(growing), score=flat, **shaped).collect(0, 0, DictLedger()).trained) == 3


def test_a_suite_with_a_length_penalty_of_its_own_is_refused_a_second_one():
    def score(task, generation):
        return Scored(parts={"exact": 0.0, "overlong": -0.1}, reward=0.1)

    with pytest.raises(TrainingError, match="already and `overlong` would add another"):
        collector(ScriptedEngine(growing), score=score, overlong=OverlongShaping(buffer=9)).collect(0, 0, DictLedger())


def test_tool_tokens_are_no_sampled_tokens():
    # every answer's last token is a tool's; the penalty on length counts the others
    def change(number, generation):
        mask = (1,) * (len(generation.token_ids) - 1) + (0,)
        return generation.model_copy(update={"token_mask": mask})

    shaped = {"overlong": OverlongShaping(buffer=2, scale=0.1), "max_tokens": 4}
    batch = collector(AlteringEngine(growing, change), **shaped).collect(0, 0, DictLedger())
    group = batch.trained[0]
    assert [attempt.sampled_count for attempt in group.attempts] == [0, 1, 2, 3] and group.sampled_tokens == 6
    assert [verdict.parts["overlong"] for verdict in group.scored] == pytest.approx([0.0, 0.0, 0.0, -0.05])
    assert [trace.token_count for trace in batch.traces()[:4]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"policy_id": "policy-old"}, "weights policy-old answered, expected policy-scripted"),
        ({"token_mask": (1, 0, 1, 0, 1, 0)}, "token_mask has 6 entries for 1 tokens"),
    ],
    ids=["stale weights", "torn mask"],
)
def test_an_answer_that_cannot_be_trained_on_is_unscored(change, error):
    engine = AlteringEngine(growing, lambda number, made: made.model_copy(update=change) if number % 4 == 0 else made)
    batch = collector(engine, max_unscored_share=0.5).collect(0, 0, DictLedger())
    assert batch.trained[0].attempts[0].verdict == Unscored(boundary="engine", error=error)
    assert len(batch.trained[0].scored) == 3


def test_each_attempt_names_the_weights_that_answered():
    engine = AlteringEngine(
        growing, lambda number, made: made.model_copy(update={"policy_id": "policy-scripted" if number % 2 else ""})
    )
    batch = collector(engine).collect(0, 0, DictLedger())
    assert [attempt.policy_id for attempt in batch.groups[0].attempts] == ["", "policy-scripted"] * 2


def test_the_engines_log_probabilities_are_kept_only_where_the_loss_needs_them():
    def change(number, generation):
        return generation.model_copy(update={"log_probabilities": (-0.5,) * len(generation.token_ids)})

    engine = AlteringEngine(growing, change)
    assert collector(engine).collect(0, 0, DictLedger()).groups[0].attempts[1].log_probabilities == ()
    kept = collector(engine, engine_correction_cap=2.0).collect(0, 0, DictLedger())
    assert kept.groups[0].attempts[1].log_probabilities == (-0.5, -0.5)
    with pytest.raises(TrainingError, match="engine_correction_cap=2.0 needs.*got 0 for 1 tokens"):
        collector(ScriptedEngine(growing), engine_correction_cap=2.0).collect(0, 0, DictLedger())


def test_weighted_draws_may_hold_a_task_twice_and_each_group_has_its_weight():
    stream = WeightedStream(make_tasks(3), {"t0": 50.0}, 5)
    engine = ScriptedEngine(growing)
    config = RlConfig(prompts_per_step=6, group_size=4)
    batch = Collector(engine, HARNESS, stream, config, length_score, seed=5, rows_at_once=16).collect(
        0, 0, DictLedger()
    )
    drawn = [stream.at(position) for position in range(6)]
    assert [group.task_id for group in batch.groups] == [draw.task.task_id for draw in drawn]
    assert [group.importance for group in batch.groups] == [draw.importance for draw in drawn]
    assert len({group.task_id for group in batch.groups}) < 6
    assert len({attempt.seed for group in batch.groups for attempt in group.attempts}) == 24
    assert len({trace.trace_id for trace in batch.traces()}) == 24
