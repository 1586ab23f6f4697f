"""Configuration of where a training block runs. Torch-free; it decides no weights but for the number of processes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.records import Record


class InProcessConfig(Record):
    """Train inside the calling process: for tests and notebooks."""

    type: Literal["in_process"]
    """Which executor this is."""


class SubprocessConfig(Record):
    """Train in a child process, kept warm between blocks; its crash is a typed failure, not the run's end."""

    type: Literal["subprocess"] = "subprocess"
    """Which executor this is."""
    tries: int = Field(default=2, ge=1)
    """Tries of one block when the child dies; a new try goes on from the block's last checkpoint."""
    memory_limit_mb: int | None = Field(default=None, ge=256)
    """Address-space limit of the child in MiB; null sets none."""
    silence_timeout_s: float | None = Field(default=None, gt=0)
    """A child that reports no rollout step for this long is ended and counts as dead; null waits for ever."""


class RayConfig(Record):
    """Train in a task on a Ray cluster; ``home`` must be on a file system that its nodes share."""

    type: Literal["ray"]
    """Which executor this is."""
    address: str = "auto"
    """Of an existing cluster: ``auto``, ``host:port`` or ``ray://host:port``; ``local`` starts one on this machine."""
    num_cpus: float = Field(default=1, ge=0)
    """CPUs that the task reserves."""
    num_gpus: float = Field(default=0, ge=0)
    """GPUs that the task reserves."""
    tries: int = Field(default=2, ge=1)
    """Tries of one block when its worker or node dies."""


class AccelerateConfig(Record):
    """Train in several processes started by ``accelerate launch``."""

    type: Literal["accelerate"]
    """Which executor this is."""
    num_processes: int = Field(default=2, ge=1)
    """Processes over all machines; it changes the order of sums, so it is part of a block's identity."""
    config_file: str = ""
    """An accelerate configuration (FSDP2, several machines); empty takes data parallelism on this machine."""
    tries: int = Field(default=2, ge=1)
    """Tries of one block when a process dies."""


AnyExecutorConfig = InProcessConfig | SubprocessConfig | RayConfig | AccelerateConfig
ExecutorConfig = Annotated[AnyExecutorConfig, Field(discriminator="type")]
