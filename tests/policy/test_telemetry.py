"""Curves reach a real tracker under absolute rollout steps, change no weight, and a missing package is said first."""

from __future__ import annotations

import os
from pathlib import Path

import block_script
import pytest
from scripted_engine import DictLedger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_suite import HARNESS, LetterSuite, make_tasks

from harness.errors import UserError
from policy.block import BlockRequest, block_key
from policy.config import TelemetryConfig
from policy.telemetry import TENSORBOARD_FOLDER, Telemetry, check_trackers
from policy.trainer import GrpoBlockTrainer


def train(home: Path, report_to: tuple[str, ...], *, first: int, steps: int, parent: Path | None):
    policy = block_script.policy_config(home, "full").model_copy(
        update={"telemetry": TelemetryConfig(report_to=report_to)}
    )
    request = BlockRequest(
        parent=parent,
        harness=HARNESS,
        suite=LetterSuite(),
        tasks=make_tasks(),
        rollout_steps=steps,
        first_step=first,
        seed=7,
        config=block_script.CONFIG,
    )
    return GrpoBlockTrainer(policy, home).train(request, DictLedger()), block_key(policy, request)


def curves(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}


def test_tensorboard_holds_every_number_of_every_step_and_the_weights_are_the_same(tmp_path):
    plain, _ = train(tmp_path, (), first=0, steps=1, parent=None)
    first, first_key = train(tmp_path, ("tensorboard",), first=0, steps=1, parent=None)
    second, second_key = train(tmp_path, ("tensorboard",), first=1, steps=2, parent=first.checkpoint)
    assert first.checkpoint_id == plain.checkpoint_id, "a tracker draws no random number"
    assert TENSORBOARD_FOLDER not in os.environ
    assert set(curves(tmp_path / "telemetry" / first_key)["train/kl"]) == {0}
    read = curves(tmp_path / "telemetry" / second_key)
    for step in second.steps:
        for name, value in step.curves.items():
            assert read[f"train/{name}"][step.step] == pytest.approx(value, rel=1e-6), name
    # the x axis counts rollout steps of the policy's life, not updates of this sitting
    assert set(read["train/reward_mean"]) == set(read["train/reward/exact"]) == {1, 2}
    assert not (tmp_path / "telemetry" / "runs").exists()


def test_a_folder_that_the_user_named_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(TENSORBOARD_FOLDER, str(tmp_path / "mine"))
    with Telemetry(("tensorboard",), tmp_path / "block").placed():
        assert os.environ[TENSORBOARD_FOLDER] == str(tmp_path / "mine")
    assert os.environ[TENSORBOARD_FOLDER] == str(tmp_path / "mine")


def test_a_missing_package_is_named_with_its_install_command_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("policy.telemetry.find_spec", lambda name: None if name == "wandb" else object())
    with pytest.raises(UserError, match=r"names wandb; got no such package.*`pip install wandb`"):
        train(tmp_path, ("tensorboard", "wandb"), first=0, steps=1, parent=None)
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "telemetry").exists()
    check_trackers(("tensorboard",))
    check_trackers(())
