"""A block's settings in TRL's own words."""

from __future__ import annotations

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig

from policy.config import RlConfig
from policy.mini_batch import pass_size
from policy.telemetry import NO_TELEMETRY, Telemetry
from policy.trl_loop import QUIET


def trl_arguments(
    config: RlConfig,
    *,
    rollout_steps: int,
    output_dir: str,
    seed: int,
    use_cpu: bool,
    telemetry: Telemetry = NO_TELEMETRY,
) -> GRPOConfig:
    """TRL's settings for a block; batch sizes are per update, and TRL by itself logs, saves and draws nothing."""
    samples = config.prompts_per_step * config.group_size // config.updates_per_rollout_step
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    micro = pass_size(config, processes)
    accumulation = samples // (micro * processes)
    return GRPOConfig(
        output_dir=output_dir,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation * config.updates_per_rollout_step,
        num_generations=config.group_size,
        max_steps=rollout_steps * config.updates_per_rollout_step,
        max_completion_length=config.max_tokens,
        temperature=config.temperature,
        learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm,
        beta=0.0,
        seed=seed % 2**32,
        use_cpu=use_cpu,
        **QUIET,
        ddp_broadcast_buffers=False,  # processes make different numbers of forward passes
        report_to=list(telemetry.report_to) or "none",
        run_name=telemetry.run_name,
    )
