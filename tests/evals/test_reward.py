"""The shaped reward, by hand."""

import pytest

from evals.reward import route_reward


def test_parts_are_weighted_five_twentyfive_seventy():
    # 0.05 * 1 + 0.25 * 0.5 + 0.70 * 0 = 0.175, far from the length limit
    reward = route_reward(format=1, partial=0.5, exact=0, length=100, max_length=4096, buffer=512)
    assert reward.task == pytest.approx(0.175)
    assert (reward.length_penalty, reward.final) == (0.0, reward.task)


def test_a_right_answer_in_the_wrong_format_loses_the_format_share_alone():
    assert route_reward(0, 1, 1, 10, 4096, 512).final == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [
        (3584, 0.0),  # 4096 - 512: the last length without a penalty
        (3840, -0.05),  # half the buffer: -(256 / 512) * 0.1
        (4096, -0.1),  # the whole buffer
    ],
)
def test_the_penalty_grows_linearly_over_the_buffer(length, penalty):
    reward = route_reward(1, 1, 1, length, 4096, 512)
    assert reward.length_penalty == pytest.approx(penalty)
    assert reward.final == pytest.approx(1.0 + penalty)


@pytest.mark.parametrize("bad", [{"partial": 1.5}, {"format": -1}, {"buffer": 0}, {"length": -1}, {"buffer": 5000}])
def test_nonsense_is_refused(bad):
    values = {"format": 1, "partial": 1, "exact": 1, "length": 1, "max_length": 4096, "buffer": 512} | bad
    with pytest.raises(ValueError, match="route_reward failed"):
        route_reward(**values)
