"""What training measured, seen while the run goes on: as JSON and as a table."""

import json
import subprocess
import sys
from pathlib import Path

from cohelix.display_training import show_training
from graphs.view import training_run
from harness.records import Scored
from memory.records import RunRecord
from memory.store import Store
from policy.rollout_record import RolloutAttempt, RolloutBatch, RolloutGroup
from policy.step_metric import UpdateTally


def measured(step: int) -> dict:
    """The numbers of a real step: one group of rewards 1 and 0, two tokens each."""
    attempts = tuple(
        RolloutAttempt(
            text="x",
            finish_reason="stop",
            token_ids=(1, 2),
            seed=0,
            verdict=Scored(parts={"exact": reward, "format": 1.0}, reward=reward),
        )
        for reward in (1.0, 0.0)
    )
    group = RolloutGroup(task_id="t", position=0, draw=0, prompt_token_ids=(1,), attempts=attempts, fate="trained")
    batch = RolloutBatch(step=step, policy_id="p", harness_id="h", groups=(group,), next_position=1)
    tally = UpdateTally()
    sums = {"tokens": 4.0, "entropy": 2.0, "kl": 0.1, "low": 1.0, "high": 0.0, "dual": 0.0}
    tally.add(0, 0.25, positions=10, padded=1, **sums)
    tally.grad_norms.append(1.0)
    metrics = tally.metrics(
        batch, tolerance=1e-6, learning_rate=1e-5, rollout_s=2.0, update_s=1.0, peak_memory_mb=1234.0
    )
    return metrics.model_dump(mode="json")


def open_run(home: Path) -> Store:
    store = Store.open(home)
    store.runs.create(RunRecord(run_id="run-1", strategy="vace", suite="s", config={"seed": 3}, identity={}))
    return store


def test_steps_of_every_block_are_shown_while_the_run_is_open(tmp_path, capsys):
    with open_run(tmp_path) as store, store.runs.hold("run-1"):
        store.metrics.add("run-1", "block-a", 0, measured(0))
        store.metrics.add("run-1", "block-sft", 0, {"step": 0, "loss": 2.5, "learning_rate": 1e-5, "update_s": 1.0})
        store.metrics.add("run-1", "block-a", 1, measured(1))
        view = training_run(tmp_path, "run-1")
    assert view["run"]["run_id"] == "run-1"
    assert [(block["block_key"], [row["step"] for row in block["steps"]]) for block in view["blocks"]] == [
        ("block-a", [0, 1]),
        ("block-sft", [0]),
    ]
    assert view["blocks"][0]["steps"][0]["metrics"] == measured(0)
    show_training(view)
    shown = capsys.readouterr().out
    # one of four tokens clipped low; 4 sampled tokens in 2 s; 1 of 10 positions is padding
    for cell in ("block-a", "0.2500", "25.0", "0.02500", "10.0", "1,234", "block-sft", "2.5000", "exact 0.500"):
        assert cell in shown, cell


def test_a_run_that_has_not_trained_says_so(tmp_path, capsys):
    open_run(tmp_path).close()
    show_training(training_run(tmp_path, "run-1"))
    assert "no training step is finished yet" in capsys.readouterr().out


def test_the_command_prints_the_same_as_json(tmp_path):
    with open_run(tmp_path) as store:
        store.metrics.add("run-1", "block-a", 0, measured(0))
    command = [sys.executable, "-m", "cohelix", "trace", "run-1", "--home", str(tmp_path)]
    done = subprocess.run([*command, "--training", "--json"], capture_output=True, text=True)
    assert json.loads(done.stdout) == training_run(tmp_path, "run-1")
    refused = subprocess.run([*command, "--training", "--step", "0"], capture_output=True, text=True)
    assert refused.returncode == 2 and "leave --step out" in refused.stderr
