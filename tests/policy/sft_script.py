"""Run an SFT stage in a process of its own: ``python sft_script.py HOME KIND KILL``.

KILL is ``-``, or ``record:N`` / ``saved:N`` as in block_script, or ``memory`` for a ledger in memory. Prints the result
as JSON, on a line of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import block_script
from scripted_engine import DictLedger

from harness.records import Message
from policy.config import SftConfig
from policy.sft.block import SftBlockTrainer, SftRecord, SftRequest

CONFIG = SftConfig(
    epochs=2, batch_size=4, micro_batch_size=2, learning_rate=1e-2, warmup_ratio=0.3, max_tokens=200, checkpoint_every=1
)


def make_records(count: int = 7) -> tuple[SftRecord, ...]:
    return tuple(
        SftRecord(
            record_id=f"r{index}",
            prompt=(
                Message(role="system", content="Find the route."),
                Message(role="user", content="Red+ : K01 K02 K03 ; " * (index % 3 + 1)),
            ),
            completion="K01-K02" + "-K03" * (index % 4),
        )
        for index in range(count)
    )


def train(home: Path, kind: str, ledger, config: SftConfig = CONFIG, records=None, **more):
    request = SftRequest(records=records or make_records(), config=config, **more)
    return SftBlockTrainer(block_script.policy_config(home, kind), home).train(request, ledger)


def main() -> None:
    home, kind, kill = sys.argv[1:]
    ledger = DictLedger() if kill == "memory" else block_script.open_ledger(Path(home))
    what, _, number = kill.partition(":")
    if what == "record":
        ledger = block_script.DeadlyLedger(ledger, int(number))
    elif what == "saved":
        block_script.kill_after_save(int(number))
    result = train(Path(home), kind, ledger)
    if os.environ.get("RANK", "0") == "0":
        print(result.model_dump_json())


if __name__ == "__main__":
    main()
