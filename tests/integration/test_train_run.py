"""The train strategy for real: SFT, merge and RL blocks on a tiny policy, killed at its own writes and resumed."""

import json
import shutil
import signal

import pytest
import yaml
from conftest import CONFIG, Bench

from graphs.loading import load_config
from graphs.single import PairChoice, evaluate_pair
from memory.store import Store

KILLED = -signal.SIGKILL
STRATEGY = {
    "type": "train",
    "stages": [
        {"type": "sft", "traces": 8, "sft": {"epochs": 1, "batch_size": 4, "learning_rate": 5e-3, "max_tokens": 256,
                                             "checkpoint_every": 1}},
        {"type": "rl", "rollout_steps": 3, "block_steps": 2, "rl": {**CONFIG["strategy"]["rl"], "beta": 0.01}},
    ],
}  # fmt: skip
NODES = ["seed", "baseline", "teach", "tune", "merge", "measure", "train", "measure", "train", "measure", "select",
         "report"]  # fmt: skip
# One death per sitting, in the order in which a run reaches these writes; ``nth`` counts within the sitting.
KILLS = [
    # one of two SFT updates is made and its checkpoint is noted
    {"at": "ledger", "kind": "block_progress", "nth": 1, "when": "after"},
    # the merged policy is written and not in the lineage
    {"at": "checkpoint", "nth": 2, "when": "before"},
    # a block on the merged base ended and is not noted
    {"at": "ledger", "kind": "training_block", "nth": 1, "when": "before"},
]


@pytest.fixture(scope="module")
def school(bench):
    """The bench with a configuration of the train strategy, and adapters to merge."""
    policy = {**CONFIG["policy"], "model": str(bench.folder / "base"), "lora": {"r": 2, "dropout": 0.1}}
    config = bench.folder / "train.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"policy": policy, "strategy": STRATEGY}))
    return Bench(bench.folder, config)


@pytest.fixture(scope="module")
def trained(school):
    done = school.run("school")
    assert done.returncode == 0, done.stderr
    return school.outcome("school"), json.loads(done.stdout)


def test_stages_run_in_their_order_and_each_piece_is_measured(trained):
    outcome, shown = trained
    assert outcome["nodes"] == NODES
    phases = [(pair["phase"], pair["round"]) for pair in outcome["state"]["pairs"]]
    assert phases == [("base", 0), ("stage 1 (sft)", 1), ("stage 2 (rl)", 2), ("stage 2 (rl)", 3)]
    assert {pair["harness_id"] for pair in outcome["state"]["pairs"]} == {outcome["state"]["harness_id"]}
    assert shown["run"]["condition"] == "train"
    assert shown["report"]["stop_reason"] == "all stages finished"


def test_rl_goes_on_from_the_merged_policy_with_fresh_adapters(school, trained):
    outcome, _ = trained
    with Store.open(school.folder / "school") as store:
        base, merged, first, second = (
            store.lineage.checkpoint(pair["checkpoint_id"]) for pair in outcome["state"]["pairs"]
        )
        tuned = store.lineage.checkpoint(merged.parent_id)
        teaching = store.traces.find("r", purpose="teach")
    assert merged.checkpoint_id.startswith("base-") and merged.metadata["merged"] is True
    assert (tuned.parent_id, tuned.updates, tuned.rollout_steps) == (base.checkpoint_id, 2, 0)  # 8 traces in fours
    assert tuned.metadata["base_id"] == base.metadata["policy_id"]
    # both blocks stand on the merged weights; 2 + 1 rollout steps of two updates
    assert first.metadata["base_id"] == second.metadata["base_id"] == merged.metadata["policy_id"]
    assert [(one.rollout_steps, one.updates, one.kind) for one in (first, second)] == [
        (2, 4, "adapter"), (3, 6, "adapter")
    ]  # fmt: skip
    assert (school.folder / "school" / "policies" / merged.metadata["policy_id"] / "config.json").exists()
    assert len(teaching) == 8 and {trace.policy_id for trace in teaching} == {"teacher: rules"}


def test_a_merged_policy_is_evaluated_by_its_id_without_the_run(school, trained, monkeypatch):
    monkeypatch.syspath_prepend(str(school.folder / "plugin"))
    outcome, _ = trained
    merged = outcome["state"]["pairs"][1]
    choice = PairChoice(split="val", checkpoint=merged["checkpoint_id"], harness=outcome["state"]["harness_id"])
    shown = evaluate_pair(load_config(school.config), choice, home=school.folder / "school")
    assert shown["policy_id"].rpartition("-")[2] == merged["checkpoint_id"].rpartition("-")[2]
    assert shown["mean"] == merged["val_score"]  # the same weights, harness, tasks and seeds as inside the run


def test_kills_during_sft_merging_and_rl_change_nothing(school, trained):
    done = [school.run("expelled", die=KILLS[0])]
    done += [school.resume("expelled", die=die) for die in KILLS[1:]]
    assert [sitting.returncode for sitting in done] == [KILLED] * 3, done[-1].stderr
    last = school.resume("expelled")
    assert last.returncode == 0, last.stderr
    assert school.outcome("expelled") == trained[0]


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_merged_policy_that_is_not_whole_is_merged_again(school, trained, tmp_path, monkeypatch, damage):
    monkeypatch.syspath_prepend(str(school.folder / "plugin"))
    home = tmp_path / "home"
    shutil.copytree(school.folder / "school", home)
    merged = trained[0]["state"]["pairs"][1]
    (folder,) = (home / "policies").glob("policy-*")
    weights = folder / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[: len(before) // 2])
    if damage == "gone":
        shutil.rmtree(folder)
    choice = PairChoice(split="val", checkpoint=merged["checkpoint_id"], harness=trained[0]["state"]["harness_id"])
    assert evaluate_pair(load_config(school.config), choice, home=home)["mean"] == merged["val_score"]
    assert weights.read_bytes() == before


def test_equal_weights_from_another_folder_are_the_same_base_and_overwrite_nothing(school, trained, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(school.folder / "school", home)
    copied = shutil.copytree(school.folder / "base", tmp_path / "copy")
    records = sorted((home / "checkpoints").glob("base-*/base.json"))
    before = [record.read_bytes() for record in records]
    static = ["--set", f"policy.model={copied}", "--set", "strategy={type: vace, condition: static}"]
    done = school.cohelix("run", str(school.config), "--name", "again", *static, home=str(home))
    assert done.returncode == 0, done.stderr
    assert [record.read_bytes() for record in records] == before
