"""Configuration of policies and of their training. Torch-free: parsing it never imports a trainer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from harness.records import Record
from policy.config_engine import AnyEngineConfig, EngineConfig, TransformersEngineConfig
from policy.config_executor import AnyExecutorConfig, ExecutorConfig, SubprocessConfig
from policy.config_training import DynamicSampling, OverlongShaping, RlConfig, SftConfig


class LoraConfig(Record):
    """Low-rank adapters on a frozen base."""

    r: int = Field(default=16, ge=1)
    """Rank of every adapter; more rank, more trainable parameters."""
    alpha: int = Field(default=32, ge=1)
    """Scale: the adapter's output is multiplied by ``alpha / r``."""
    dropout: float = Field(default=0.05, ge=0, lt=1)
    """Dropout on the adapter's input while training."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get an adapter; empty means all linear layers of the language model but the
    head; a vision tower and its projector are never trained."""


class ImageConfig(Record):
    """How a vision-language policy sees a task's image."""

    max_pixels: int = Field(default=1_000_000, ge=1024)
    """Pixel budget of one image, after resizing; a larger image is scaled down, its shape kept."""


class TelemetryConfig(Record):
    """Where training curves go besides the trace; it decides no weights."""

    report_to: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ()
    """Trackers of the transformers library; each needs its package. wandb and mlflow may send data to where their own
    environment variables say."""


class PocketPolicyConfig(Record):
    """The policy shipped inside this package: about one million parameters, trained on CPU."""

    type: Literal["pocket"] = "pocket"
    """Which policy this is."""
    lora: LoraConfig | None = None
    """Adapters to train; None trains all weights, which at this size is cheaper and stronger."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the policy runs; equality after a resume is claimed for cpu."""
    batch_size: int = Field(default=64, ge=1)
    """Rows decoded at once by the engine; part of the run's identity, as batching moves last bits."""
    engine: EngineConfig = TransformersEngineConfig()
    """What samples from the policy."""
    executor: ExecutorConfig = SubprocessConfig()
    """Where training runs."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Where training curves go besides the trace."""


class HfPolicyConfig(Record):
    """Any transformers causal language model with a chat template."""

    type: Literal["hf"]
    """Which policy this is."""
    model: str = Field(min_length=1)
    """Directory or hub id."""
    revision: str | None = None
    """Commit of the hub model; None takes what the cache or the hub has now."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the policy runs; equality after a resume is claimed for cpu."""
    lora: LoraConfig | None = LoraConfig()
    """Adapters to train; None trains all weights."""
    batch_size: int = Field(default=32, ge=1)
    """Rows decoded at once by the engine; part of the run's identity, as batching moves last bits."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the frozen and the trained weights; on CPU keep float32, which is faster there and exact on resume."""
    gradient_checkpointing: bool = False
    """Compute activations twice to save memory."""
    image: ImageConfig | None = None
    """Set for a vision-language model: tasks' images are shown to it. Null sees text alone."""
    engine: EngineConfig = TransformersEngineConfig()
    """What samples from the policy."""
    executor: ExecutorConfig = SubprocessConfig()
    """Where training runs."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Where training curves go besides the trace."""

    @model_validator(mode="after")
    def _shows_images(self) -> Self:
        engine = self.engine
        if self.image is not None and (engine.type != "transformers" or engine.refill):
            raise ValueError(
                f"image is set and engine.type={engine.type} (or refill) sends token ids alone; show images by the "
                "transformers engine without refill"
            )
        return self


class ApiPolicyConfig(Record):
    """A model behind an API: it is prompted and evaluated, never trained (strategies that only change the harness)."""

    type: Literal["api"]
    """Which policy this is."""
    model: str = Field(min_length=1)
    """LiteLLM model string, for example ``openai/gpt-5-mini``."""
    api_base: str | None = None
    """Address of a server that is not the provider's own."""
    api_key_env: str | None = None
    """Environment variable that holds the key; null takes the provider's usual one."""
    max_concurrency: int = Field(default=8, ge=1)
    """Calls in flight."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for one answer."""
    omit: tuple[Literal["temperature", "top_p", "seed"], ...] = ()
    """Sampling parameters that this model refuses; they are not sent. ``top_p`` is sent only below 1."""
    prompt_usd_per_million: float | None = Field(default=None, ge=0)
    """US dollars per million prompt tokens; null asks LiteLLM's price table."""
    completion_usd_per_million: float | None = Field(default=None, ge=0)
    """US dollars per million completion tokens; set both prices or none."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Further request parameters, passed on as they are, for example ``{"reasoning_effort": "low"}``."""

    @model_validator(mode="after")
    def _whole_price(self) -> Self:
        if (self.prompt_usd_per_million is None) != (self.completion_usd_per_million is None):
            raise ValueError("set both of prompt_usd_per_million and completion_usd_per_million, or none of them")
        return self


AnyPolicyConfig = PocketPolicyConfig | HfPolicyConfig
"""Policies whose weights are here, so that they can be trained."""
PolicyConfig = Annotated[AnyPolicyConfig, Field(discriminator="type")]
RunPolicyConfig = Annotated[AnyPolicyConfig | ApiPolicyConfig, Field(discriminator="type")]
"""Policies that a run can start from; an API's is only ever prompted."""


def sees(policy: AnyPolicyConfig | ApiPolicyConfig) -> bool:
    """Whether tasks' images are shown to a policy."""
    return isinstance(policy, HfPolicyConfig) and policy.image is not None


__all__ = [
    "AnyEngineConfig",
    "AnyExecutorConfig",
    "AnyPolicyConfig",
    "ApiPolicyConfig",
    "DynamicSampling",
    "EngineConfig",
    "ExecutorConfig",
    "HfPolicyConfig",
    "ImageConfig",
    "LoraConfig",
    "OverlongShaping",
    "PocketPolicyConfig",
    "PolicyConfig",
    "RlConfig",
    "RunPolicyConfig",
    "SftConfig",
    "TelemetryConfig",
    "sees",
]
