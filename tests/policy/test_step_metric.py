"""The numbers of a rollout step, by hand."""

from __future__ import annotations

import pytest

from harness.records import Scored, Unscored
from policy.rollout_record import RolloutAttempt, RolloutBatch, RolloutGroup
from policy.step_metric import VARYING, PeakMemory, StepMetrics, UpdateTally


def group(number: int, rewards, *, fate="trained", draw=0, length=2, **fields) -> RolloutGroup:
    attempts = []
    for reward in rewards:
        verdict = Unscored(boundary="engine", error="lost")
        if reward is not None:
            verdict = Scored(parts={"exact": float(reward == 1.0), "format": 0.5}, reward=reward)
        attempts.append(
            RolloutAttempt(
                text="x",
                finish_reason="stop",
                token_ids=tuple(range(length)) if reward is not None else (),
                seed=0,
                verdict=verdict,
                **fields,
            )
        )
    return RolloutGroup(
        task_id=f"t{number}", position=number, draw=draw, prompt_token_ids=(1,), attempts=tuple(attempts), fate=fate
    )


BATCH = RolloutBatch(
    step=7,
    policy_id="policy-a",
    harness_id="h",
    groups=(
        group(0, [1.0, 0.0, 0.2]),
        group(1, [0.2, 0.2, 0.2], fate="no_signal", length=5),
        group(2, [0.4, None, 0.0], fate="trained", draw=1, length=3),
        group(3, [1.0, 0.0, 0.0], fate="surplus", draw=1, length=4),
        group(4, [1.0, None, None], fate="unscored", draw=1, length=1),
    ),
    next_position=5,
)


def metrics(batch=BATCH, *, rollout_s=2.0, update_s=4.0, peak_memory_mb=100.0) -> StepMetrics:
    tally = UpdateTally()
    # two micro-batches of update 0, one of update 1
    tally.add(0, 0.5, tokens=4, entropy=6.0, kl=0.4, low=1, high=0, dual=1, positions=20, padded=2)
    tally.add(0, 0.25, tokens=2, entropy=3.0, kl=0.2, low=0, high=1, dual=0, positions=10, padded=1)
    tally.add(1, -1.0, tokens=6, entropy=3.0, kl=0.0, low=0, high=2, dual=0, positions=20, padded=7)
    tally.grad_norms += [1.5, 2.5]
    return tally.metrics(
        batch,
        tolerance=1e-6,
        learning_rate=1e-5,
        rollout_s=rollout_s,
        update_s=update_s,
        peak_memory_mb=peak_memory_mb,
    )


def test_groups_are_counted_by_fate_and_signal():
    made = metrics()
    assert (made.sampled_groups, made.trained_groups, made.dropped_groups, made.surplus_groups) == (5, 2, 1, 1)
    assert (made.unscored_groups, made.replaced_groups) == (1, 1)
    # groups 0, 2 and 3 differ within; group 1 is flat, group 4 has one reward only
    assert made.signal_share == pytest.approx(3 / 5)
    assert (made.attempts, made.unscored_attempts) == (15, 3)


def test_signal_is_counted_where_flat_groups_are_trained_on_too():
    flat = BATCH.model_copy(update={"groups": (group(0, [1.0, 0.0]), group(1, [0.5, 0.5]))})
    assert metrics(flat).signal_share == 0.5


def test_the_cost_of_dynamic_sampling_is_in_tokens():
    made = metrics()
    # 3 * 2 + 3 * 5 + 2 * 3 + 3 * 4 + 1 * 1 = 40, of which the flat group 15 and the surplus one 12
    assert (made.sampled_tokens, made.dropped_tokens, made.surplus_tokens) == (40, 15, 12)
    assert made.rollout_tokens_per_s == 20.0


def test_rewards_and_their_parts_are_means_over_the_first_draw():
    made = metrics()
    # groups 0 and 1: 1, 0, 0.2, 0.2, 0.2, 0.2
    assert made.reward_mean == pytest.approx(1.8 / 6)
    assert made.reward_parts == pytest.approx({"exact": 1 / 6, "format": 0.5})
    assert made.exact_mean == made.reward_parts["exact"]
    # groups 0 and 2
    assert made.trained_reward_mean == pytest.approx((1.2 + 0.4) / 5)


def test_token_means_are_over_all_updates_and_clips_are_told_apart():
    made = metrics()
    assert made.losses == (0.75, -1.0) and made.grad_norms == (1.5, 2.5)
    assert made.trained_tokens == 12 and made.training_tokens_per_s == 3.0
    assert made.entropy == pytest.approx(1.0) and made.kl == pytest.approx(0.05)
    assert made.clip_low_share == pytest.approx(1 / 12)
    assert made.clip_high_share == pytest.approx(3 / 12)
    assert made.dual_clip_share == pytest.approx(1 / 12)
    assert made.clip_share == pytest.approx(5 / 12)
    assert made.padding_share == pytest.approx(10 / 50)


def test_tool_tokens_are_not_counted_as_sampled():
    masked = BATCH.model_copy(update={"groups": (group(0, [1.0, 0.0], length=3, token_mask=(1, 0, 1)),)})
    assert metrics(masked).sampled_tokens == 4 and metrics(masked).completion_tokens_mean == 2.0


def test_equal_runs_differ_in_the_named_fields_alone():
    one, other = metrics(), metrics(rollout_s=9.0, update_s=8.0, peak_memory_mb=7.0)
    differ = {name for name, value in one.model_dump().items() if other.model_dump()[name] != value}
    assert differ == set(VARYING)
    assert one.deterministic == other.deterministic
    assert set(one.deterministic) == set(StepMetrics.model_fields) - set(VARYING)


def test_curves_hold_every_number_and_no_text():
    curves = metrics().curves
    assert all(isinstance(value, float) for value in curves.values())
    assert curves["losses"] == pytest.approx(-0.125) and curves["reward/format"] == 0.5
    assert "policy_id" not in curves and "step" not in curves
    assert set(StepMetrics.model_fields) - {"step", "policy_id", "reward_parts"} <= set(curves)


def test_a_record_from_before_a_field_was_added_is_still_read():
    added = {"signal_share", "reward_parts", "sampled_tokens", "dropped_tokens", "surplus_tokens", "trained_tokens"}
    added |= {"clip_low_share", "clip_high_share", "dual_clip_share", "padding_share", *VARYING[2:]}
    old = {name: value for name, value in metrics().model_dump(mode="json").items() if name not in added}
    assert StepMetrics.model_validate(old).reward_mean == metrics().reward_mean


def test_peak_memory_grows_with_what_the_process_holds():
    memory = PeakMemory(is_cuda=False)
    before = memory.peak_mb()
    held = bytearray(int((before + 60) * 1e6))  # more than the peak of the whole process so far
    held[::4096] = b"x" * len(held[::4096])
    assert memory.peak_mb() >= before + 50
