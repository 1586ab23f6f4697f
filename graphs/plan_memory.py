"""Memory and hours of a configuration on GPUs, for a dry run. Torch is imported when a model is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import computed_field

from evals.suites.base import Suite
from graphs.config import RunConfig, VaceConfig
from graphs.config_train import RlStageConfig, SftStageConfig
from graphs.plan import Plan
from graphs.plan_cost import Sizes, gpus_that_sample, gpus_that_train, is_on_gpu, sizes_of
from harness.records import Record
from policy.config import AnyPolicyConfig, RlConfig, SftConfig
from policy.footprint import (
    GpuMemory,
    ModelSize,
    activation_bytes,
    cache_bytes,
    forward_flops,
    logit_bytes,
    training_bytes,
    update_flops,
)

GIB = 1 << 30
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


class StageFootprint(Record):
    """One kind of training block."""

    name: str
    samples: int
    """Trained samples of a rollout step, or of an SFT update."""
    tokens: int
    """Typical prompt and completion tokens of them."""
    longest_tokens: int
    """Of the longest sample that memory is planned for."""
    steps: int
    """Rollout steps, or SFT updates, of the stage."""
    flops: float
    """Of one step: forward passes for old and reference log-probabilities, forward and backward for the updates."""
    training: GpuMemory
    """On each GPU that trains."""
    rollout_gib: float
    """On each GPU that only samples; 0 where none does."""
    rollout_hours: float
    training_hours: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hours(self) -> float:
        """Rollouts and updates one after the other, as they run."""
        return self.rollout_hours + self.training_hours


class Footprint(Record):
    """What the model takes, by stage."""

    source: str
    """What was counted."""
    size: ModelSize
    gpus: int
    """That train."""
    rollout_gpus: int
    """That only sample."""
    gpu_memory_gib: float
    is_on_gpu: bool
    """False on CPUs, where a process takes a GPU's place in every figure."""
    stages: tuple[StageFootprint, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def dry_run_view(config: RunConfig, plan: Plan, suite: Suite) -> dict[str, Any]:
    """What a dry run shows, as JSON; a model of the user's choice is counted, the packaged one is known."""
    view: dict[str, Any] = {"config": config.model_dump(mode="json"), "plan": plan.model_dump(mode="json")}
    if config.policy.type == "hf":
        footprint = plan_footprint(config, suite)
        view["footprint"] = footprint.model_dump(mode="json") if footprint else None
    return view


def find_architecture(config: RunConfig) -> str:
    """What a plan can count: the policy's own files, else the architecture that the plan names, else nothing."""
    if config.policy.type == "hf":
        folder = Path(config.policy.model)
        return str(folder) if (folder / "config.json").is_file() else config.plan.architecture or ""
    return config.plan.architecture or ""


def plan_footprint(config: RunConfig, suite: Suite) -> Footprint | None:
    """Count the policy on the meta device and apply the formulas; None where nothing can be counted.

    Raises:
        PolicyLoadError: the named architecture cannot be built.
    """
    policy = config.policy
    if policy.type == "api":
        return None
    from policy.footprint_meta import measure_architecture
    from policy.load import pocket_folder

    source = str(pocket_folder()) if policy.type == "pocket" else find_architecture(config)
    if not source:
        return None
    size = measure_architecture(source, policy.lora, sees=getattr(policy, "image", None) is not None)
    sizes = sizes_of(config, suite)
    stages = tuple(_stage(config, policy, size, sizes, name, settings, count)
                   for name, settings, count in _blocks(config, suite))  # fmt: skip
    rollout_gpus = len(policy.engine.urls) if policy.engine.type == "vllm_server" else 0
    full = [stage for stage in stages if stage.training.total > config.plan.gpu_memory_gib * GIB]
    return Footprint(
        source=source if policy.type == "hf" else "the packaged pocket policy",
        size=size,
        gpus=gpus_that_train(config),
        rollout_gpus=rollout_gpus,
        gpu_memory_gib=config.plan.gpu_memory_gib,
        is_on_gpu=is_on_gpu(config),
        stages=stages,
        assumptions=_assumptions(config, sizes),
        warnings=tuple(
            f"{stage.name}: {stage.training.total / GIB:.1f} GiB of {config.plan.gpu_memory_gib:g} on a GPU; shard "
            "more, take a smaller micro_batch_size, gradient_checkpointing or more GPUs"
            for stage in full
        ),
    )


def _blocks(config: RunConfig, suite: Suite) -> list[tuple[str, RlConfig | SftConfig, int]]:
    """Stages by name: settings, and rollout steps or, for SFT, records."""
    strategy = config.strategy
    if isinstance(strategy, VaceConfig):
        return [("RL blocks", strategy.rl, strategy.rollout_steps * strategy.rounds)] if strategy.trains else []
    pool = len(suite.tasks(split="train")[: config.budget.tasks.train])
    blocks: list[tuple[str, RlConfig | SftConfig, int]] = []
    for number, stage in enumerate(strategy.stages, 1):
        if isinstance(stage, SftStageConfig):
            blocks.append((f"stage {number} (sft)", stage.sft, min(stage.traces or pool, pool)))
        if isinstance(stage, RlStageConfig):
            blocks.append((f"stage {number} (rl)", stage.rl, stage.rollout_steps))
    return blocks


def _stage(
    config: RunConfig, policy: AnyPolicyConfig, size: ModelSize, sizes: Sizes, name: str,
    settings: RlConfig | SftConfig, count: int,
) -> StageFootprint:  # fmt: skip
    gpus, plan = gpus_that_train(config), config.plan
    is_rl = isinstance(settings, RlConfig)
    if isinstance(settings, RlConfig):
        samples, steps = settings.prompts_per_step * settings.group_size, count
        batch, longest = samples // settings.updates_per_rollout_step, sizes.prompt_tokens + settings.max_tokens
        scored = settings.max_tokens
    else:
        samples, batch = settings.batch_size, settings.batch_size
        steps, longest = -(-settings.epochs * count // settings.batch_size), settings.max_tokens
        scored = min(settings.max_tokens, config.strategy.answer_tokens)  # the loss counts completions alone
    micro = settings.micro_batch_size or -(-batch // gpus)
    tokens = samples * (sizes.prompt_tokens + sizes.completion_tokens)
    checkpointing = getattr(policy, "gradient_checkpointing", False)
    passes = (1 + (settings.beta > 0)) if isinstance(settings, RlConfig) else 0
    flops = passes * forward_flops(size, tokens=tokens) + update_flops(
        size, tokens=tokens, gradient_checkpointing=checkpointing
    )
    engines = gpus_that_sample(config)
    return StageFootprint(
        name=name,
        samples=samples,
        tokens=tokens,
        longest_tokens=longest,
        steps=steps,
        flops=float(flops),
        training=_memory(config, policy, size, micro=micro, longest=longest, scored=scored, is_rl=is_rl),
        rollout_gib=_server_gib(policy, size, sequences=-(-samples // engines), tokens=longest) if is_rl else 0.0,
        rollout_hours=steps * samples * sizes.completion_tokens / (plan.rollout_tokens_per_s * engines) / 3600
        if is_rl
        else 0.0,
        training_hours=steps * flops / (plan.train_tflops * 1e12 * gpus) / 3600,
    )


def _memory(
    config: RunConfig, policy: AnyPolicyConfig, size: ModelSize, *, micro: int, longest: int, scored: int, is_rl: bool
) -> GpuMemory:
    element = ELEMENT_BYTES[getattr(policy, "dtype", "float32")]
    weights, adapters, gradients, optimizer = training_bytes(
        size,
        weight_bytes=element,
        trained_bytes=4 if policy.lora else element,
        sharding=config.plan.sharding,
        gpus=gpus_that_train(config),
    )
    engine = 0
    if is_rl and policy.engine.type == "vllm_colocated":
        engine = round(policy.engine.gpu_memory_utilization * config.plan.gpu_memory_gib * GIB)
    if is_rl and policy.engine.type == "transformers":  # the model itself samples; its cache comes on top
        engine = cache_bytes(size, sequences=policy.batch_size, tokens=longest, element_bytes=element)
    return GpuMemory(
        weights=weights,
        adapters=adapters,
        gradients=gradients,
        optimizer=optimizer,
        activations=activation_bytes(
            layers=size.layers,
            hidden=size.hidden,
            tokens=micro * longest,
            element_bytes=element,
            gradient_checkpointing=getattr(policy, "gradient_checkpointing", False),
        ),
        logits=logit_bytes(tokens=micro * scored, vocabulary=size.vocabulary),
        engine=engine,
    )


def _server_gib(policy: AnyPolicyConfig, size: ModelSize, *, sequences: int, tokens: int) -> float:
    """Weights, adapters and the cache of all requests in flight at their longest, on a GPU of a vLLM server."""
    if policy.engine.type != "vllm_server":
        return 0.0
    sequences = min(sequences, policy.engine.max_concurrency)
    element = ELEMENT_BYTES[getattr(policy, "dtype", "float32")]
    weights = (size.parameters + (size.trainable if policy.lora else 0)) * element
    return (weights + cache_bytes(size, sequences=sequences, tokens=tokens, element_bytes=element)) / GIB


def _assumptions(config: RunConfig, sizes: Sizes) -> tuple[str, ...]:
    plan = config.plan
    unit, units = ("GPU", "GPUs") if is_on_gpu(config) else ("process", "processes")
    return (
        f"{sizes.prompt_tokens:,} prompt and {sizes.completion_tokens:,} completion tokens are typical",
        f"{plan.rollout_tokens_per_s:,.0f} completion tokens/s on each {unit} that samples",
        f"{plan.train_tflops:g} TFLOP/s on each of {gpus_that_train(config)} {units} that train; cut: {plan.sharding}",
        "memory at the longest sample of every row of a micro-batch; no allocator, context or communication buffers",
        "no groups replaced by dynamic sampling, no evaluations, no start-up in the hours",
    )
