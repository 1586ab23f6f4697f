"""A policy in training: model, optimizer, counters; from a base or a checkpoint, and back to a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from harness.protocols import RolloutEngine
from policy.checkpoint import (
    Checkpoint,
    Progress,
    SavedCheckpoint,
    Stage,
    load_checkpoint,
    optimizer_state,
    read_manifest,
    restore_optimizer,
    restore_rng,
    rng_state,
    save_checkpoint,
)
from policy.config import AnyPolicyConfig, HfPolicyConfig
from policy.engines.rollout_engine import evaluation_engine
from policy.errors import CheckpointError
from policy.load import LoadedPolicy, load_policy, load_vision, policy_source
from policy.process import current_world, sharding
from policy.schedule import Schedule
from policy.task_stream import derive_seed
from policy.vision import VisionReader
from policy.weights import (
    all_weights_id,
    attach_lora,
    cut_like,
    freeze_vision,
    put_weights,
    trained_parameters,
    weights_id,
    whole,
)


class OptimizerSettings(Protocol):
    """What AdamW takes from a configuration of either stage."""

    @property
    def learning_rate(self) -> float:
        """Peak step size."""
        ...

    @property
    def weight_decay(self) -> float:
        """Decoupled weight decay."""
        ...


@dataclass
class TrainingState:
    """Everything that training changes, and what it needs to go on."""

    policy: AnyPolicyConfig
    model: Any
    tokenizer: Any
    base_id: str
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    stage: Stage
    progress: Progress
    rng: dict[str, Any] | None
    """Generator states to go on from; None when training starts."""
    uncut: dict[str, torch.Tensor] = field(default_factory=dict)
    """A restored optimizer's state, where parameters are going to be cut over processes."""
    vision: VisionReader | None = None
    """What turns task images into the policy's inputs; None where it sees text alone."""

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trained weights by name."""
        return trained_parameters(self.model)

    @property
    def policy_id(self) -> str:
        """Content id of the weights as they are now."""
        return _policy_id(self.policy, self.model, self.base_id)

    def scheduler(self) -> torch.optim.lr_scheduler.LambdaLR:
        """The schedule over absolute updates; it goes on from the updates already made."""
        done = self.progress.updates
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda update: self.schedule.share(done + update))

    def start_rng(self, seed: int) -> None:
        """Right before the first forward pass: set the global generators, and cut a restored optimizer's state.

        Args:
            seed: where training starts; a checkpoint has its own states.
        """
        if self.uncut:  # by now the launcher's library has cut the parameters, and not what belongs to them
            parameters = self.parameters
            self.optimizer.state.clear()  # its keys are the parameters before they were cut
            cut = {key: cut_like(value, parameters[key.partition(".")[2]]) for key, value in self.uncut.items()}
            restore_optimizer(self.optimizer, list(parameters), cut)
            self.uncut = {}
        if self.rng is not None:
            restore_rng(self.rng)
        else:
            torch.manual_seed(derive_seed("training", seed))

    def save(self, root: Path, progress: Progress) -> SavedCheckpoint:
        """Write the state as it is now; see :func:`policy.checkpoint.save_checkpoint`."""
        parameters = self.parameters
        checkpoint = Checkpoint(
            kind="adapter" if self.policy.lora else "full",
            stage=self.stage,
            schedule=self.schedule,
            base_id=self.base_id,
            policy_id=self.policy_id,
            progress=progress,
            weights={name: whole(parameter.detach()) for name, parameter in parameters.items()},
            lora=self.policy.lora,
            optimizer={name: whole(value) for name, value in optimizer_state(self.optimizer, list(parameters)).items()},
            rng=rng_state(),
        )
        world = current_world()
        if world.size == 1:
            return save_checkpoint(root, checkpoint)
        path = Path(world.as_lead(lambda: str(save_checkpoint(root, checkpoint).path)))
        return SavedCheckpoint(path, read_manifest(path))


def open_state(
    policy: AnyPolicyConfig,
    config: OptimizerSettings,
    parent: Path | None,
    *,
    schedule: Schedule,
    seed: int,
    stage: Stage = "rl",
    is_new_stage: bool = False,
) -> TrainingState:
    """Load a policy for training.

    Args:
        policy: base model and, perhaps, adapters.
        config: settings of the optimizer.
        parent: checkpoint to go on from; None starts from the base.
        schedule: of the learning rate, in absolute updates.
        seed: of fresh adapters.
        stage: what the training is.
        is_new_stage: take the parent's weights alone; optimizer, generators and counters start afresh.

    Raises:
        CheckpointError: the checkpoint is torn, belongs to another base, other adapters or another stage, or was
            trained under another schedule.
    """
    saved = load_checkpoint(parent) if parent is not None else None
    if saved is not None and not is_new_stage:
        _check_continues(saved, stage, schedule)
    model, tokenizer, base_id = _model(policy, saved, seed=seed)
    if isinstance(policy, HfPolicyConfig) and policy.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})  # acts in training mode alone
    parameters = trained_parameters(model)
    optimizer = torch.optim.AdamW(
        list(parameters.values()), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    past = None if is_new_stage else saved
    if past is not None:
        restore_optimizer(optimizer, list(parameters), past.optimizer)
    return TrainingState(
        policy=policy,
        model=model,
        tokenizer=tokenizer,
        base_id=base_id,
        optimizer=optimizer,
        schedule=schedule,
        stage=stage,
        progress=past.progress if past else Progress(),
        rng=past.rng if past else None,
        vision=load_vision(policy, tokenizer),
        uncut=past.optimizer if past and sharding() else {},
    )


def _check_continues(saved: Checkpoint, stage: Stage, schedule: Schedule) -> None:
    """Refuse to go on with counters and moments that mean something else here."""
    if saved.stage != stage:
        raise CheckpointError(
            f"checkpoint of {saved.policy_id} is of stage {saved.stage!r}, training is {stage!r}; its optimizer and "
            "counters are of no use there; merge it first (policy.merge.merge_checkpoint) and train the merged policy"
        )
    if saved.schedule is not None and not saved.schedule.is_same_course(schedule):
        raise CheckpointError(
            f"checkpoint of {saved.policy_id} was trained under {saved.schedule!r}; this block's config gives "
            f"{schedule!r}; the warmup is resolved once for the whole life, so give every block the same "
            "warmup, lifecycle_rollout_steps and updates_per_rollout_step"
        )


def open_engine(
    policy: AnyPolicyConfig, checkpoint: Path | None = None, *, threads: int | None = None
) -> RolloutEngine:
    """An engine for evaluation: the base, or a checkpoint with its adapters merged (loaded, on servers).

    Args:
        policy: base model and, perhaps, adapters.
        checkpoint: folder of a checkpoint; None takes the base.
        threads: CPU threads of torch, for the whole process; None leaves them.

    Raises:
        CheckpointError: the checkpoint is torn, or belongs to another base or other adapters.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if checkpoint is None:
        model, tokenizer = load_base(policy)
        base_id = all_weights_id(model)
        return evaluation_engine(policy, model, tokenizer, base_id, base_id=base_id, checkpoint=None)
    saved = load_checkpoint(checkpoint)
    model, tokenizer = load_trained(policy, saved)
    return evaluation_engine(policy, model, tokenizer, saved.policy_id, base_id=saved.base_id, checkpoint=checkpoint)


