"""A policy in training: model, optimizer, counters; from a base or a checkpoint, and back to a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from policy.checkpoint import (
    Checkpoint,
    Progress,
    SavedCheckpoint,
    load_checkpoint,
    optimizer_state,
    restore_optimizer,
    restore_rng,
    rng_state,
    save_checkpoint,
)
from policy.config import AnyPolicyConfig, HfPolicyConfig, RlConfig
from policy.engine import TransformersEngine
from policy.errors import CheckpointError
from policy.load import load_policy, policy_source
from policy.task_stream import derive_seed
from policy.weights import all_weights_id, attach_lora, put_weights, trained_parameters, weights_id


@dataclass
class TrainingState:
    """Everything that training changes, and what it needs to go on."""

    policy: AnyPolicyConfig
    model: Any
    tokenizer: Any
    base_id: str
    optimizer: torch.optim.Optimizer
    progress: Progress
    rng: dict[str, Any] | None
    """Generator states to go on from; None when training starts."""

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trained weights by name."""
        return trained_parameters(self.model)

    @property
    def policy_id(self) -> str:
        """Content id of the weights as they are now."""
        return _policy_id(self.policy, self.model, self.base_id)

    def scheduler(self, config: RlConfig) -> torch.optim.lr_scheduler.LambdaLR:
        """Linear warmup over absolute updates, then constant; it goes on from the updates already made."""
        done, warmup = self.progress.updates, config.warmup_updates

        def share(update: int) -> float:
            return min(1.0, (done + update + 1) / warmup) if warmup else 1.0

        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, share)

    def start_rng(self, seed: int) -> None:
        """Set the global generators: to the checkpoint's states, or from ``seed`` when training starts."""
        if self.rng is not None:
            restore_rng(self.rng)
        else:
            torch.manual_seed(derive_seed("training", seed))

    def save(self, root: Path, progress: Progress) -> SavedCheckpoint:
        """Write the state as it is now; see :func:`policy.checkpoint.save_checkpoint`."""
        parameters = self.parameters
        checkpoint = Checkpoint(
            kind="adapter" if self.policy.lora else "full",
            base_id=self.base_id,
            policy_id=self.policy_id,
            progress=progress,
            weights={name: parameter.detach() for name, parameter in parameters.items()},
            lora=self.policy.lora,
            optimizer=optimizer_state(self.optimizer, list(parameters)),
            rng=rng_state(),
        )
        return save_checkpoint(root, checkpoint)


def open_state(policy: AnyPolicyConfig, config: RlConfig, parent: Path | None, *, seed: int) -> TrainingState:
    """Load a policy for training.

    Args:
        policy: base model and, perhaps, adapters.
        config: settings of the optimizer.
        parent: checkpoint to go on from; None starts from the base.
        seed: of fresh adapters.

    Raises:
        CheckpointError: the checkpoint is torn, or belongs to another base or other adapters.
    """
    saved = load_checkpoint(parent) if parent is not None else None
    model, tokenizer, base_id = _model(policy, saved, seed=seed)
    parameters = trained_parameters(model)
    optimizer = torch.optim.AdamW(
        list(parameters.values()), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    if saved is not None:
        restore_optimizer(optimizer, list(parameters), saved.optimizer)
    return TrainingState(
        policy=policy,
        model=model,
        tokenizer=tokenizer,
        base_id=base_id,
        optimizer=optimizer,
        progress=saved.progress if saved else Progress(),
        rng=saved.rng if saved else None,
    )


def open_engine(
    policy: AnyPolicyConfig, checkpoint: Path | None = None, *, threads: int | None = None
) -> TransformersEngine:
    """An engine for evaluation: the base, or a checkpoint with its adapters merged.

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
        model, tokenizer = load_policy(policy_source(policy), revision=_revision(policy), device=policy.device)
        return TransformersEngine(model, tokenizer, all_weights_id(model), policy.batch_size)
    saved = load_checkpoint(checkpoint)
    model, tokenizer, _ = _model(policy, saved, seed=0)
    if policy.lora:
        model = model.merge_and_unload()
    return TransformersEngine(model.eval(), tokenizer, saved.policy_id, policy.batch_size)


def reference_model(state: TrainingState) -> Any:
    """The base policy for a KL term: the frozen base under adapters needs no copy and is None here."""
    if state.policy.lora:
        return None
    source = policy_source(state.policy)
    return load_policy(source, revision=_revision(state.policy), device=state.policy.device).model


def _model(policy: AnyPolicyConfig, saved: Checkpoint | None, *, seed: int) -> tuple[Any, Any, str]:
    model, tokenizer = load_policy(policy_source(policy), revision=_revision(policy), device=policy.device)
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
    return weights_id(trained_parameters(model), base_id=base_id if policy.lora else "")


def _revision(policy: AnyPolicyConfig) -> str | None:
    return policy.revision if isinstance(policy, HfPolicyConfig) else None
