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


def _finite(values: Sequence[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("a group is empty; a mean of nothing is not a number; drop the group first")
    if not np.isfinite(array).all():
        raise ValueError(f"group holds a value that is not finite: {array.tolist()}; an unscored attempt has no reward")
    return array