def load_base(policy: AnyPolicyConfig) -> LoadedPolicy:
    """The policy before any training, on the configured device in the configured number type."""
    return load_policy(
        policy_source(policy),
        revision=_revision(policy),
        device=policy.device,
        dtype=training_dtype(policy),
        sees=isinstance(policy, HfPolicyConfig) and policy.image is not None,
    )


def load_trained(policy: AnyPolicyConfig, saved: Checkpoint) -> LoadedPolicy:
    """A checkpoint's policy as one plain model for inference, adapters merged into their base.

    Raises:
        CheckpointError: the checkpoint belongs to another base or other adapters.
    """
    model, tokenizer, _ = _model(policy, saved, seed=0)
    if policy.lora:
        model = model.merge_and_unload()
    return LoadedPolicy(model.eval(), tokenizer)


def training_dtype(policy: AnyPolicyConfig) -> torch.dtype:
    """Number type of a policy's weights; adapters are kept in float32 by their library."""
    is_half = isinstance(policy, HfPolicyConfig) and policy.dtype == "bfloat16"
    return torch.bfloat16 if is_half else torch.float32


def reference_model(state: TrainingState) -> Any:
    """The base policy for a KL term: the frozen base under adapters needs no copy and is None here."""
    if state.policy.lora:
        return None
    return load_base(state.policy).model


def _model(policy: AnyPolicyConfig, saved: Checkpoint | None, *, seed: int) -> tuple[Any, Any, str]:
    model, tokenizer = load_base(policy)
    base_id = all_weights_id(model)
    if saved is not None and saved.base_id != base_id:
        raise CheckpointError(
            f"checkpoint of {saved.policy_id} was trained from base {saved.base_id}; {policy_source(policy)!r} holds "
            f"{base_id}; name the model it was trained from"
        )
    if saved is not None and saved.lora != policy.lora:
        raise CheckpointError(
            f"checkpoint of {saved.policy_id} has lora={saved.lora}; the config has lora={policy.lora}; make them equal"
        )
    freeze_vision(model)
    if policy.lora:
        model = attach_lora(model, policy.lora, seed=derive_seed("adapters", seed) % 2**32)
    if saved is not None:
        faults = put_weights(model, saved.weights)
        if faults:
            raise CheckpointError(f"weights of {saved.policy_id} do not fit {policy_source(policy)!r}: {faults[:3]}")
        found = _policy_id(policy, model, base_id)
        if found != saved.policy_id:
            raise CheckpointError(f"weights hash to {found}, the checkpoint says {saved.policy_id}; it was altered")
    return model, tokenizer, base_id


def _policy_id(policy: AnyPolicyConfig, model: Any, base_id: str) -> str:
    return weights_id(trained_parameters(model), base_id=base_id) if policy.lora else all_weights_id(model)


def _revision(policy: AnyPolicyConfig) -> str | None:
    return policy.revision if isinstance(policy, HfPolicyConfig) else None
