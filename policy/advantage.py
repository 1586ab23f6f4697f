"""Advantages of rollout groups: pure functions over rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class HybridAdvantages(NamedTuple):
    """Advantages of the groups that carry signal, and the groups that were dropped."""

    advantages: list[Floats]
    """One array per kept group, in order."""
    weights: Floats
    """Weight of each kept group; their mean is 1."""
    kept: tuple[int, ...]
    """Indices of the kept groups."""
    dropped: tuple[int, ...]
    """Indices of the groups whose rewards are all equal."""


def is_all_equal(rewards: Sequence[float], tolerance: float = 1e-6) -> bool:
    """Whether no two rewards of the whole group differ by more than ``tolerance``.

    Args:
        rewards: of every rollout of one group; never a leave-one-out part of it.
        tolerance: largest difference that still counts as equal, in reward.

    Raises:
        ValueError: the group is empty or holds a value that is not finite.

    Source: METHODS §2, Dynamic sampling; differs: equal within a tolerance, since near-equal floats hold no signal.
    """
    values = _finite(rewards)
    return bool(values.max() - values.min() <= tolerance)


def grpo(rewards: Sequence[float], epsilon: float = 1e-6) -> Floats:
    """``(r - mean) / (std + epsilon)`` with the sample standard deviation (n - 1); zeros for one rollout.

    Source: METHODS §1 and §3.
    """
    values = _finite(rewards)
    if values.size < 2:
        return np.zeros_like(values)
    centred: Floats = (values - values.mean()) / (values.std(ddof=1) + epsilon)
    return centred


def centred(rewards: Sequence[float]) -> Floats:
    """``r - mean``: no division by the standard deviation.

    Source: METHODS §2, Hybrid-DGPO with w = 1 (its ablation).
    """
    values = _finite(rewards)
    difference: Floats = values - values.mean()
    return difference


def difficulty_weights(exact: Sequence[Sequence[float]], temperature: float = 2.0) -> Floats:
    """``N * softmax(d / temperature)`` with difficulty ``d = 1 - mean(exact)`` per group; the mean is 1.

    Args:
        exact: per group, the exactness (0..1) of each rollout.
        temperature: larger is flatter.

    Source: METHODS §2, Hybrid-DGPO.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive; got {temperature}")
    difficulty = np.array([1.0 - _finite(group).mean() for group in exact]) / temperature
    if difficulty.size == 0:
        return difficulty
    powers = np.exp(difficulty - difficulty.max())
    weights: Floats = difficulty.size * powers / powers.sum()
    return weights


def hybrid_dgpo(
    rewards: Sequence[Sequence[float]],
    exact: Sequence[Sequence[float]],
    temperature: float = 2.0,
    tolerance: float = 1e-6,
) -> HybridAdvantages:
    """Centred advantages weighted by prompt difficulty, over the groups that carry signal.

    Args:
        rewards: per group, the final reward of each rollout.
        exact: per group, the exactness (0..1) of each rollout.
        temperature: of the softmax over difficulty.
        tolerance: groups whose rewards are all within this are dropped before weights are computed.

    Raises:
        ValueError: the two arguments have different shapes, or a value is not finite.

    Source: METHODS §2, Hybrid-DGPO.
    """
    if [len(group) for group in rewards] != [len(group) for group in exact]:
        raise ValueError("rewards and exact must have the same groups of the same sizes")
    kept = tuple(index for index, group in enumerate(rewards) if not is_all_equal(group, tolerance))
    dropped = tuple(index for index in range(len(rewards)) if index not in set(kept))
    weights = difficulty_weights([exact[index] for index in kept], temperature)
    advantages = [weight * centred(rewards[index]) for weight, index in zip(weights, kept, strict=True)]
    return HybridAdvantages(advantages, weights, kept, dropped)


def overlong_penalty(length: int, *, max_tokens: int, buffer: int, scale: float = 0.1) -> float:
    """``min(-(L - (max_tokens - buffer)) / buffer * scale, 0)``: 0 up to the buffer, then falling to ``-scale``.

    Args:
        length: of the completion, tokens.
        max_tokens: longest completion.
        buffer: tokens before ``max_tokens`` over which the penalty grows.
        scale: penalty at ``max_tokens``, in reward.

    Raises:
        ValueError: the lengths make no sense.

    Source: METHODS §2, reward (R_len).
    """
    if not 0 < buffer <= max_tokens or length < 0:
        raise ValueError(
            f"overlong_penalty failed; got length={length}, max_tokens={max_tokens}, buffer={buffer}; "
            "expected length >= 0 and 0 < buffer <= max_tokens"
        )
    return min(-(length - (max_tokens - buffer)) / buffer * scale, 0.0)


def importance_weights(weights: Sequence[float]) -> Floats:
    """``u_i = 1 / (N p_i)`` with ``p_i = w_i / sum(w)``: what keeps the expected gradient that of uniform draws.

    Args:
        weights: sampling weight of each of the N tasks, positive.

    Raises:
        ValueError: a weight is not a positive finite number.

    Source: METHODS §3, p.
    """
    values = _finite(weights)
    if values.min() <= 0:
        raise ValueError(f"a sampling weight must be positive; got {values.min()}; leave the task out of the pool")
    importance: Floats = values.sum() / (values.size * values)
    return importance


def _finite(values: Sequence[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("a group is empty; a mean of nothing is not a number; drop the group first")
    if not np.isfinite(array).all():
        raise ValueError(f"group holds a value that is not finite: {array.tolist()}; an unscored attempt has no reward")
    return array
