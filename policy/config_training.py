"""Configuration of training: SFT and reinforcement learning. Torch-free."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from harness.records import Record


class DynamicSampling(Record):
    """Replace groups without signal (all rewards equal) by groups of other prompts."""

    enabled: bool = True
    """False trains on every sampled group, as plain GRPO does."""
    tolerance: float = Field(default=1e-6, ge=0)
    """Rewards closer than this count as equal, over the whole group."""
    max_groups_factor: float = Field(default=8.0, ge=1)
    """Bound: sampled groups of one rollout step are at most this times the groups a step needs."""
    oversample: float = Field(default=1.0, ge=1)
    """First draw of a step, as a multiple of the groups needed; surplus groups with signal are unused and logged."""


class OverlongShaping(Record):
    """A soft penalty on long completions, added to the final reward when it is collected.

    ``min(-(L - (max_tokens - buffer)) / buffer * scale, 0)`` for a completion of L tokens. A suite whose own reward is
    ``shaped`` has this term in it already; use one of the two.

    Source: METHODS §2, reward (R_len).
    """

    buffer: int = Field(default=512, ge=1)
    """Tokens before ``max_tokens`` over which the penalty grows from 0; at most ``max_tokens``."""
    scale: float = Field(default=0.1, gt=0)
    """Penalty of a completion of ``max_tokens``, in reward."""


class RlConfig(Record):
    """One kind of reinforcement-learning block."""

    prompts_per_step: int = Field(default=8, ge=1)
    """Groups in every rollout step, and so prompts behind its updates."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of one prompt (G)."""
    updates_per_rollout_step: int = Field(default=1, ge=1)
    """Optimizer updates made from one rollout batch; it must divide ``prompts_per_step``."""
    micro_batch_size: int = Field(default=0, ge=0)
    """Samples per forward pass; 0 takes a whole mini-batch. Smaller saves memory and costs time."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Step size of AdamW after the warmup."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the rate rises from 0, counted over the whole life of the policy, not per block."""
    warmup_ratio: float | None = Field(default=None, ge=0, le=1)
    """The same as a share of all updates of ``lifecycle_rollout_steps``; give this or ``warmup_updates``."""
    lifecycle_rollout_steps: int | None = Field(default=None, ge=1)
    """Rollout steps of the policy's whole life, over all blocks and restarts; only ``warmup_ratio`` is resolved
    against it."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping, as a norm over all trained weights."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the rollouts; the loss scores tokens at the same temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the rollouts; the loss scores tokens under the whole distribution."""
    max_tokens: int = Field(default=128, ge=1)
    """Longest completion, in tokens."""
    advantage: Literal["grpo", "centred", "hybrid_dgpo"] = "grpo"
    """grpo divides by the group's deviation, centred does not, hybrid_dgpo also weights hard prompts up."""
    difficulty_temperature: float = Field(default=2.0, gt=0)
    """Of hybrid_dgpo's softmax over difficulty; larger is flatter."""
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """token_mean (DAPO): mean over the tokens of a mini-batch; sequence_mean (GRPO): mean over samples of each sample's
    token mean."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip of the probability ratio is ``1 - clip_low``."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip of the probability ratio is ``1 + clip_high``."""
    dual_clip: float | None = Field(default=None)
    """Bound c > 1 + clip_high on the ratio of samples with a negative advantage; None leaves it out."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the k3 divergence from the base policy, as it was before any training; 0 loads no reference."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus per nat of the policy's entropy at every trained token; 0 leaves it out and only reports it."""
    overlong: OverlongShaping | None = None
    """Penalty on long completions; None leaves rewards as the suite gave them."""
    mask_truncated: bool = False
    """Keep attempts that ran into ``max_tokens`` out of the loss; they stay in their group's baseline."""
    engine_correction_cap: float | None = Field(default=None, gt=0)
    """Where the engine is not the trained model itself (vLLM): each token's surrogate is multiplied by the trainer's
    sampling-time probability over the engine's, at most this. None multiplies by nothing."""
    dynamic_sampling: DynamicSampling = DynamicSampling()
    """What happens to groups whose rewards are all equal."""
    max_unscored_share: float = Field(default=0.05, ge=0, le=1)
    """A rollout step with a larger share of infrastructure failures is refused."""
    checkpoint_every: int = Field(default=5, ge=0)
    """Rollout steps between in-block checkpoints; 0 keeps none. An interrupted block starts again from the last
    one, or from its parent; rollouts that the ledger holds are not sampled again."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of torch; part of the run's identity, as the order of sums depends on it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.prompts_per_step % self.updates_per_rollout_step:
            raise ValueError(
                f"updates_per_rollout_step={self.updates_per_rollout_step} must divide "
                f"prompts_per_step={self.prompts_per_step}, so that every update has the same number of prompts"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip={self.dual_clip} must be larger than 1 + clip_high={1 + self.clip_high}; use 3.0 or null"
            )
        if self.overlong is not None and self.overlong.buffer > self.max_tokens:
            raise ValueError(
                f"overlong.buffer={self.overlong.buffer} must be at most max_tokens={self.max_tokens}; "
                "the penalty starts that many tokens before the limit"
            )
        if self.warmup_ratio is not None and self.warmup_updates:
            raise ValueError(
                f"warmup_updates={self.warmup_updates} and warmup_ratio={self.warmup_ratio} both say how long the "
                "warmup is; give one of them"
            )
        if self.warmup_ratio is not None and self.lifecycle_rollout_steps is None:
            raise ValueError(
                f"warmup_ratio={self.warmup_ratio} is a share of the policy's whole life; give lifecycle_rollout_steps"
            )
        mini_batch = self.prompts_per_step * self.group_size // self.updates_per_rollout_step
        if self.micro_batch_size and mini_batch % self.micro_batch_size:
            raise ValueError(
                f"micro_batch_size={self.micro_batch_size} must divide the mini-batch of {mini_batch} samples"
            )
        return self

    @property
    def resolved_warmup_updates(self) -> int:
        """Absolute number of updates of the warmup, whichever way it was given; the same in every block of a life."""
        if self.warmup_ratio is None:
            return self.warmup_updates
        assert self.lifecycle_rollout_steps is not None, "the validator saw to it"
        return warmup_updates(self.warmup_ratio, self.lifecycle_rollout_steps * self.updates_per_rollout_step)


def warmup_updates(ratio: float, updates: int) -> int:
    """A warmup ratio as a number of updates, rounded up; a product that is whole but for rounding is taken as whole.

    Args:
        ratio: share of all updates, 0..1.
        updates: of the whole life or stage.

    Source: METHODS §2, DAPO (ratio of the whole lifecycle, resolved once).
    """
    return math.ceil(round(ratio * updates, 9))


class SftConfig(Record):
    """Supervised fine-tuning on audited traces; only completion tokens count in the loss.

    Source: METHODS §2, SFT.
    """

    epochs: int = Field(default=2, ge=1)
    """Passes over the traces."""
    batch_size: int = Field(default=8, ge=1)
    """Samples of one update."""
    micro_batch_size: int = Field(default=0, ge=0)
    """Records per forward pass of one process; 0 takes a whole batch. Smaller saves memory and costs time."""
    learning_rate: float = Field(default=5e-6, gt=0)
    """Peak step size of AdamW."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls after the warmup, over the whole of this stage."""
    warmup_ratio: float = Field(default=0.05, ge=0, le=1)
    """Share of the stage's updates over which the rate rises from 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping, as a norm over all trained weights."""
    max_tokens: int = Field(default=24576, ge=2)
    """Longest prompt and completion together; a longer record is an error that names it, never cut."""
    packing: bool = False
    """Put several short records into one row; each attends only to itself, which is tried out on the policy before
    training: one that cannot keep them apart is refused."""
    checkpoint_every: int = Field(default=20, ge=0)
    """Updates between checkpoints inside the stage; 0 keeps none. An interrupted stage starts again from the last."""
    seed: int | None = 42
    """Of the order of records and of dropout; null takes the run's seed."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of torch; part of the run's identity, as the order of sums depends on it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.micro_batch_size and self.batch_size % self.micro_batch_size:
            raise ValueError(f"micro_batch_size={self.micro_batch_size} must divide batch_size={self.batch_size}")
        return self
