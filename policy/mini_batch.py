"""From a rollout batch to the micro-batches of its updates: advantages, padding, normalisers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.records import Scored
from policy import advantage
from policy.config import RlConfig
from policy.likelihood import TokenBatch, token_batch
from policy.rollout_record import RolloutBatch, RolloutGroup


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward and backward pass."""

    update: int
    """Which update of the rollout step it belongs to, from 0."""
    tokens: TokenBatch
    advantages: Tensor
    """(samples,); 0 for an attempt without a score, whose tokens are masked too."""
    mini_batch_tokens: float
    """Scored tokens of the whole update."""
    mini_batch_samples: float
    """Scored samples of the whole update."""
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
    advantage: float
    is_scored: bool


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


def micro_batches(batch: RolloutBatch, config: RlConfig, *, pad_token_id: int, device: Any = "cpu") -> list[MicroBatch]:
    """Cut a full rollout batch into micro-batches in training order; whole groups stay in one update.

    Args:
        batch: with exactly ``config.prompts_per_step`` groups to train on.
        config: of the block.
        pad_token_id: of the tokenizer.
        device: where the tensors go.
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
            _Sample(group.prompt_token_ids, attempt.token_ids, value, isinstance(attempt.verdict, Scored))
            for group, row in zip(groups[part], values[part], strict=True)
            for attempt, value in zip(group.attempts, row, strict=True)
        ]
        made += _cut(update, samples, config.micro_batch_size or len(samples), pad_token_id, device)
    return made


def _cut(update: int, samples: list[_Sample], size: int, pad_token_id: int, device: Any) -> list[MicroBatch]:
    tokens = float(sum(len(sample.completion) for sample in samples if sample.is_scored))
    scored = float(sum(sample.is_scored for sample in samples))
    made = []
    for start in range(0, len(samples), size):
        part = samples[start : start + size]
        padded = token_batch(
            [sample.prompt for sample in part],
            [sample.completion if sample.is_scored else () for sample in part],
            pad_token_id=pad_token_id,
            device=device,
        )
        values = torch.tensor([sample.advantage for sample in part], dtype=torch.float32, device=device)
        made.append(MicroBatch(update, padded, values, tokens, scored))
    return made
