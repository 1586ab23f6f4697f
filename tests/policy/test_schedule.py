"""Learning rates as functions of the absolute update."""

from __future__ import annotations

import math

import pytest

from policy.config import RlConfig, SftConfig
from policy.schedule import Schedule, rl_schedule, sft_schedule


def test_a_warmup_rises_to_the_peak_and_a_constant_rate_stays_there():
    schedule = Schedule(kind="constant", warmup_updates=4)
    # updates 0..3 of 4: 1/4, 2/4, 3/4, 4/4; then the peak
    assert [schedule.share(update) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert Schedule().share(0) == 1.0


def test_cosine_and_linear_fall_to_zero_at_the_end_of_the_stage():
    # 2 updates of warmup, then 8 to the end: after 4 of them linear is at 1 - 4/8, cosine at (1 + cos(pi/2)) / 2
    linear = Schedule(kind="linear", warmup_updates=2, total_updates=10)
    cosine = Schedule(kind="cosine", warmup_updates=2, total_updates=10)
    assert [linear.share(update) for update in (0, 1, 2, 6, 9, 10, 11)] == [0.5, 1.0, 1.0, 0.5, 0.125, 0.0, 0.0]
    assert cosine.share(1) == cosine.share(2) == 1.0
    assert cosine.share(6) == pytest.approx(0.5)
    assert cosine.share(4) == pytest.approx(0.5 + 0.5 * math.sqrt(0.5))  # cos(pi / 4)
    assert cosine.share(10) == cosine.share(11) == 0.0


def test_the_published_stages_resolve_to_numbers_worked_by_hand():
    # DAPO: 600 rollout steps of 2 updates are 1200; 3 % of them are 36, in every block of the life
    rl = RlConfig(updates_per_rollout_step=2, warmup_ratio=0.03, lifecycle_rollout_steps=600)
    assert rl_schedule(rl) == Schedule(kind="constant", warmup_updates=36, total_updates=1200)
    # SFT: 2 epochs of 450 records are 900, in batches of 8: 113 updates, the last of 4; 5 % are 5.65, so 6
    assert sft_schedule(SftConfig(), records=450) == Schedule(kind="cosine", warmup_updates=6, total_updates=113)


def test_a_falling_rate_needs_an_end():
    with pytest.raises(ValueError, match="a cosine schedule needs total_updates; got 0"):
        Schedule(kind="cosine")


def test_the_end_of_a_constant_rate_is_only_informative():
    short, long = (Schedule(warmup_updates=3, total_updates=total) for total in (100, 200))
    assert short.is_same_course(long) and not short.is_same_course(Schedule(warmup_updates=4))
    assert not Schedule(kind="linear", total_updates=9).is_same_course(Schedule(kind="linear", total_updates=10))
