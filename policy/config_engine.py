"""Configuration of rollout engines. Torch-free."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.records import Record


class TransformersEngineConfig(Record):
    """The model in this process: batches sorted by length, prompts and harness prefilled once."""

    type: Literal["transformers"] = "transformers"
    """Which engine this is."""
    refill: bool = False
    """Fill a finished row's place at once with the next prompt. Faster on uneven lengths; a sample's last bits then
    depend on its neighbours, so no equality after a resume is claimed."""


class VllmServerConfig(Record):
    """One or several running vLLM servers (OpenAI-compatible), started by the user or a cluster."""

    type: Literal["vllm_server"]
    """Which engine this is."""
    urls: tuple[str, ...] = Field(min_length=1)
    """Base address of every replica, for example ``http://127.0.0.1:8000``."""
    token_env: str = ""
    """Environment variable that holds the servers' token; empty sends none."""
    max_concurrency: int = Field(default=64, ge=1)
    """Requests in flight on one replica."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one answer; a replica that passes it is given no more work in that call."""
    tries: int = Field(default=3, ge=1)
    """Tries of one prompt, on other replicas where there are any, before its attempt is unscored."""
    logprobs: Literal["raw", "processed"] = "raw"
    """What the servers report, by their ``--logprobs-mode``: ``raw`` is vLLM's default and used at temperature 1 over
    the whole vocabulary alone, ``processed`` (``processed_logprobs``) is the sampling distribution's own."""


class VllmColocatedConfig(Record):
    """vLLM inside the training process, through TRL; needs CUDA."""

    type: Literal["vllm_colocated"]
    """Which engine this is."""
    gpu_memory_utilization: float = Field(default=0.3, gt=0, le=1)
    """Share of the GPU's memory that vLLM may take."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs over which one replica is cut."""
    max_model_len: int = Field(default=32768, ge=1)
    """Prompt and completion together, in tokens."""


AnyEngineConfig = TransformersEngineConfig | VllmServerConfig | VllmColocatedConfig
EngineConfig = Annotated[AnyEngineConfig, Field(discriminator="type")]
