"""A trained policy as a plain model folder: adapters merged into their base, named after its weights.

``<home>/policies/<policy id>`` holds what any transformers or vLLM loader wants, and ``merged.json`` with the hash
of every other file. It is written beside, in one rename; a folder found again is verified, never trusted.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from safetensors import SafetensorError

from harness.records import Record, canonical_json
from memory.errors import StoreError, TornFile
from memory.files import (
    discard_abandoned,
    folder_faults,
    hash_folder,
    publish_folder,
    read_json,
    temporary_name,
)
from policy.block import MERGED_MANIFEST
from policy.checkpoint import load_checkpoint, read_manifest
from policy.config import AnyPolicyConfig, HfPolicyConfig
from policy.errors import CheckpointError
from policy.load import policy_source, without_bars
from policy.training_state import load_trained
from policy.weights import all_weights_id

_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
_WRITTEN_WITH_WEIGHTS = ("config.json", "generation_config.json")


@dataclass(frozen=True)
class MergedPolicy:
    """A plain model folder."""

    path: Path
    policy_id: str
    """Content id of its weights, as an engine over it reports it; also the folder's name."""


class MergedManifest(Record):
    """``merged.json``: where a merged policy came from, and what its folder holds."""

    format: Literal[1] = 1
    policy_id: str
    checkpoint_id: str
    base_id: str
    dtype: str
    files: dict[str, str]
    """SHA-256 by file name."""


def merge_checkpoint(policy: AnyPolicyConfig, checkpoint: Path, home: Path) -> MergedPolicy:
    """Write a checkpoint's policy as one plain model folder, or find it written before.

    Args:
        policy: base model and, perhaps, adapters that the checkpoint was trained with.
        checkpoint: its folder.
        home: the folder goes to ``home/policies/<policy id>``.

    Raises:
        CheckpointError: the checkpoint is torn or belongs to another policy, or the disk refused; nothing
            half-written stays.

    Source: METHODS §2, SFT (merged before RL; fresh LoRA for RL).
    """
    root = home / "policies"
    checkpoint_id = read_manifest(checkpoint).checkpoint_id
    found = _find(root, checkpoint_id, _dtype(policy))
    if found is not None:
        return found
    discard_abandoned(root)
    saved = load_checkpoint(checkpoint)
    model, tokenizer = load_trained(policy, saved)
    policy_id = all_weights_id(model)
    folder = root / temporary_name("policy")
    try:
        folder.mkdir(parents=True)
        with without_bars():
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        _copy_rest(policy, folder)
        manifest = MergedManifest(
            policy_id=policy_id,
            checkpoint_id=checkpoint_id,
            base_id=saved.base_id,
            dtype=_dtype(policy),
            files=hash_folder(folder),
        )
        (folder / MERGED_MANIFEST).write_text(canonical_json(manifest.model_dump(mode="json")))
        publish_folder(folder, root / policy_id)
    except (OSError, SafetensorError, StoreError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(
            f"writing a merged policy under {root} failed: {error}; free disk space and resume"
        ) from error
    return MergedPolicy(root / policy_id, policy_id)


def merged_policy_config(policy: AnyPolicyConfig, merged: MergedPolicy) -> HfPolicyConfig:
    """The configuration under which training goes on from a merged policy.

    Adapters are fresh ones of the same shape; the base below them, and so the reference of a KL term, is exactly the
    merged policy.
    """
    kept = policy.model_dump(exclude={"type", "model", "revision"})
    return HfPolicyConfig(type="hf", model=str(merged.path), **kept)


def verify_merged(path: Path) -> MergedManifest:
    """Compare every file of a merged policy with its recorded hash.

    Raises:
        CheckpointError: a file is missing, torn, altered or unexpected; the message names it.
    """
    manifest = _read(path)
    faults = [fault for fault in folder_faults(path, manifest.files) if fault.name != MERGED_MANIFEST]
    if faults or path.name != manifest.policy_id:
        named = ", ".join(f"{fault.name} is {fault.kind}" for fault in faults) or f"it holds {manifest.policy_id}"
        raise CheckpointError(f"{path} is no whole merged policy: {named}; merge the checkpoint again")
    return manifest


def _read(path: Path) -> MergedManifest:
    try:
        return MergedManifest.model_validate(read_json(path / MERGED_MANIFEST))
    except (TornFile, ValidationError) as error:
        raise CheckpointError(f"{path} is no whole merged policy: {error}; merge the checkpoint again") from error


def _find(root: Path, checkpoint_id: str, dtype: str) -> MergedPolicy | None:
    """A whole folder that was merged from this checkpoint before."""
    for path in sorted(root.glob(f"policy-*/{MERGED_MANIFEST}")):
        try:
            manifest = _read(path.parent)
            if (manifest.checkpoint_id, manifest.dtype) == (checkpoint_id, dtype):
                verify_merged(path.parent)
                return MergedPolicy(path.parent, manifest.policy_id)
        except CheckpointError:
            continue  # it is written again where it is wanted
    return None


def _dtype(policy: AnyPolicyConfig) -> str:
    return policy.dtype if isinstance(policy, HfPolicyConfig) else "float32"


def _copy_rest(policy: AnyPolicyConfig, folder: Path) -> None:
    """Copy what the source folder holds besides weights: processors, chat templates, the tokenizer as it was."""
    for path in sorted(_source_folder(policy).iterdir()):
        is_wanted = path.is_file() and not path.name.endswith(_WEIGHT_FILES) and not path.name.startswith(".")
        if is_wanted and path.name not in (*_WRITTEN_WITH_WEIGHTS, MERGED_MANIFEST):
            shutil.copyfile(path, folder / path.name)


def _source_folder(policy: AnyPolicyConfig) -> Path:
    source = Path(policy_source(policy))
    if source.is_dir():
        return source
    from huggingface_hub import snapshot_download

    revision: Any = policy.revision if isinstance(policy, HfPolicyConfig) else None
    return Path(snapshot_download(str(policy_source(policy)), revision=revision, local_files_only=True))
