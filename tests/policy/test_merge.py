"""A merged policy is the trained policy: same logits, whole files, and the reference that training then starts from."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import block_script
import pytest
import sft_script
import torch
from scripted_engine import DictLedger

from policy import merge as module
from policy.block import policy_identity
from policy.checkpoint import load_checkpoint
from policy.config import PocketPolicyConfig
from policy.errors import CheckpointError
from policy.load import load_policy
from policy.merge import MergedPolicy, merge_checkpoint, merged_policy_config, verify_merged
from policy.schedule import Schedule
from policy.training_state import open_state
from policy.weights import all_weights_id, put_weights

ROOT = Path(__file__).parents[2]
IDS = torch.arange(5, 45).reshape(2, 20)
EXTRA = {"preprocessor_config.json": "{}", "processor_config.json": '{"size": 7}', "LICENSE": "free", "recipe.txt": "r"}
MERGES_ON_BAD_DAYS = """
import os, resource, signal, sys
from pathlib import Path
import block_script
from policy import merge
from policy.errors import CheckpointError
home, checkpoint = map(Path, sys.argv[1:3])
policy = block_script.policy_config(home, "lora")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
try:
    merge.merge_checkpoint(policy, checkpoint, home)
except CheckpointError as error:
    print("typed:", error, "left:", os.listdir(home / "policies"), flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
merge.publish_folder = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
merge.merge_checkpoint(policy, checkpoint, home)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A home whose base folder has files of its own, and one SFT checkpoint per kind."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    for name, text in EXTRA.items():
        (block_script.base_folder(home) / name).write_text(text)
    return home, {kind: sft_script.train(home, kind, DictLedger()) for kind in ("full", "lora")}


@pytest.fixture(scope="module")
def merged(trained):
    home, results = trained
    return {
        kind: merge_checkpoint(block_script.policy_config(home, kind), result.checkpoint, home)
        for kind, result in results.items()
    }


def trained_model(home: Path, kind: str, checkpoint: Path):
    """The model as it was trained, adapters apart from their base."""
    policy = block_script.policy_config(home, kind)
    state = open_state(
        policy, sft_script.CONFIG, checkpoint, schedule=Schedule(), seed=0, stage="sft", is_new_stage=True
    )
    return state.model.eval()


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_logits_of_the_merged_policy_are_those_of_the_trained_one(trained, merged, kind):
    home, results = trained
    with torch.no_grad():
        expected = trained_model(home, kind, results[kind].checkpoint)(IDS).logits
        base = load_policy(home / "base").model(IDS).logits
        found = load_policy(merged[kind].path).model(IDS).logits
    # one part in 100,000 of the largest logit: the merge rounds every product once
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (found - base).abs().max() > 0.1, "and not those of the base"


def test_the_folder_is_complete_verified_and_named_after_its_weights(trained, merged):
    home, results = trained
    path, policy_id = merged["lora"].path, merged["lora"].policy_id
    assert path == home / "policies" / policy_id
    assert all_weights_id(load_policy(path).model) == policy_id
    manifest = verify_merged(path)
    assert manifest.checkpoint_id == results["lora"].checkpoint_id
    needed = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", *EXTRA}
    assert needed <= set(manifest.files)
    assert all((path / name).read_text() == text for name, text in EXTRA.items()), "processor files come along"
    assert load_policy(path).tokenizer.chat_template == load_policy(home / "base").tokenizer.chat_template
    assert [one for one in (home / "policies").iterdir() if one.name.startswith(".tmp")] == []


def test_full_weights_keep_the_id_of_their_checkpoint(trained, merged):
    assert merged["full"].policy_id == trained[1]["full"].policy_id


def test_a_merge_found_again_is_verified_and_made_again_when_it_is_torn(trained, merged, monkeypatch):
    home, results = trained
    policy, checkpoint = block_script.policy_config(home, "lora"), results["lora"].checkpoint
    (merged["lora"].path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="model.safetensors is torn"):
        verify_merged(merged["lora"].path)
    assert merge_checkpoint(policy, checkpoint, home) == merged["lora"]
    verify_merged(merged["lora"].path)
    monkeypatch.setattr(module, "load_trained", lambda *a: pytest.fail("merged again"))
    assert merge_checkpoint(policy, checkpoint, home) == merged["lora"]


def test_training_goes_on_from_the_merged_policy_with_fresh_adapters_and_no_divergence_from_it(trained, merged):
    home, _ = trained
    policy = merged_policy_config(block_script.policy_config(home, "lora"), merged["lora"])
    assert policy.lora == block_script.policy_config(home, "lora").lora
    # without dropout the fresh adapters change nothing, so the first update starts at the reference itself
    policy = policy.model_copy(update={"lora": policy.lora.model_copy(update={"dropout": 0.0})})
    config = block_script.CONFIG.model_copy(update={"beta": 0.1, "updates_per_rollout_step": 1})
    trainer, request = block_script.block(policy, home, 0, 2, None, config)
    result = trainer.train(request, DictLedger())
    assert result.base_id == merged["lora"].policy_id, "the reference is exactly the merged policy"
    assert abs(result.steps[0].kl) < 1e-9 < result.steps[1].kl
    assert load_checkpoint(result.checkpoint).progress.updates == 2


def test_a_merged_policy_is_known_by_its_weights_wherever_it_stands(trained, merged, tmp_path):
    home, _ = trained
    policy = merged_policy_config(block_script.policy_config(home, "lora"), merged["lora"])
    moved = shutil.copytree(merged["lora"].path, tmp_path / merged["lora"].policy_id)
    elsewhere = merged_policy_config(policy, MergedPolicy(moved, merged["lora"].policy_id))
    assert policy_identity(policy) == policy_identity(elsewhere)
    assert policy_identity(policy) != policy_identity(policy.model_copy(update={"model": str(home / "base")}))


def test_a_pocket_policys_checkpoint_can_be_merged_too(tmp_path):
    policy = PocketPolicyConfig()
    request = sft_script.SftRequest(
        records=sft_script.make_records(2), config=sft_script.CONFIG.model_copy(update={"epochs": 1})
    )
    result = sft_script.SftBlockTrainer(policy, tmp_path).train(request, DictLedger())
    found = merge_checkpoint(policy, result.checkpoint, tmp_path)
    config = merged_policy_config(policy, found)
    assert (config.type, config.lora, found.policy_id) == ("hf", None, result.policy_id)
    assert all_weights_id(load_policy(config.model).model) == result.policy_id


def test_a_kill_or_a_full_disk_leaves_no_half_written_policy_and_a_later_merge_succeeds(trained, merged, tmp_path):
    home, results = trained
    shutil.copytree(home / "base", tmp_path / "base")
    checkpoint = results["lora"].checkpoint
    paths = f"{ROOT}:{ROOT / 'tests' / 'policy'}"
    killed = subprocess.run(
        # the tiny model's weights are larger than 40 KB, its other files are not
        [sys.executable, "-c", MERGES_ON_BAD_DAYS, str(tmp_path), str(checkpoint), "40000"],
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert "typed: writing a merged policy" in killed.stdout and "free disk space" in killed.stdout
    assert killed.stdout.endswith("left: []\n"), "a full disk leaves nothing"
    left = [path.name for path in (tmp_path / "policies").iterdir()]
    assert len(left) == 1 and left[0].startswith(".tmp-"), "a kill leaves no folder with a policy's name"
    again = merge_checkpoint(block_script.policy_config(tmp_path, "lora"), checkpoint, tmp_path)
    assert again.policy_id == merged["lora"].policy_id
    assert verify_merged(again.path).files == verify_merged(merged["lora"].path).files


def test_weights_do_not_fit_another_base(trained, merged):
    home, results = trained
    policy = merged_policy_config(block_script.policy_config(home, "lora"), merged["lora"])
    with pytest.raises(CheckpointError, match="was trained from base"):
        merge_checkpoint(policy, results["lora"].checkpoint, home / "elsewhere")
    assert put_weights(load_policy(merged["lora"].path).model, {}) != []
