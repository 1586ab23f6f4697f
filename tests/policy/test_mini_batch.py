from __future__ import annotations

import pytest

from harness.records import Scored, Unscored
from policy.config import RlConfig
from policy.mini_batch import group_advantages, micro_batches
from policy.rollout_record import RolloutAttempt, RolloutBatch, RolloutGroup


def attempt(reward: float | None, exact: float = 0.0, length: int = 2) -> RolloutAttempt:
    if reward is None:
        verdict = Unscored(boundary="engine", error="lost")
    else:
        verdict = Scored(parts={"exact": exact}, reward=reward)
    ids = () if reward is None else tuple(range(10, 10 + length))
    return RolloutAttempt(text="x", finish_reason="stop", token_ids=ids, seed=0, verdict=verdict)


def group(number: int, *attempts: RolloutAttempt, fate="trained") -> RolloutGroup:
    return RolloutGroup(
        task_id=f"t{number}", position=number, draw=0, prompt_token_ids=(1, 2, 3 + number), attempts=attempts, fate=fate
    )


def batch(*groups: RolloutGroup) -> RolloutBatch:
    return RolloutBatch(step=0, policy_id="p", harness_id="h", groups=groups, next_position=9)


def test_an_attempt_without_a_score_is_out_of_the_baseline():
    groups = (group(0, attempt(1.0), attempt(None), attempt(0.0)),)
    # mean of 1 and 0 alone is 0.5; with a 0 for the lost one it would be 1/3
    config = RlConfig(prompts_per_step=1, group_size=3, advantage="centred")
    assert group_advantages(groups, config) == [[0.5, 0.0, -0.5]]


def test_hybrid_weights_are_over_the_groups_of_the_batch():
    groups = (
        group(0, attempt(1.0, 1), attempt(0.0), attempt(0.0), attempt(0.0)),
        group(1, attempt(1.0, 1), attempt(1.0, 1), attempt(1.0, 1), attempt(0.2)),
    )
    config = RlConfig(prompts_per_step=2, group_size=4, advantage="hybrid_dgpo")
    values = group_advantages(groups, config)
    # by hand in test_advantage: weights 1.124353 and 0.875647
    assert values[0][0] == pytest.approx(0.75 * 1.124353, abs=1e-5)
    assert values[1][3] == pytest.approx(-0.6 * 0.875647, abs=1e-5)


def test_whole_groups_stay_in_one_update_and_parts_share_its_normalisers():
    groups = tuple(group(i, attempt(1.0, length=3), attempt(0.0, length=1)) for i in range(4))
    config = RlConfig(prompts_per_step=4, group_size=2, updates_per_rollout_step=2, micro_batch_size=2)
    made = micro_batches(batch(*groups), config, pad_token_id=0)
    assert [micro.update for micro in made] == [0, 0, 1, 1]
    # an update holds two groups of 3 + 1 tokens and two samples
    assert {micro.mini_batch_tokens for micro in made} == {8.0}
    assert {micro.mini_batch_samples for micro in made} == {4.0}
    for micro in made:
        assert len(set(micro.tokens.rows.tolist())) == 1, "both samples are of one group"
        assert micro.advantages.sum().abs().item() < 1e-6


def test_sampled_ids_are_trained_on_as_they_are():
    groups = (group(0, attempt(1.0, length=3), attempt(0.0, length=2)),)
    (micro,) = micro_batches(batch(*groups), RlConfig(prompts_per_step=1, group_size=2), pad_token_id=0)
    assert micro.tokens.completion.tolist() == [[10, 11, 12], [10, 11, 0]]
    assert micro.tokens.completion_mask.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_a_short_batch_is_refused():
    with pytest.raises(ValueError, match="has 1 groups, expected 2"):
        micro_batches(
            batch(group(0, attempt(1.0), attempt(0.0)), group(1, attempt(1.0), attempt(1.0), fate="no_signal")),
            RlConfig(prompts_per_step=2, group_size=2),
            pad_token_id=0,
        )
