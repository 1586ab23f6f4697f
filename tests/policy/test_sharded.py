"""Parameters cut over processes (FSDP2): a checkpoint is whole, whoever wrote it, and a stage goes on from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import block_script
import pytest
import sft_script
import torch
from scripted_engine import DictLedger

from policy.checkpoint import load_checkpoint
from policy.executor.accelerate import free_port

SCRIPT = Path(__file__).parent / "fsdp_script.py"
LAUNCH = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port"]


class Stopped(Exception):
    """The test ends the stage here."""


class StoppingLedger:
    """A store's ledger that raises at the second record: two updates are made, one of them is noted."""

    def __init__(self, ledger) -> None:
        self.ledger, self.count = ledger, 0

    def find(self, key):
        return self.ledger.find(key)

    def record(self, key, *, kind, result):
        self.count += 1
        if self.count == 2:
            raise Stopped
        return self.ledger.record(key, kind=kind, result=result)


def test_a_stage_begun_by_one_process_is_finished_by_two_that_hold_half_of_every_parameter(tmp_path):
    whole = sft_script.train(tmp_path, "full", DictLedger())
    with pytest.raises(Stopped):
        sft_script.train(tmp_path, "full", StoppingLedger(block_script.open_ledger(tmp_path)))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), str(SCRIPT.parent)]),
    }
    done = subprocess.run(
        [sys.executable, *LAUNCH, str(free_port()), str(SCRIPT), str(tmp_path), "full"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cut = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    # the first update is that of one process, to the bit; the others sum in another order
    assert cut["steps"][0]["loss"] == whole.steps[0].loss
    assert [step["loss"] for step in cut["steps"]] == pytest.approx([step.loss for step in whole.steps], rel=1e-5)
    assert cut["policy_id"] != whole.policy_id and cut["progress"]["updates"] == len(whole.steps) == 4
    mine, theirs = load_checkpoint(whole.checkpoint), load_checkpoint(Path(cut["checkpoint"]))
    for before, after in ((mine.weights, theirs.weights), (mine.optimizer, theirs.optimizer)):
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert after[name].shape == tensor.shape
            assert torch.linalg.norm(after[name] - tensor) <= 1e-4 * torch.linalg.norm(tensor), name
