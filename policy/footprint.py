"""What training a policy takes: memory of each GPU, tokens and floating-point operations of a step. Torch-free.

Pure formulas over counted sizes; the counting is in :mod:`policy.footprint_meta`. They leave out what a library or an
allocator adds (CUDA contexts, fragmentation, communication buffers), so keep 10 to 20 % of a GPU free.
"""

from __future__ import annotations

from typing import Literal

from pydantic import computed_field

from harness.records import Record

Sharding = Literal["ddp", "zero2", "fsdp2", "zero3"]
"""What is cut over the GPUs: nothing; gradients and optimizer; weights as well (fsdp2 and zero3 are alike here)."""

ACTIVATION_BYTES_PER_LAYER = 34
"""Per token and hidden unit at 16 bit, all of a transformer layer's saved activations but the attention scores, which
fused attention never stores (Korthikanti et al. 2022, section 4.1)."""
CHECKPOINT_BYTES_PER_LAYER = 2
"""Per token and hidden unit at 16 bit, where only a layer's input is kept (the same, section 5)."""


class ModelSize(Record):
    """What was counted of an architecture."""

    model_type: str
    parameters: int
    """All, tied ones once."""
    vision: int
    """Of the vision tower and its projector."""
    trainable: int
    """That training changes: adapters, or all."""
    matrix: int
    """Of the language model's weight matrices that every token is multiplied with, the head included."""
    layers: int
    cached_layers: int
    """Layers with a cache that grows with the tokens (softmax attention)."""
    hidden: int
    vocabulary: int
    key_value_width: int
    """Key heads times their dimension."""
    state_elements: int
    """Of the fixed-size states of linear-attention layers, per sequence."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def language(self) -> int:
        """Everything but the vision tower."""
        return self.parameters - self.vision

    @computed_field  # type: ignore[prop-decorator]
    @property
    def trainable_share(self) -> float:
        """Trained parameters over all that are in memory, adapters included."""
        added = self.trainable if self.trainable < self.parameters else 0
        return self.trainable / (self.parameters + added)


class GpuMemory(Record):
    """Bytes on one GPU."""

    weights: int
    adapters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    engine: int = 0
    """Cache, and weights where it has its own, of a rollout engine on the same GPU."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        """Sum of the parts."""
        return sum(int(value) for _, value in self)


def training_bytes(
    size: ModelSize, *, weight_bytes: int, trained_bytes: int, sharding: Sharding, gpus: int
) -> tuple[int, int, int, int]:
    """Frozen weights, trained copies beside them, gradients and the two moments of AdamW, per GPU.

    Args:
        size: of the model.
        weight_bytes: of one element of the base weights.
        trained_bytes: of one element of what is trained, of its gradient and of each moment.
        sharding: what is cut over the GPUs.
        gpus: that share the work.
    """
    is_full = size.trainable >= size.parameters
    weights = size.parameters * (trained_bytes if is_full else weight_bytes)
    adapters = 0 if is_full else size.trainable * trained_bytes
    gradients, moments = size.trainable * trained_bytes, 2 * size.trainable * trained_bytes
    cut_weights = gpus if sharding in ("fsdp2", "zero3") else 1
    cut_rest = 1 if sharding == "ddp" else gpus
    return (
        _share(weights, cut_weights),
        _share(adapters, cut_weights),
        _share(gradients, cut_rest),
        _share(moments, cut_rest),
    )


def activation_bytes(*, layers: int, hidden: int, tokens: int, element_bytes: int, gradient_checkpointing: bool) -> int:
    """Saved activations of one forward pass.

    Args:
        layers: of the model.
        hidden: width of the residual stream.
        tokens: of a micro-batch, prompts and completions.
        element_bytes: of one activation.
        gradient_checkpointing: keep each layer's input alone, and one layer's inside while it is computed again.
    """
    per_layer = ACTIVATION_BYTES_PER_LAYER * tokens * hidden * element_bytes // 2
    if not gradient_checkpointing:
        return layers * per_layer
    return layers * CHECKPOINT_BYTES_PER_LAYER * tokens * hidden * element_bytes // 2 + per_layer


def logit_bytes(*, tokens: int, vocabulary: int) -> int:
    """Logits of the scored tokens in fp32, and their gradient."""
    return 2 * 4 * tokens * vocabulary


def cache_bytes(size: ModelSize, *, sequences: int, tokens: int, element_bytes: int) -> int:
    """Key-value cache and recurrent states of a rollout engine.

    Args:
        size: of the model.
        sequences: in flight at once.
        tokens: of one sequence, prompt and completion.
        element_bytes: of one element.
    """
    per_token = 2 * size.cached_layers * size.key_value_width * element_bytes
    return sequences * (tokens * per_token + size.state_elements * element_bytes)


def forward_flops(size: ModelSize, *, tokens: int) -> int:
    """A multiplication and an addition per matrix weight and token; attention scores are left out."""
    return 2 * size.matrix * tokens


def update_flops(size: ModelSize, *, tokens: int, gradient_checkpointing: bool) -> int:
    """Forward and backward of a trained token; frozen matrices need no gradient of their own.

    Args:
        size: of the model.
        tokens: prompts and completions.
        gradient_checkpointing: one more forward pass.
    """
    passes = 2 if size.trainable < size.parameters else 3
    return (passes + gradient_checkpointing) * forward_flops(size, tokens=tokens)


def visual_tokens(*, max_pixels: int, patch: int, merge: int) -> int:
    """Tokens of one image at its pixel budget: one per merged square of patches, rounded up."""
    return -(-max_pixels // (patch * merge) ** 2)


def _share(amount: int, parts: int) -> int:
    return -(-amount // parts)
