"""The letters suite as a plugin that another process can build, with faults that it commits on demand."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from tiny_suite import HARNESS, LetterSuite, make_tasks

from evals.config import PluginConfig
from harness.records import Scored
from policy.block import BlockRequest
from policy.job import StoreAddress, TrainingJob


class FaultySuite(LetterSuite):
    """Letters; ``fault`` strikes at the ``at``-th verdict of a process, ``times`` times over all processes."""

    def __init__(self, fault: str = "", at: int = 1, times: int = 1_000_000, notes: str = "") -> None:
        self.fault, self.at, self.times, self.notes = fault, at, times, notes
        self.count = 0

    def tasks(self, *, split):
        return make_tasks()

    def seed_harness(self):
        return HARNESS

    def solve(self, task, *, style):
        return "abc"

    def playbook(self):
        return ()

    def validate(self):
        raise NotImplementedError

    def verify(self, task, completion, *, finish_reason, token_count=0):
        self.count += 1
        if self.fault == "solved":
            return Scored(parts={"exact": 1.0}, reward=1.0)
        if self.fault == "nan":
            return Scored(parts={"exact": 1.0}, reward=float("nan"))
        if self.fault and self.count >= self.at and self.strikes() < self.times:
            with (Path(self.notes) / "struck").open("a") as file:
                file.write(f"{os.getpid()}\n")
            self.strike()
        return super().verify(task, completion, finish_reason=finish_reason, token_count=token_count)

    def strikes(self) -> int:
        file = Path(self.notes) / "struck"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def strike(self) -> None:
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "hang":
            time.sleep(600)
        elif self.fault == "memory":
            torch.empty(32 << 30, dtype=torch.uint8)  # never touched: only an address-space limit refuses it
        elif self.fault == "noise":
            os.write(1, b'{"type":"done"}\n')  # what a library's C code prints
            print('{"type":"done"}', flush=True)


def install(folder: Path) -> None:
    """Put a distribution with the entry point into ``folder``, which goes on the import path."""
    info = folder / "faulty_letters-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-letters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cohelix.suites]\nfaulty_letters = letters_plugin:FaultySuite\n")


def make_job(home: Path, policy, config, *, steps: int = 2, first: int = 0, parent: Path | None = None, **options):
    suite = PluginConfig(type="plugin", name="faulty_letters", options=options)
    from evals.suites.registry import build_suite

    request = BlockRequest(
        parent=parent,
        harness=HARNESS,
        suite=build_suite(suite),
        tasks=make_tasks(),
        rollout_steps=steps,
        first_step=first,
        seed=7,
        config=config,
    )
    return TrainingJob.of(request, policy=policy, suite=suite, store=StoreAddress(home=str(home), scope="run-1"))
