from __future__ import annotations

import pytest

from harness.records import Scored, Unscored
from policy.config import RlConfig
from policy.mini_batch import group_advantages, micro_batches
from policy.rollout_record import RolloutAttempt, RolloutBatch, RolloutGroup


def attempt(reward: float | None, exact: float = 0.0, length: int = 2, **fields) -> RolloutAttempt:
    if reward is None:
        verdict = Unscored(boundary="engine", error="lost")
    else:
        verdict = Scored(parts={"exact": exact}, reward=reward)
    ids = () if reward is None else tuple(range(10, 10 + length))
    made = {"text": "x", "finish_reason": "stop", "token_ids": ids, "seed": 0, "verdict": verdict}
    return RolloutAttempt(**{**made, **fields})


def group(number: int, *attempts: RolloutAttempt, fate="trained", importance=1.0) -> RolloutGroup:
    return RolloutGroup(
        task_id=f"t{number}",
        position=number,
        draw=0,
        prompt_token_ids=(1, 2, 3 + number),
        attempts=attempts,
        fate=fate,
        importance=importance,
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


ONE_GROUP = {"prompts_per_step": 1, "group_size": 2}


def test_an_unscored_attempt_is_out_of_the_loss_and_of_its_counts():
    groups = (group(0, attempt(1.0, length=3), attempt(None), attempt(0.0, length=2)),)
    (micro,) = micro_batches(batch(*groups), RlConfig(prompts_per_step=1, group_size=3), pad_token_id=0)
    assert micro.tokens.completion_mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert (micro.mini_batch_tokens, micro.mini_batch_samples) == (5.0, 2.0)
    assert micro.advantages[1].item() == 0.0


def test_tool_tokens_are_read_by_the_model_and_left_out_of_the_loss_and_its_counts():
    groups = (group(0, attempt(1.0, length=4, token_mask=(1, 0, 0, 1)), attempt(0.0, length=2)),)
    (micro,) = micro_batches(batch(*groups), RlConfig(**ONE_GROUP), pad_token_id=0)
    assert micro.tokens.completion.tolist() == [[10, 11, 12, 13], [10, 11, 0, 0]]
    assert micro.tokens.completion_mask.tolist() == [[1, 0, 0, 1], [1, 1, 0, 0]]
    assert (micro.mini_batch_tokens, micro.mini_batch_samples) == (4.0, 2.0)


def test_a_truncated_attempt_can_be_masked_and_stays_in_the_baseline():
    groups = (group(0, attempt(1.0, length=3, finish_reason="length"), attempt(0.0, length=2)),)
    (kept,) = micro_batches(batch(*groups), RlConfig(**ONE_GROUP, advantage="centred"), pad_token_id=0)
    assert kept.tokens.completion_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    masked = RlConfig(**ONE_GROUP, advantage="centred", mask_truncated=True)
    (micro,) = micro_batches(batch(*groups), masked, pad_token_id=0)
    assert micro.tokens.completion_mask.tolist() == [[0, 0], [1, 1]]
    assert (micro.mini_batch_tokens, micro.mini_batch_samples) == (2.0, 1.0)
    # the mean of 1 and 0 is 0.5: the masked one counts in it
    assert micro.advantages.tolist() == [0.5, -0.5]


def test_an_update_without_a_single_token_has_a_loss_of_nothing_not_of_nan():
    groups = (group(0, attempt(1.0, finish_reason="length"), attempt(0.0, finish_reason="length")),)
    (micro,) = micro_batches(batch(*groups), RlConfig(**ONE_GROUP, mask_truncated=True), pad_token_id=0)
    assert micro.tokens.completion_mask.sum() == 0
    assert (micro.mini_batch_tokens, micro.mini_batch_samples) == (1.0, 1.0)


def test_importance_and_the_engines_log_probabilities_stand_beside_their_samples():
    corrected = RlConfig(prompts_per_step=2, group_size=2, engine_correction_cap=2.0)
    groups = (
        group(0, attempt(1.0, log_probabilities=(-0.5, -0.25)), attempt(None), importance=0.5),
        group(1, attempt(1.0, length=1, log_probabilities=(-2.0,)), attempt(0.0, log_probabilities=(-1.0, -1.0))),
    )
    (micro,) = micro_batches(batch(*groups), corrected, pad_token_id=0)
    assert micro.importance.tolist() == [0.5, 0.5, 1.0, 1.0]
    assert micro.sampled.tolist() == [[-0.5, -0.25], [0.0, 0.0], [-2.0, 0.0], [-1.0, -1.0]]
    (plain,) = micro_batches(batch(*groups), RlConfig(prompts_per_step=2, group_size=2), pad_token_id=0)
    assert plain.sampled is None


def test_padding_is_counted_over_shared_prompts_and_completions():
    # prompts 1 2 3 and 1 2 4 share 1 2; suffixes 3 and 4; completions of 3, 1 and 2, 2 tokens padded to 3
    groups = (
        group(0, attempt(1.0, length=3), attempt(0.0, length=1)),
        group(1, attempt(1.0, length=2), attempt(0.0, length=2)),
    )
    (micro,) = micro_batches(batch(*groups), RlConfig(prompts_per_step=2, group_size=2), pad_token_id=0)
    # positions 2 + 2 + 4 * 3 = 16; padding 0 + 2 + 1 + 1 = 4
    assert (micro.positions, micro.padded) == (16, 4)
