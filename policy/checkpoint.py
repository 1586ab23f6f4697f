"""Checkpoints: safetensors and JSON in a content-addressed folder, whole or absent.

A folder holds ``weights.safetensors`` (all weights in fp32, or the adapters'), ``optimizer.safetensors``,
``rng.json`` and ``checkpoint.json``, which carries the hash of every other file. The checkpoint id is
the hash of that manifest, the policy id the hash of the weights alone. Nothing is pickled.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from harness.records import Record, canonical_json, content_id
from memory.errors import StoreError, TornFile
from memory.files import FileFault, folder_faults, hash_file, publish_folder, read_json, temporary_name
from policy.config import LoraConfig
from policy.errors import CheckpointError
from policy.schedule import Schedule

MANIFEST = "checkpoint.json"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
RNG = "rng.json"


Stage = Literal["sft", "rl"]
"""What made a checkpoint: supervised fine-tuning, or blocks of reinforcement learning."""
_SINCE_FORMAT_2 = {"stage", "schedule"}


class Progress(Record):
    """How far training has come: in ``rl`` since the base, all blocks together; in ``sft`` since the stage began."""

    rollout_steps: int = 0
    updates: int = 0
    position: int = 0
    """Next position of the sampler: of the task stream, or of the stream of SFT records."""


class Manifest(Record):
    """``checkpoint.json``: everything about a checkpoint but its tensors."""

    format: Literal[1, 2] = 2
    """Format 1 has no stage and no schedule; it was written by reinforcement learning alone."""
    kind: Literal["full", "adapter"]
    stage: Stage = "rl"
    base_id: str
    """Policy id of the base that training started from."""
    policy_id: str
    """Hash of the weights alone."""
    lora: LoraConfig | None = None
    progress: Progress
    schedule: Schedule | None = None
    """The learning rate's course in absolute updates; None in format 1."""
    files: dict[str, str]
    """SHA-256 by file name."""

    @property
    def checkpoint_id(self) -> str:
        """Hash of the manifest, and through it of every file."""
        left_out = _SINCE_FORMAT_2 if self.format == 1 else set()
        return content_id(self.model_dump(mode="json", exclude=left_out), prefix="checkpoint")


@dataclass(frozen=True)
class Checkpoint:
    """A policy in training, in memory."""

    kind: Literal["full", "adapter"]
    base_id: str
    policy_id: str
    progress: Progress
    weights: dict[str, torch.Tensor]
    stage: Stage = "rl"
    schedule: Schedule | None = None
    lora: LoraConfig | None = None
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    """``<state>.<parameter>`` by name, for example ``exp_avg.model.norm.weight``."""
    rng: dict[str, JsonValue] = field(default_factory=dict)
    """Generator states, see :func:`rng_state`."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def checkpoint_id(self) -> str:
        """Content id; also the folder's name."""
        return self.manifest.checkpoint_id

    @property
    def policy_id(self) -> str:
        """Hash of the weights alone."""
        return self.manifest.policy_id


def save_checkpoint(root: Path, checkpoint: Checkpoint) -> SavedCheckpoint:
    """Write a checkpoint to ``root/<checkpoint id>`` in one rename.

    Raises:
        CheckpointError: the disk refused; nothing was left behind.
    """
    folder = root / temporary_name("checkpoint")
    try:
        folder.mkdir(parents=True)
        save_file(_plain(checkpoint.weights), folder / WEIGHTS, metadata={"format": "pt"})
        save_file(_plain(checkpoint.optimizer), folder / OPTIMIZER, metadata={"format": "pt"})
        (folder / RNG).write_text(canonical_json(checkpoint.rng))
        manifest = Manifest(
            kind=checkpoint.kind,
            stage=checkpoint.stage,
            base_id=checkpoint.base_id,
            policy_id=checkpoint.policy_id,
            lora=checkpoint.lora,
            progress=checkpoint.progress,
            schedule=checkpoint.schedule,
            files={name: hash_file(folder / name) for name in (WEIGHTS, OPTIMIZER, RNG)},
        )
        (folder / MANIFEST).write_text(canonical_json(manifest.model_dump(mode="json")))
        path = root / manifest.checkpoint_id
        publish_folder(folder, path)
    except (OSError, SafetensorError, StoreError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(
            f"saving a checkpoint under {root} failed: {error}; free disk space and resume"
        ) from error
    return SavedCheckpoint(path, manifest)


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint folder, checked against the folder's name but not against its files.

    Raises:
        CheckpointError: missing, torn, altered or of another format.
    """
    try:
        manifest = Manifest.model_validate(read_json(path / MANIFEST))
    except (TornFile, ValidationError) as error:
        raise CheckpointError(f"{path} is no whole checkpoint: {error}; resume from an earlier one") from error
    if path.name.startswith("checkpoint-") and path.name != manifest.checkpoint_id:
        raise CheckpointError(f"{path} holds {manifest.checkpoint_id}; it was altered; resume from an earlier one")
    return manifest


def verify_checkpoint(path: Path) -> Manifest:
    """Compare every file of a checkpoint with its recorded hash.

    Raises:
        CheckpointError: a file is missing, torn, altered or unexpected; the message names it.
    """
    manifest = read_manifest(path)
    faults = [fault for fault in folder_faults(path, manifest.files) if fault != _MANIFEST_ITSELF]
    if faults:
        named = ", ".join(f"{fault.name} is {fault.kind}" for fault in faults)
        raise CheckpointError(f"{path} is not whole: {named}; resume from an earlier one")
    return manifest


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint that is whole; see :func:`verify_checkpoint`."""
    manifest = verify_checkpoint(path)
    return Checkpoint(
        kind=manifest.kind,
        stage=manifest.stage,
        schedule=manifest.schedule,
        base_id=manifest.base_id,
        policy_id=manifest.policy_id,
        progress=manifest.progress,
        lora=manifest.lora,
        weights=load_file(path / WEIGHTS),
        optimizer=load_file(path / OPTIMIZER),
        rng=read_json(path / RNG),
    )


_MANIFEST_ITSELF = FileFault(name=MANIFEST, kind="unexpected")


def optimizer_state(optimizer: Any, names: list[str]) -> dict[str, torch.Tensor]:
    """State tensors of an optimizer over parameters named in the order of its groups."""
    state = optimizer.state_dict()["state"]
    return {
        f"{key}.{names[index]}": torch.as_tensor(value)
        for index, entry in state.items()
        for key, value in entry.items()
    }


def restore_optimizer(optimizer: Any, names: list[str], tensors: dict[str, torch.Tensor]) -> None:
    """Put saved state tensors into a fresh optimizer; its settings stay those of its constructor.

    Raises:
        CheckpointError: the state belongs to other parameters.
    """
    index = {name: position for position, name in enumerate(names)}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if name not in index:
            raise CheckpointError(
                f"optimizer state for {name!r}, which this policy does not train; check lora and model"
            )
        state.setdefault(index[name], {})[kind] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def rng_state() -> dict[str, JsonValue]:
    """States of torch's, Python's and NumPy's global generators as JSON."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, JsonValue] = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "python": [version, list(words), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
    }
    if torch.cuda.is_available():
        state["cuda"] = [generator.numpy().tobytes().hex() for generator in torch.cuda.get_rng_state_all()]
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Set the global generators to saved states."""
    torch.set_rng_state(_bytes_tensor(state["torch"]))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_bytes_tensor(text) for text in state["cuda"]])


def _bytes_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _plain(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in sorted(tensors.items())}
