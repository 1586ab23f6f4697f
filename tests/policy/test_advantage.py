from __future__ import annotations

import math

import numpy as np
import pytest

from policy.advantage import centred, difficulty_weights, grpo, hybrid_dgpo, is_all_equal


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
