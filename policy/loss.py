"""Policy-gradient losses: pure functions over tensors of shape (samples, tokens)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Surrogate(NamedTuple):
    """Per-token loss (lower is better) and where the ratio was clipped."""

    loss: Tensor
    is_clipped: Tensor


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> Surrogate:
    """``-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)``, and for A < 0 at most ``-dual_clip * A``.

    Args:
        ratio: (samples, tokens) probability under the trained weights over that under the sampling weights.
        advantage: broadcastable to ``ratio``.
        clip_low: distance of the lower clip from 1.
        clip_high: distance of the upper clip from 1.
        dual_clip: bound c > 1 + clip_high on the ratio where the advantage is negative; None for no bound.

    Source: METHODS §2, DAPO.
    """
    free = ratio * advantage
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    objective = torch.minimum(free, bounded)
    is_clipped = bounded < free
    if dual_clip is not None:
        floor = (dual_clip * advantage).expand_as(objective)
        is_below = (advantage < 0) & (objective < floor)
        objective = torch.where(is_below, floor, objective)
        is_clipped = is_clipped | is_below
    return Surrogate(-objective, is_clipped)


def k3_divergence(log_probability: Tensor, reference: Tensor) -> Tensor:
    """Low-variance estimate of KL(policy || reference) per token: ``exp(d) - d - 1``, d = reference - policy.

    Args:
        log_probability: (samples, tokens), nats, under the trained weights.
        reference: (samples, tokens), nats, under the reference policy.

    Source: METHODS §2, DAPO (k3 estimator, in the loss and not in the reward).
    """
    difference = reference - log_probability
    return torch.exp(difference) - difference - 1


def token_sum(values: Tensor, mask: Tensor, *, tokens: Tensor | float) -> Tensor:
    """Sum over the masked tokens divided by ``tokens``, the count over the whole mini-batch.

    Over the parts of a mini-batch these add up to the mean over all its tokens.

    Args:
        values: (samples, tokens) losses.
        mask: (samples, tokens), 1 where a token counts.
        tokens: masked tokens of the whole mini-batch.

    Source: METHODS §2, DAPO (token mean, normalised per update's mini-batch).
    """
    return (values * mask).sum() / tokens


def sequence_sum(values: Tensor, mask: Tensor, *, samples: Tensor | float) -> Tensor:
    """Sum over samples of each sample's token mean, divided by ``samples``, the mini-batch's count.

    A sample with no masked token contributes 0 and must not be among ``samples``.

    Args:
        values: (samples, tokens) losses.
        mask: (samples, tokens), 1 where a token counts.
        samples: samples of the whole mini-batch.

    Source: METHODS §3, objective (per-response length mean).
    """
    means = (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
    return means.sum() / samples


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over all masked tokens: long samples weigh more (DAPO)."""
    return token_sum(values, mask, tokens=mask.sum())


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over samples of each sample's token mean: every sample weighs the same (GRPO)."""
    return sequence_sum(values, mask, samples=(mask.sum(dim=-1) > 0).sum())
