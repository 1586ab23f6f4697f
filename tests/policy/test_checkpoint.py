from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
import torch

from harness.records import content_id
from policy import checkpoint as module
from policy.checkpoint import (
    OPTIMIZER,
    RNG,
    WEIGHTS,
    Checkpoint,
    Progress,
    load_checkpoint,
    optimizer_state,
    read_manifest,
    restore_optimizer,
    restore_rng,
    rng_state,
    save_checkpoint,
)
from policy.errors import CheckpointError
from policy.schedule import Schedule
from policy.weights import weights_id


def example(seed: int = 0, **changes) -> Checkpoint:
    torch.manual_seed(seed)
    weights = {"a.weight": torch.randn(3, 2), "b.bias": torch.randn(4)}
    fields = {
        "kind": "full",
        "base_id": "policy-base",
        "policy_id": weights_id(weights),
        "progress": Progress(rollout_steps=2, updates=4, position=9),
        "weights": weights,
        "optimizer": {"exp_avg.a.weight": torch.ones(3, 2), "step.a.weight": torch.tensor(4.0)},
        "rng": rng_state(),
    }
    return Checkpoint(**{**fields, **changes})


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path):
    before = example()
    saved = save_checkpoint(tmp_path, before)
    after = load_checkpoint(saved.path)
    assert saved.path.name == saved.checkpoint_id
    assert all(torch.equal(after.weights[name], tensor) for name, tensor in before.weights.items())
    assert all(torch.equal(after.optimizer[name], tensor) for name, tensor in before.optimizer.items())
    assert (after.progress, after.rng, after.policy_id) == (before.progress, before.rng, before.policy_id)
    assert [path.name for path in tmp_path.iterdir()] == [saved.checkpoint_id], "no temporary folder stays"


def test_ids_are_of_content(tmp_path):
    first = save_checkpoint(tmp_path / "1", example())
    assert save_checkpoint(tmp_path / "2", example()).checkpoint_id == first.checkpoint_id
    assert save_checkpoint(tmp_path / "1", example()).path == first.path, "saving again changes nothing"
    moved = example(progress=Progress(rollout_steps=3, updates=4, position=9))
    other = save_checkpoint(tmp_path / "1", moved)
    assert other.checkpoint_id != first.checkpoint_id and other.policy_id == first.policy_id
    one_bit = example()
    one_bit.weights["b.bias"][0] += 1e-7
    assert weights_id(one_bit.weights) != first.policy_id


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER, RNG, module.MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_torn_checkpoint_is_a_typed_error_that_names_it(tmp_path, name, damage):
    saved = save_checkpoint(tmp_path, example())
    path = saved.path / name
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", "\\.")):
        load_checkpoint(saved.path)


def test_an_edited_manifest_is_refused(tmp_path):
    saved = save_checkpoint(tmp_path, example())
    manifest = saved.path / module.MANIFEST
    manifest.write_text(manifest.read_text().replace('"updates":4', '"updates":5'))
    with pytest.raises(CheckpointError, match="altered"):
        read_manifest(saved.path)


def test_a_foreign_file_is_refused(tmp_path):
    saved = save_checkpoint(tmp_path, example())
    (saved.path / "extra.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="extra.bin is unexpected"):
        load_checkpoint(saved.path)


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def no_room(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", no_room)
    with pytest.raises(CheckpointError, match="No space left.*free disk space"):
        save_checkpoint(tmp_path, example())
    assert list(tmp_path.iterdir()) == []


def test_a_torn_folder_under_the_same_name_is_replaced(tmp_path):
    saved = save_checkpoint(tmp_path, example())
    (saved.path / WEIGHTS).write_bytes(b"")
    assert load_checkpoint(save_checkpoint(tmp_path, example()).path).policy_id == saved.policy_id


def test_generators_go_on_where_they_were(tmp_path):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    random.gauss(0, 1)  # leaves a second value in Python's generator, which must be kept too
    np.random.standard_normal()
    state = rng_state()
    path = save_checkpoint(tmp_path, example(rng=state)).path
    restore_rng(load_checkpoint(path).rng)
    assert rng_state() == state
    expected = [random.gauss(0, 1), np.random.standard_normal(), torch.rand(1).item()]
    restore_rng(load_checkpoint(path).rng)
    assert [random.gauss(0, 1), np.random.standard_normal(), torch.rand(1).item()] == expected


def test_an_optimizer_goes_on_where_it_was():
    def fresh():
        torch.manual_seed(3)
        layer = torch.nn.Linear(3, 2)
        return layer, torch.optim.AdamW(layer.parameters(), lr=0.1)

    def update(layer, optimizer, scale):
        optimizer.zero_grad()
        (layer(torch.full((1, 3), scale)) ** 2).sum().backward()
        optimizer.step()

    names = ["weight", "bias"]
    layer, optimizer = fresh()
    for scale in (1.0, 2.0, 3.0):
        update(layer, optimizer, scale)
    half, first = fresh()
    update(half, first, 1.0)
    state = optimizer_state(first, names)
    second = torch.optim.AdamW(half.parameters(), lr=0.1)
    restore_optimizer(second, names, state)
    for scale in (2.0, 3.0):
        update(half, second, scale)
    assert torch.equal(layer.weight, half.weight) and torch.equal(layer.bias, half.bias)
    with pytest.raises(CheckpointError, match="does not train"):
        restore_optimizer(second, ["weight", "other"], state)


def test_a_checkpoint_carries_what_made_it_and_the_course_of_its_rate(tmp_path):
    schedule = Schedule(kind="cosine", warmup_updates=3, total_updates=40)
    saved = save_checkpoint(tmp_path, example(stage="sft", schedule=schedule))
    after = load_checkpoint(saved.path)
    assert (after.stage, after.schedule, saved.manifest.format) == ("sft", schedule, 2)
    assert saved.checkpoint_id != save_checkpoint(tmp_path, example()).checkpoint_id


def test_a_checkpoint_of_format_1_is_still_read_under_its_own_id(tmp_path):
    saved = save_checkpoint(tmp_path, example())
    manifest = json.loads((saved.path / module.MANIFEST).read_text())
    old = {key: value for key, value in manifest.items() if key not in ("stage", "schedule")} | {"format": 1}
    # the id that the first version gave: the hash of exactly what its manifest held
    folder = tmp_path / content_id(old, prefix="checkpoint")
    saved.path.rename(folder)
    (folder / module.MANIFEST).write_text(json.dumps(old))
    after = load_checkpoint(folder)
    assert (after.stage, after.schedule, after.progress) == ("rl", None, example().progress)
    assert read_manifest(folder).checkpoint_id == folder.name
    (folder / module.MANIFEST).write_text(json.dumps(old | {"format": 3}))
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        load_checkpoint(folder)


def test_a_missing_folder_is_a_typed_error(tmp_path):
    saved = save_checkpoint(tmp_path, example())
    shutil.rmtree(saved.path)
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        load_checkpoint(saved.path)
