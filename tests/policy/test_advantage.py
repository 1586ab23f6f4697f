from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from trl.rewards import get_soft_overlong_punishment

from policy.advantage import (
    centred,
    difficulty_weights,
    grpo,
    hybrid_dgpo,
    importance_weights,
    is_all_equal,
    overlong_penalty,
)


def test_grpo_divides_by_the_sample_deviation():
    # 0, 1, 1, 0: mean 0.5, squared deviations 4 * 0.25 = 1, over n - 1 = 3: std = 0.57735; 0.5 / 0.57735 = 0.866
    assert grpo([0, 1, 1, 0]).tolist() == pytest.approx([-0.866024, 0.866024, 0.866024, -0.866024], abs=1e-5)


def test_grpo_of_equal_rewards_is_zero_not_nan():
    assert grpo([0.3, 0.3, 0.3]).tolist() == pytest.approx([0, 0, 0], abs=1e-9)
    assert grpo([0.3]).tolist() == [0.0]


def test_grpo_epsilon_is_added_to_the_deviation():
    # rewards 0 and 2e-6: mean 1e-6, std = sqrt(2 * 1e-12 / 1) = 1.41421e-6; 1e-6 / (2.41421e-6) = 0.41421
    assert grpo([0.0, 2e-6]).tolist() == pytest.approx([-0.41421, 0.41421], abs=1e-4)


def test_centred_only_subtracts_the_mean():
    # mean of 0.2, 0.5, 0.8 is 0.5
    assert centred([0.2, 0.5, 0.8]).tolist() == pytest.approx([-0.3, 0.0, 0.3])


def test_equality_is_over_the_whole_group_with_a_tolerance():
    assert is_all_equal([0.1 + 0.2, 0.3])  # differ in the last bit only
    assert is_all_equal([0.0, 1e-6])
    assert not is_all_equal([0.0, 1.1e-6])
    # each neighbour is within tolerance, the ends are not
    assert not is_all_equal([0.0, 0.9e-6, 1.8e-6])
    # a mixed group stays whole: seven equal rewards and one other
    assert not is_all_equal([1.0] * 7 + [0.0])


def test_hybrid_weights_by_hand():
    # d = 0.75 and 0.25; /2: 0.375, 0.125; softmax = 1/(1+e^-0.25) = 0.562177, 0.437823; times 2
    weights = difficulty_weights([[1, 0, 0, 0], [1, 1, 1, 0]], 2.0)
    assert weights.tolist() == pytest.approx([1.124353, 0.875647], abs=1e-5)
    assert weights.mean() == pytest.approx(1.0)


def test_hybrid_dgpo_drops_equal_groups_before_weighting():
    rewards = [[1.0, 0.0, 0.0, 0.0], [0.05, 0.05, 0.05, 0.05 + 1e-9], [1.0, 1.0, 1.0, 0.2]]
    exact = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    result = hybrid_dgpo(rewards, exact, temperature=2.0)
    assert result.kept == (0, 2) and result.dropped == (1,)
    # the weights are those of the two kept groups alone, as above
    assert result.weights.tolist() == pytest.approx([1.124353, 0.875647], abs=1e-5)
    # group 0: mean 0.25, first 0.75 * 1.124353 = 0.843265; group 2: mean 0.8, last -0.6 * 0.875647 = -0.525388
    assert result.advantages[0][0] == pytest.approx(0.843265, abs=1e-5)
    assert result.advantages[1][3] == pytest.approx(-0.525388, abs=1e-5)


def test_hybrid_dgpo_of_no_signal_is_empty():
    result = hybrid_dgpo([[0.0, 0.0]], [[0, 0]])
    assert result.advantages == [] and result.kept == () and result.dropped == (0,) and result.weights.size == 0


@pytest.mark.parametrize("function", [grpo, centred, is_all_equal])
def test_a_reward_that_is_not_a_number_is_refused(function):
    with pytest.raises(ValueError, match="not finite"):
        function([0.0, math.nan])
    with pytest.raises(ValueError, match="empty"):
        function([])


def test_advantages_of_a_group_sum_to_zero():
    rewards = np.random.default_rng(0).random(8).tolist()
    assert abs(grpo(rewards).sum()) < 1e-9 and abs(centred(rewards).sum()) < 1e-9


def test_grpo_is_trls_group_scaling_but_for_its_epsilon():
    # TRL 1.16: (r - mean) / (std + 1e-4), std with n - 1; so ours times (std + 1e-6) / (std + 1e-4)
    rewards = torch.tensor([0.0, 1.0, 0.3, 0.3], dtype=torch.float64)
    theirs = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert grpo(rewards.tolist(), epsilon=1e-4).tolist() == pytest.approx(theirs.tolist(), abs=1e-12)
    scale = (rewards.std() + 1e-4) / (rewards.std() + 1e-6)
    assert grpo(rewards.tolist()).tolist() == pytest.approx((theirs * scale).tolist(), abs=1e-12)


@pytest.mark.parametrize(
    ("length", "penalty"),
    # max 4096, buffer 512: 3584 is free; 3840 is half way: -0.05; 4096: -0.1
    [(0, 0.0), (3584, 0.0), (3840, -0.05), (4096, -0.1)],
)
def test_overlong_penalty_by_hand_and_beside_trls(length, penalty):
    assert overlong_penalty(length, max_tokens=4096, buffer=512) == pytest.approx(penalty)
    (theirs,) = get_soft_overlong_punishment(4096, 512)(completion_ids=[[0] * length])
    assert 0.1 * theirs == pytest.approx(penalty), "TRL's is not scaled"


def test_overlong_penalty_refuses_lengths_that_make_no_sense():
    with pytest.raises(ValueError, match="buffer=9"):
        overlong_penalty(3, max_tokens=8, buffer=9)


def test_importance_weights_by_hand():
    # w = 1, 1, 2: p = 1/4, 1/4, 1/2; u = 1 / (3 p) = 4/3, 4/3, 2/3; the expectation of u is 1
    weights = importance_weights([1.0, 1.0, 2.0])
    assert weights.tolist() == pytest.approx([4 / 3, 4 / 3, 2 / 3])
    assert (weights * [0.25, 0.25, 0.5]).sum() == pytest.approx(1.0)
    assert importance_weights([3.0, 3.0]).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="must be positive; got 0.0"):
        importance_weights([1.0, 0.0])
