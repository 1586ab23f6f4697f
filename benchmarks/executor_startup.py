"""What it costs to train in a child process instead of in this one: the same small block, cold and warm.

    python benchmarks/executor_startup.py [--repeats 3] [--json]

* ``in_process cold``: a fresh interpreter that imports the trainer and trains one block;
* ``subprocess cold``: a new child, from the call to the result;
* ``in_process warm`` and ``subprocess warm``: a further block where the libraries are loaded.

The block is one rollout step of the pocket policy on the metro suite, every time in a new home, so nothing is found in
a ledger. Every number is the median of ``--repeats`` blocks. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from evals.config import MetroConfig
from evals.suites.registry import build_suite
from policy.block import BlockRequest
from policy.config import PocketPolicyConfig, RlConfig
from policy.config_executor import InProcessConfig, SubprocessConfig
from policy.executor import make_executor
from policy.job import StoreAddress, TrainingJob, read_job

SUITE = MetroConfig(preset="pocket", train=64)


def make_job(home: Path) -> TrainingJob:
    """One rollout step of 4 prompts with 4 rollouts."""
    suite = build_suite(SUITE)
    request = BlockRequest(
        parent=None,
        harness=suite.seed_harness(),
        suite=suite,
        tasks=suite.tasks(split="train"),
        rollout_steps=1,
        first_step=0,
        seed=0,
        config=RlConfig(prompts_per_step=4, group_size=4, max_tokens=96),
    )
    return TrainingJob.of(
        request, policy=PocketPolicyConfig(), suite=SUITE, store=StoreAddress(home=str(home), scope="startup")
    )


def median_s(repeats: int, train: Callable[[TrainingJob], object]) -> float:
    """Median seconds of a block, every time in a new home."""
    taken = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as home:
            job = make_job(Path(home))
            started = time.perf_counter()
            train(job)
            taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def in_fresh_interpreter(job: TrainingJob) -> None:
    """Train in a new interpreter, which is what ``in_process`` costs a command that has imported nothing yet."""
    subprocess.run([sys.executable, __file__, "--train-from-stdin"], input=job.model_dump_json(), text=True, check=True)


def in_new_child(job: TrainingJob) -> None:
    """Train in a child that is started for it."""
    with make_executor(SubprocessConfig()) as executor:
        executor.run(job)


def measure(repeats: int) -> dict[str, float]:
    """Seconds by name."""
    here = make_executor(InProcessConfig(type="in_process"))
    seconds = {
        "in_process cold": median_s(repeats, in_fresh_interpreter),
        "subprocess cold": median_s(repeats, in_new_child),
    }
    median_s(1, here.run)  # the libraries are loaded here from now on
    with make_executor(SubprocessConfig()) as child:
        median_s(1, child.run)
        seconds["in_process warm"] = median_s(repeats, here.run)
        seconds["subprocess warm"] = median_s(repeats, child.run)
    return seconds


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--train-from-stdin", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.train_from_stdin:
        make_executor(InProcessConfig(type="in_process")).run(read_job(sys.stdin.read()))
        return
    seconds = measure(options.repeats)
    ratios = {name: seconds[f"subprocess {name}"] / seconds[f"in_process {name}"] for name in ("cold", "warm")}
    if options.json:
        print(json.dumps({"seconds": seconds, "subprocess_over_in_process": ratios}, indent=2))
        return
    for name, value in seconds.items():
        print(f"{name:16} {value:7.2f} s")
    for name, ratio in ratios.items():
        print(f"subprocess over in_process, {name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
