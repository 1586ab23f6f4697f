"""Weights that a run merged and goes on from: a new base, found again from any checkpoint that was trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BoundaryError
from memory.files import write_json
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


def merged_id(policy_id: str) -> str:
    """Checkpoint id of merged weights; the same weights may also be some run's first base, under another id."""
    return f"{BASE}-{MERGED}-{policy_id.partition('-')[2]}"


def is_base(checkpoint_id: str) -> bool:
    """Whether an id names base weights, of which there is no checkpoint folder to train from."""
    return checkpoint_id == BASE or checkpoint_id.startswith(f"{BASE}-")


def merged_record(before: CheckpointRecord, merged: MergedPolicy) -> CheckpointRecord:
    """The lineage's record of a merged policy: a base whose parent is the checkpoint that was merged."""
    return CheckpointRecord(
        checkpoint_id=merged_id(merged.policy_id),
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
    base = _merged_base(store, checkpoint_id)
    if base is None:
        return policy
    from policy.merge import MergedPolicy, merged_policy_config

    policy_id = str(base.metadata["policy_id"])
    folder = _folder(store, policy_id)
    if not folder.is_dir():
        raise BoundaryError("store", f"the merged policy {policy_id} is gone from {folder.parent}; restore that folder")
    return merged_policy_config(policy, MergedPolicy(folder, policy_id))


def mend_merged(policy: AnyPolicyConfig, store: Store, checkpoint_id: str) -> None:
    """See that the merged policy under a checkpoint is whole, once per process; merge it again where it is not.

    Args:
        policy: of the run.
        store: holds the checkpoint that was merged.
        checkpoint_id: a checkpoint or a base; one without a merged policy under it needs nothing.

    Raises:
        BoundaryError: merging again gives other weights than those recorded.
        TornFile: the checkpoint that was merged is torn too.
    """
    base = _merged_base(store, checkpoint_id)
    if base is None or base.parent_id is None:
        return
    policy_id = str(base.metadata["policy_id"])
    folder = _folder(store, policy_id)
    if folder in _SEEN_WHOLE:
        return
    from policy.errors import CheckpointError
    from policy.merge import merge_checkpoint, verify_merged

    try:
        verify_merged(folder)
    except CheckpointError:
        mend_merged(policy, store, base.parent_id)
        before = policy_behind(policy, store, base.parent_id)
        again = merge_checkpoint(before, store.verify_checkpoint(base.parent_id), store.home)
        if again.policy_id != policy_id:
            raise BoundaryError(
                "store",
                f"the merged policy {policy_id} was not whole, and merging {base.parent_id} again gave "
                f"{again.policy_id}; restore {folder}",
            ) from None
    _SEEN_WHOLE.add(folder)


def keep_base(store: Store, record: CheckpointRecord) -> None:
    """Record base weights; the first record of the same weights stands, whatever folder they came from."""
    if any(one.checkpoint_id == record.checkpoint_id for one in store.lineage.checkpoints()):
        return
    folder = store.lineage.checkpoint_folder(record.checkpoint_id)
    write_json(folder / "base.json", {"base": record.base, **record.metadata})
    store.lineage.save_checkpoint(record)


_SEEN_WHOLE: set[Path] = set()
"""Merged policies whose files this process has compared with their hashes."""


def _merged_base(store: Store, checkpoint_id: str) -> CheckpointRecord | None:
    """The merged policy that a checkpoint stands on, or is."""
    known = {one.checkpoint_id: one for one in store.lineage.checkpoints()}
    if is_base(checkpoint_id) and checkpoint_id not in known:
        return None  # the run's own base, perhaps; whoever loads it compares its weights
    record = known.get(checkpoint_id) or store.lineage.checkpoint(checkpoint_id)
    if record.metadata.get(MERGED):
        return record
    return known.get(merged_id(str(record.metadata.get("base_id") or "")))


def _folder(store: Store, policy_id: str) -> Path:
    return (store.home / "policies" / policy_id).absolute()


def refuse_altered_base(checkpoint_id: str, policy_id: str) -> None:
    """Refuse weights that are not those a base is named after; their engine has just hashed them.

    Raises:
        BoundaryError: a merged policy's files were altered.
    """
    if is_base(checkpoint_id) and checkpoint_id not in (BASE, base_id(policy_id), merged_id(policy_id)):
        raise BoundaryError(
            "store",
            f"the folder of the merged policy holds {merged_id(policy_id)}, the run recorded {checkpoint_id}; "
            "restore it",
        )
