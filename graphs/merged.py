"""Weights that a run merged and goes on from: a new base, found again from any checkpoint that was trained on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import BoundaryError
from memory.records import CheckpointRecord
from memory.store import Store
from policy.config import AnyPolicyConfig

if TYPE_CHECKING:
    from policy.merge import MergedPolicy

BASE = "base"
MERGED = "merged"
"""Key of a base's record that says it is a merged policy of this home."""


def base_id(policy_id: str) -> str:
    """Checkpoint id of base weights."""
    return f"{BASE}-{policy_id.partition('-')[2]}"


def is_base(checkpoint_id: str) -> bool:
    """Whether an id names base weights, of which there is no checkpoint folder to train from."""
    return checkpoint_id == BASE or checkpoint_id.startswith(f"{BASE}-")


def merged_record(before: CheckpointRecord, merged: MergedPolicy) -> CheckpointRecord:
    """The lineage's record of a merged policy: a base whose parent is the checkpoint that was merged."""
    return CheckpointRecord(
        checkpoint_id=base_id(merged.policy_id),
        parent_id=before.checkpoint_id,
        base=before.base,
        metadata={"policy_id": merged.policy_id, MERGED: True},
    )


def policy_behind(policy: AnyPolicyConfig, store: Store, checkpoint_id: str) -> AnyPolicyConfig:
    """The configuration that a checkpoint is opened and trained with: the run's, or the same on a merged base.

    Args:
        policy: of the run.
        store: holds the checkpoint and, in its home, merged policies.
        checkpoint_id: a checkpoint or a base.

    Raises:
        NotFound: no such checkpoint.
        BoundaryError: the merged policy's folder is gone.
    """
    if checkpoint_id == BASE:
        return policy
    metadata = store.lineage.checkpoint(checkpoint_id).metadata
    policy_id = str(metadata.get("base_id") or metadata["policy_id"])
    base = next((one for one in store.lineage.checkpoints() if one.checkpoint_id == base_id(policy_id)), None)
    if base is None or not base.metadata.get(MERGED):
        return policy
    from policy.merge import MergedPolicy, merged_policy_config

    folder = (store.home / "policies" / policy_id).absolute()
    if not folder.is_dir():
        raise BoundaryError("store", f"the merged policy {policy_id} is gone from {folder.parent}; restore that folder")
    return merged_policy_config(policy, MergedPolicy(folder, policy_id))


def refuse_altered_base(checkpoint_id: str, policy_id: str) -> None:
    """Refuse weights that are not those a base is named after; their engine has just hashed them.

    Raises:
        BoundaryError: a merged policy's files were altered.
    """
    if is_base(checkpoint_id) and checkpoint_id not in (BASE, base_id(policy_id)):
        raise BoundaryError(
            "store",
            f"the folder of the merged policy holds {base_id(policy_id)}, the run recorded {checkpoint_id}; restore it",
        )
