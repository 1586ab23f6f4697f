"""Train a block in a process of its own: ``python block_script.py HOME KIND FIRST STEPS PARENT KILL``.

KILL is ``-``, or ``record:N`` / ``saved:N``: SIGKILL this process right before its N-th ledger record, or right
after its N-th checkpoint reached the disk; or ``full:N``: files can no longer grow from the N-th checkpoint on, as on
a full disk. Prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import tiny_policy
from tiny_suite import HARNESS, LetterSuite, make_tasks

from harness.model import Harness
from memory.records import RunRecord
from memory.store import Store
from policy.config import HfPolicyConfig, LoraConfig, RlConfig
from policy.trainer import BlockRequest, GrpoBlockTrainer

CONFIG = RlConfig(
    prompts_per_step=4,
    group_size=4,
    updates_per_rollout_step=2,
    micro_batch_size=4,
    learning_rate=5e-3,
    weight_decay=0.01,
    warmup_updates=5,
    max_tokens=10,
    checkpoint_every=1,
)


def base_folder(home: Path) -> Path:
    folder = home / "base"
    if not (folder / "config.json").exists():
        tokenizer = tiny_policy.tiny_tokenizer()
        tiny_policy.tiny_llama(tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def policy_config(home: Path, kind: str) -> HfPolicyConfig:
    lora = LoraConfig(r=4, alpha=8, dropout=0.1) if kind == "lora" else None
    return HfPolicyConfig(type="hf", model=str(base_folder(home)), lora=lora, batch_size=16)


class DeadlyLedger:
    """A store's ledger that kills the process before its N-th record."""

    def __init__(self, ledger, deadly: int) -> None:
        self._ledger, self._deadly, self._count = ledger, deadly, 0

    def find(self, key):
        return self._ledger.find(key)

    def record(self, key, *, kind, result):
        self._count += 1
        if self._count == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._ledger.record(key, kind=kind, result=result)


def kill_after_save(number: int) -> None:
    from policy import training_state

    save, count = training_state.save_checkpoint, 0

    def save_and_die(root, checkpoint):
        nonlocal count
        saved = save(root, checkpoint)
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return saved

    training_state.save_checkpoint = save_and_die


def fill_disk_at(number: int) -> None:
    from policy import training_state

    save, count = training_state.save_checkpoint, 0

    def save_on_a_full_disk(root, checkpoint):
        nonlocal count
        count += 1
        if count >= number:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))
        return save(root, checkpoint)

    training_state.save_checkpoint = save_on_a_full_disk


def open_ledger(home: Path):
    store = Store.open(home)
    if not any(run.run_id == "run-1" for run in store.runs.list()):
        store.runs.create(RunRecord(run_id="run-1", strategy="vace", suite="letters", config={}, identity={}))
    return store.ledger("run-1")


def block(
    policy,
    home: Path,
    first: int,
    steps: int,
    parent: Path | None,
    config: RlConfig = CONFIG,
    harness: Harness = HARNESS,
):
    """A trainer of a policy and the request for one block."""
    request = BlockRequest(
        parent=parent,
        harness=harness,
        suite=LetterSuite(),
        tasks=make_tasks(),
        rollout_steps=steps,
        first_step=first,
        seed=7,
        config=config,
    )
    return GrpoBlockTrainer(policy, home), request


def train(
    home: Path, kind: str, first: int, steps: int, parent: Path | None, ledger, config: RlConfig = CONFIG, **more
):
    trainer, request = block(policy_config(home, kind), home, first, steps, parent, config, **more)
    return trainer.train(request, ledger)


def main() -> None:
    home, kind, first, steps, parent, kill = sys.argv[1:]
    ledger = open_ledger(Path(home))
    what, _, number = kill.partition(":")
    if what == "record":
        ledger = DeadlyLedger(ledger, int(number))
    elif what == "saved":
        kill_after_save(int(number))
    elif what == "full":
        fill_disk_at(int(number))
    result = train(Path(home), kind, int(first), int(steps), None if parent == "-" else Path(parent), ledger)
    summary = {
        "checkpoint": str(result.checkpoint),
        "checkpoint_id": result.checkpoint_id,
        "policy_id": result.policy_id,
        "traces": [trace.trace_id for trace in result.traces],
        "losses": [step.losses for step in result.steps],
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
