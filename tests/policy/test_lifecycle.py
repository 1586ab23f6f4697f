"""One life in one block or in two: the same bits; and a harness swapped at the boundary changes nothing else there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lifecycle_script
import pytest
import torch
from lifecycle_script import SWAPPED, config, summary, train
from tiny_suite import HARNESS

from policy.checkpoint import load_checkpoint, optimizer_state, read_manifest, rng_state
from policy.errors import CheckpointError
from policy.grpo import HarnessGrpoTrainer
from policy.rollout import Collector
from policy.schedule import Schedule

SCRIPT = Path(lifecycle_script.__file__)
ROOT = SCRIPT.parents[2]
KINDS = ("full", "lora")


class Boundary:
    """What a run's training consists of right before it samples a rollout step."""

    def __init__(self, monkeypatch, step: int) -> None:
        self.found: dict = {}
        trainers: list[HarnessGrpoTrainer] = []
        build, collect = HarnessGrpoTrainer.__init__, Collector.collect

        def build_and_keep(trainer, *args, **kwargs):
            trainers.append(trainer)
            build(trainer, *args, **kwargs)

        def look_and_collect(collector, number, position, *args, **kwargs):
            if number == step:
                self._look(trainers[-1], position, collector)
            return collect(collector, number, position, *args, **kwargs)

        monkeypatch.setattr(HarnessGrpoTrainer, "__init__", build_and_keep)
        monkeypatch.setattr(Collector, "collect", look_and_collect)

    def _look(self, trainer, position, collector) -> None:
        named = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
        moments = optimizer_state(trainer.optimizer, named)
        self.found = {
            "position": position,
            "generators": rng_state(),
            "rate of the next update": trainer.lr_scheduler.get_last_lr(),
            "moments": {name: tensor.clone() for name, tensor in moments.items()},
            "weights": collector.engine.policy_id,
            "harness": collector.harness.harness_id,
            "stream": [collector.stream.at(place).task.task_id for place in range(position, position + 20)],
        }


def differing(one: dict, other: dict) -> set[str]:
    assert set(one["moments"]) == set(other["moments"]) and len(one["moments"]) > 5
    equal = all(torch.equal(tensor, other["moments"][name]) for name, tensor in one["moments"].items())
    plain = {name for name in one if name != "moments" and one[name] != other[name]}
    return plain if equal else plain | {"moments"}


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    """Per kind: six rollout steps in one block, looked at before step 4, and the first four in a block of their own."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    made = {"home": home}
    for kind in KINDS:
        with pytest.MonkeyPatch.context() as patch:
            boundary = Boundary(patch, step=4)
            made[kind] = train(home, kind, life=6, first=0, last=6, parent=None)
        made[kind, "boundary"] = boundary.found
        made[kind, "first"] = train(home, kind, life=6, first=0, last=4, parent=None)
    return made


def in_another_process(home: Path, life: int, boundary: int, parents: dict[str, str]) -> dict:
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(home), str(life), str(boundary), json.dumps(parents)],
        capture_output=True, text=True, env=environment, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_six_steps_equal_four_and_a_restart_and_two_bit_for_bit(lives):
    parents = {kind: str(lives[kind, "first"].checkpoint) for kind in KINDS}
    rest = in_another_process(lives["home"], 6, 4, parents)
    for kind in KINDS:
        whole, first = summary(lives[kind]), summary(lives[kind, "first"])
        assert rest[kind]["policy_id"] == whole["policy_id"]
        assert rest[kind]["checkpoint_id"] == whole["checkpoint_id"], "moments, generators and counters are equal too"
        assert first["traces"] + rest[kind]["traces"] == whole["traces"]
        assert first["rates"] + rest[kind]["rates"] == whole["rates"]


def test_the_warmup_is_resolved_once_and_falls_across_the_boundary(lives):
    # ceil(0.8 * 6 steps * 2 updates) = 10 updates of warmup; the second update of step s is update 2 s + 1
    peak = config(6).learning_rate
    expected = [peak * min(1.0, (2 * step + 2) / 10) for step in range(6)]
    assert [step.learning_rate for step in lives["full"].steps] == pytest.approx(expected)
    assert expected[3] < expected[4] == peak, "the warmup ends after the boundary"
    manifest = read_manifest(lives["full", "first"].checkpoint)
    assert manifest.schedule == Schedule(kind="constant", warmup_updates=10, total_updates=12)
    assert manifest.stage == "rl" and manifest.progress.updates == 8


def test_groups_without_signal_were_replaced_in_both_parts(lives):
    for kind in KINDS:
        dropped = [step.dropped_groups for step in lives[kind].steps]
        assert sum(dropped[:4]) > 0 and sum(dropped[4:]) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_harness_swapped_at_the_boundary_is_all_that_changes_there(lives, kind, monkeypatch):
    boundary = Boundary(monkeypatch, step=4)
    parent = lives[kind, "first"].checkpoint
    swapped = train(lives["home"], kind, life=6, first=4, last=6, parent=parent, harness=SWAPPED)
    assert differing(boundary.found, lives[kind, "boundary"]) == {"harness"}
    assert (boundary.found["harness"], lives[kind, "boundary"]["harness"]) == (SWAPPED.harness_id, HARNESS.harness_id)
    assert [step.learning_rate for step in swapped.steps] == [step.learning_rate for step in lives[kind].steps[4:]]
    assert swapped.policy_id != lives[kind].policy_id, "from there on it trains on other prompts"
    counted = load_checkpoint(swapped.checkpoint).progress
    assert (counted.rollout_steps, counted.updates) == (6, 12)


def test_the_look_at_the_boundary_would_see_a_difference(lives):
    one = lives["full", "boundary"]
    name = next(iter(one["moments"]))
    nudged = {**one["moments"], name: one["moments"][name] + 1}
    assert differing(one, {**one, "moments": nudged, "position": one["position"] + 1}) == {"moments", "position"}


def test_a_block_under_another_warmup_is_refused(lives):
    home, parent = lives["home"], lives["full", "first"].checkpoint
    with pytest.raises(CheckpointError, match="warmup_updates=10.*warmup_updates=13.*resolved once"):
        # a life of 8 steps: ceil(0.8 * 16) = 13
        train(home, "full", life=8, first=4, last=6, parent=parent)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_six_hundred_steps_equal_four_hundred_and_a_restart_and_two_hundred(tmp_path, kind, monkeypatch):
    boundary = Boundary(monkeypatch, step=400)
    whole = train(tmp_path, kind, life=600, first=0, last=600, parent=None)
    unswapped = boundary.found
    first = train(tmp_path, kind, life=600, first=0, last=400, parent=None)
    rest = in_another_process(tmp_path, 600, 400, {kind: str(first.checkpoint)})[kind]
    assert rest["checkpoint_id"] == whole.checkpoint_id and rest["policy_id"] == whole.policy_id
    assert len(whole.steps) == 600 and not whole.stop
    train(tmp_path, kind, life=600, first=400, last=402, parent=first.checkpoint, harness=SWAPPED)
    assert differing(boundary.found, unswapped) == {"harness"}
