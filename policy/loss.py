"""Policy-gradient losses: pure functions over tensors of shape (samples, tokens)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Surrogate(NamedTuple):
    """Per-token loss (lower is better) and where the ratio was clipped; the three places exclude each other."""

    loss: Tensor
    is_low: Tensor
    """A bad token whose ratio fell under ``1 - clip_low``."""
    is_high: Tensor
    """A good token whose ratio rose over ``1 + clip_high``."""
    is_dual: Tensor
    """A bad token whose ratio rose over the dual clip."""


def clipped_surrogate(
    ratio: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weight: Tensor | float = 1.0,
) -> Surrogate:
    """``-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)``, for A < 0 at most ``-dual_clip * A``, times a weight.

    Args:
        ratio: (samples, tokens) probability under the trained weights over that under the sampling weights.
        advantage: broadcastable to ``ratio``.
        clip_low: distance of the lower clip from 1.
        clip_high: distance of the upper clip from 1.
        dual_clip: bound c > 1 + clip_high on the ratio where the advantage is negative; None for no bound.
        weight: broadcastable to ``ratio``, never negative: a task's importance weight, an engine correction. It
            stands outside the clip and reaches neither a KL nor an entropy term.

    Source: METHODS §2, DAPO; §3, p (importance weights).
    """
    free = ratio * advantage
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    objective = torch.minimum(free, bounded)
    is_clipped, is_bad = bounded < free, (advantage < 0).expand_as(ratio)
    is_dual = torch.zeros_like(is_bad)
    if dual_clip is not None:
        floor = (dual_clip * advantage).expand_as(objective)
        is_dual = is_bad & (objective < floor)
        objective = torch.where(is_dual, floor, objective)
    return Surrogate(-objective * weight, is_clipped & is_bad, is_clipped & ~is_bad, is_dual)


def engine_correction(old: Tensor, sampled: Tensor, *, cap: float) -> Tensor:
    """``min(exp(old - sampled), cap)``: how much likelier the trainer finds a token than the engine that drew it.

    An engine with other kernels or another precision samples from slightly other probabilities than the trainer
    computes; this is the truncated importance weight between the two, at the weights of sampling time.

    Args:
        old: (samples, tokens), nats, under the trainer at sampling time.
        sampled: (samples, tokens), nats, as the engine gave them.
        cap: largest weight; there is no smallest.

    Source: no METHODS section; the token-truncated correction for a separate inference engine, as TRL has it.
    """
    return torch.exp((old - sampled).detach()).clamp(max=cap)


def k3_divergence(log_probability: Tensor, reference: Tensor) -> Tensor:
    """Low-variance estimate of KL(policy || reference) per token: ``exp(d) - d - 1``, d = reference - policy.

    Args:
        log_probability: (samples, tokens), nats, under the trained weights.
        reference: (samples, tokens), nats, under the reference policy.

    Source: METHODS §2, DAPO (k3 estimator, in the loss and not in the reward).
    """
    difference = reference - log_probability
    return torch.exp(difference) - difference - 1


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distributions ``softmax(logits)`` over the last axis, nats; differentiable.

    A bonus on it is ``-entropy_weight * entropy`` per token, aggregated as the rest of the loss.

    Args:
        logits: (..., vocabulary).

    Source: METHODS §2, DAPO (entropy weight 0 there).
    """
    return logits.logsumexp(dim=-1) - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)


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
