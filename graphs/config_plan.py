"""What a dry run assumes about machines and lengths; a run computes the same whatever is written here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.records import Record


class PlanConfig(Record):
    """Assumptions behind the dry run's memory and hours. They are printed with its figures."""

    architecture: str | None = None
    """Model to count where the policy's own files are not on this machine: a packaged name (``qwen3.5-9b``,
    ``qwen3.5-4b``, ``smollm2-135m``), a ``config.json`` or its folder."""
    gpus: int | None = Field(default=None, ge=1)
    """GPUs that train; null takes the executor's processes."""
    gpu_memory_gib: float = Field(default=80.0, gt=0)
    """Memory of one GPU."""
    sharding: Literal["ddp", "zero2", "fsdp2", "zero3"] = "ddp"
    """What is cut over the GPUs that train; it must say what the accelerate configuration does."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Typical prompt; null estimates it from the suite's text, and adds an image at its pixel budget."""
    completion_tokens: int | None = Field(default=None, ge=1)
    """Typical completion; null estimates it from the suite's gold answers."""
    rollout_tokens_per_s: float = Field(default=2000.0, gt=0)
    """Completion tokens per second of one GPU that samples, at full batches."""
    train_tflops: float = Field(default=250.0, gt=0)
    """Sustained 10¹² operations per second of one GPU that trains."""
