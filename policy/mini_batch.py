"""From a rollout batch to the micro-batches of its updates: advantages, padding, normalisers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.records import ImageFile, Scored
from policy import advantage
from policy.config import RlConfig
from policy.errors import TrainingError
from policy.likelihood import TokenBatch, token_batch
from policy.rollout_record import RolloutAttempt, RolloutBatch, RolloutGroup
from policy.vision import Viewer


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward and backward pass."""

    update: int
    """Which update of the rollout step it belongs to, from 0."""
    tokens: TokenBatch
    """Only tokens that the policy sampled in attempts of the loss are marked in its completion mask."""
    advantages: Tensor
    """(samples,); 0 for an attempt without a score, whose tokens are masked too."""
    importance: Tensor
    """(samples,) weight of the clipped surrogate alone."""
    mini_batch_tokens: float
    """Marked tokens of the whole update; 1 where there is none."""
    mini_batch_samples: float
    """Samples with a marked token in the whole update; 1 where there is none."""
    positions: int
    """Of the forward pass, padding included."""
    padded: int
    """Positions that hold padding."""
    sampled: Tensor | None = None
    """(samples, tokens) the engine's log-probabilities; None where the loss does not correct for the engine."""
    old: Tensor | None = None
    """Log-probabilities at sampling time; None takes the current ones, which are equal before any update."""
    reference: Tensor | None = None
    """Log-probabilities under the reference policy; None without a KL term."""

    def with_scores(self, *, old: Tensor | None, reference: Tensor | None) -> MicroBatch:
        """A copy with log-probabilities filled in."""
        return replace(self, old=old, reference=reference)


@dataclass(frozen=True)
class _Sample:
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """Empty where the attempt is out of the loss."""
    mask: tuple[int, ...]
    """Per token of ``completion``: 1 where the policy sampled it."""
    advantage: float
    importance: float
    log_probabilities: tuple[float, ...]
    images: tuple[ImageFile, ...] = ()


def is_in_loss(attempt: RolloutAttempt, config: RlConfig) -> bool:
    """Whether an attempt's tokens are trained on: it has a score and, where those are masked, was not cut short."""
    return attempt.is_scored and not (config.mask_truncated and attempt.is_truncated)


def group_advantages(groups: tuple[RolloutGroup, ...], config: RlConfig) -> list[list[float]]:
    """Advantage of every attempt; an attempt without a score is out of the baseline and gets 0."""
    rewards = [[verdict.reward for verdict in group.scored] for group in groups]
    if config.advantage == "hybrid_dgpo":
        exact = [[verdict.parts["exact"] for verdict in group.scored] for group in groups]
        weights = advantage.difficulty_weights(exact, config.difficulty_temperature)
        values = [weight * advantage.centred(group) for weight, group in zip(weights, rewards, strict=True)]
    else:
        function = advantage.grpo if config.advantage == "grpo" else advantage.centred
        values = [function(group) for group in rewards]
    return [_spread(group, value) for group, value in zip(groups, values, strict=True)]


def _spread(group: RolloutGroup, values: np.ndarray[Any, Any]) -> list[float]:
    scored = iter(values.tolist())
    return [next(scored) if isinstance(attempt.verdict, Scored) else 0.0 for attempt in group.attempts]


def micro_batches(
    batch: RolloutBatch,
    config: RlConfig,
    *,
    pad_token_id: int,
    device: Any = "cpu",
    viewer: Viewer | None = None,
    process: int = 0,
    processes: int = 1,
) -> list[MicroBatch]:
    """Cut a full rollout batch into micro-batches in training order; whole groups stay in one update.

    Args:
        batch: with exactly ``config.prompts_per_step`` groups to train on.
        config: of the block.
        pad_token_id: of the tokenizer.
        device: where the tensors go.
        viewer: of a policy that sees; None shows no image.
        process: number of this training process.
        processes: how many there are; each takes every so-many-th forward pass of an update. Normalisers are those
            of the whole update.

    Raises:
        ImageError: an image is no longer the one that was sampled with.
        TrainingError: an update cannot be shared evenly.
    """
    groups = batch.trained
    if len(groups) != config.prompts_per_step:
        raise ValueError(f"rollout step {batch.step} has {len(groups)} groups, expected {config.prompts_per_step}")
    values = group_advantages(groups, config)
    per_update = config.prompts_per_step // config.updates_per_rollout_step
    made = []
    for update in range(config.updates_per_rollout_step):
        part = slice(update * per_update, (update + 1) * per_update)
        samples = [
            _sample(group, attempt, value, config)
            for group, row in zip(groups[part], values[part], strict=True)
            for attempt, value in zip(group.attempts, row, strict=True)
        ]
        size = pass_size(config, processes)
        starts = range(process * size, len(samples), processes * size)
        made += _cut(update, samples, starts, size, config, pad_token_id, device, viewer)
    return made


