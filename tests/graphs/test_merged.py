"""Which weights stand under a checkpoint, read from the lineage alone."""

from pathlib import Path

import pytest

from graphs.merged import base_id, is_base, merged_record, policy_behind, refuse_altered_base
from harness.errors import BoundaryError
from memory.errors import NotFound
from memory.files import write_json
from memory.records import CheckpointRecord
from memory.store import Store
from policy.config import LoraConfig, PocketPolicyConfig
from policy.merge import MergedPolicy

POCKET = PocketPolicyConfig(lora=LoraConfig(r=2), batch_size=7)


@pytest.fixture
def store(tmp_path):
    """base -> tuned -> merged -> trained, and a checkpoint trained on the base itself."""
    with Store.open(tmp_path) as opened:

        def save(record):
            write_json(opened.lineage.checkpoint_folder(record.checkpoint_id) / "file.json", record.checkpoint_id)
            opened.lineage.save_checkpoint(record)

        save(CheckpointRecord(checkpoint_id="base-1", metadata={"policy_id": "policy-1"}))
        on_base = {"policy_id": "policy-x", "base_id": "policy-1"}
        tuned = CheckpointRecord(checkpoint_id="checkpoint-t", parent_id="base-1", metadata=on_base)
        save(tuned)
        save(merged_record(tuned, MergedPolicy(tmp_path / "policies" / "policy-2", "policy-2")))
        on_merged = {"policy_id": "policy-y", "base_id": "policy-2"}
        save(CheckpointRecord(checkpoint_id="checkpoint-r", parent_id="base-merged-2", metadata=on_merged))
        (tmp_path / "policies" / "policy-2").mkdir(parents=True)
        yield opened


@pytest.mark.parametrize("checkpoint_id", ["base", "base-1", "checkpoint-t"])
def test_what_stands_on_the_first_base_is_opened_with_the_runs_own_policy(store, checkpoint_id):
    assert policy_behind(POCKET, store, checkpoint_id) is POCKET


@pytest.mark.parametrize("checkpoint_id", ["base-merged-2", "checkpoint-r"])
def test_what_stands_on_a_merged_policy_is_opened_from_its_folder_with_the_same_settings(store, checkpoint_id):
    found = policy_behind(POCKET, store, checkpoint_id)
    assert (found.type, Path(found.model)) == ("hf", (store.home / "policies" / "policy-2").absolute())
    assert (found.lora, found.batch_size, found.executor) == (POCKET.lora, 7, POCKET.executor)


def test_the_lineage_tells_a_merged_base_from_a_first_one(store):
    record = store.lineage.checkpoint("base-merged-2")
    assert (record.parent_id, record.kind, record.rollout_steps) == ("checkpoint-t", "full", 0)
    assert record.metadata == {"policy_id": "policy-2", "merged": True}
    assert is_base("base-merged-2") and is_base("base") and not is_base("checkpoint-r")
    assert base_id("policy-2") == "base-2"


def test_a_merged_policy_whose_folder_is_gone_is_named(store):
    (store.home / "policies" / "policy-2").rmdir()
    with pytest.raises(BoundaryError, match="merged policy policy-2 is gone"):
        policy_behind(POCKET, store, "checkpoint-r")
    with pytest.raises(NotFound):
        policy_behind(POCKET, store, "checkpoint-unknown")


def test_altered_weights_of_a_merged_policy_are_refused():
    refuse_altered_base("base-merged-2", "policy-2")
    refuse_altered_base("checkpoint-r", "policy-of-adapters")  # its own files are verified
    with pytest.raises(BoundaryError, match="holds base-merged-3, the run recorded base-merged-2"):
        refuse_altered_base("base-merged-2", "policy-3")