def pass_size(config: RlConfig, processes: int) -> int:
    """Samples of one forward pass in one process.

    Raises:
        TrainingError: the samples of an update cannot be shared evenly over the processes.
    """
    samples = config.prompts_per_step * config.group_size // config.updates_per_rollout_step
    size = config.micro_batch_size or samples // processes
    if not size or samples % (size * processes):
        raise TrainingError(
            f"an update has {samples} samples, which {processes} processes cannot share in passes of {size or 1}; "
            f"expected a multiple of {(size or 1) * processes}; change micro_batch_size, prompts_per_step or "
            "num_processes"
        )
    return size


def _sample(group: RolloutGroup, attempt: RolloutAttempt, value: float, config: RlConfig) -> _Sample:
    ids = attempt.token_ids if is_in_loss(attempt, config) else ()
    mask = attempt.token_mask or (1,) * len(attempt.token_ids)
    return _Sample(
        prompt=group.prompt_token_ids,
        completion=ids,
        mask=mask[: len(ids)],
        advantage=value,
        importance=group.importance,
        log_probabilities=attempt.log_probabilities[: len(ids)],
        images=group.images,
    )


def _cut(
    update: int,
    samples: list[_Sample],
    starts: Sequence[int],
    size: int,
    config: RlConfig,
    pad_token_id: int,
    device: Any,
    viewer: Viewer | None,
) -> list[MicroBatch]:
    tokens = float(max(1, sum(sum(sample.mask) for sample in samples)))
    counted = float(max(1, sum(any(sample.mask) for sample in samples)))
    made = []
    for start in starts:
        part = samples[start : start + size]
        padded = token_batch(
            [sample.prompt for sample in part],
            [sample.completion for sample in part],
            pad_token_id=pad_token_id,
            device=device,
            images=[sample.images for sample in part],
            viewer=viewer,
        )
        completion_mask = _rows([sample.mask for sample in part], like=padded.completion_mask)
        is_corrected = config.engine_correction_cap is not None
        likelihoods = [sample.log_probabilities for sample in part]
        total, empty = _padding(padded, part)
        made.append(
            MicroBatch(
                update=update,
                tokens=replace(padded, completion_mask=completion_mask),
                advantages=torch.tensor([sample.advantage for sample in part], dtype=torch.float32, device=device),
                importance=torch.tensor([sample.importance for sample in part], dtype=torch.float32, device=device),
                mini_batch_tokens=tokens,
                mini_batch_samples=counted,
                positions=total,
                padded=empty,
                sampled=_rows(likelihoods, like=completion_mask.float()) if is_corrected else None,
            )
        )
    return made


def _rows(rows: Sequence[Sequence[float]], *, like: Tensor) -> Tensor:
    """Rows of numbers, 0 after each row's end, in the shape and type of ``like``."""
    made = torch.zeros_like(like)
    for index, row in enumerate(rows):
        made[index, : len(row)] = torch.tensor(row, dtype=like.dtype, device=like.device)
    return made


def _padding(tokens: TokenBatch, samples: Sequence[_Sample]) -> tuple[int, int]:
    """Positions of a forward pass over shared prompts, and how many of them are padding."""
    total = tokens.prefix.numel() + tokens.suffix.numel() + tokens.completion.numel()
    real = tokens.prefix.numel() + int(tokens.suffix_mask.sum()) + sum(len(sample.completion) for sample in samples)
    return total, total - real
