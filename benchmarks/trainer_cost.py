"""What a trained sample costs here, against TRL's own GRPOTrainer: same model, tasks, batch and length.

    python benchmarks/trainer_cost.py [--policy FOLDER] [--steps 6] [--half-solved 64] [--threads 1] [--json]

Three runs of the same model from the same weights over the same stream of tasks:

* ``trl``: plain GRPOTrainer, its own generation, no dynamic sampling;
* ``ours_off``: this project's trainer, dynamic sampling off;
* ``ours_on``: this project's trainer, dynamic sampling on.

Ratios: seconds per trained sample of ours_off over trl (goal <= 1.05); seconds per sample of non-zero advantage
of ours_on over trl (goal <= 1.0); share of trained groups of ours_on with signal (goal >= 0.99), beside that of trl.
One warm-up step of every run is not counted. Run it on an idle machine.

With ``--half-solved N`` the pool has N tasks, chosen by measuring the policy before the runs: half are solved (every
rollout of a group exact), half are not (the group's rewards differ).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from pydantic import JsonValue
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from evals.config import MetroConfig
from evals.suites.registry import build_suite
from harness.protocols import Prompt
from harness.records import Sampling, Task
from harness.render import render
from policy.advantage import is_all_equal
from policy.config import AnyPolicyConfig, DynamicSampling, HfPolicyConfig, PocketPolicyConfig, RlConfig
from policy.load import load_policy, policy_source
from policy.task_stream import TaskStream, derive_seed
from policy.trainer import BlockRequest, GrpoBlockTrainer, StepMetrics, open_engine
from policy.trl_argument import trl_arguments


@dataclass
class Cost:
    """Counted steps of one run."""

    samples: int = 0
    """Samples that went through an update."""
    with_signal: int = 0
    """Those whose advantage is not zero."""
    groups: int = 0
    groups_with_signal: int = 0
    seconds: float = 0.0
    marks: list[float] = field(default_factory=list)
    """Clock at the end of every step; the first ends the warm-up."""

    @property
    def per_sample_s(self) -> float:
        """Seconds per trained sample."""
        return self.seconds / self.samples

    @property
    def per_signal_sample_s(self) -> float:
        """Seconds per trained sample of non-zero advantage."""
        return self.seconds / self.with_signal


class _Clock(TrainerCallback):
    def __init__(self, cost: Cost) -> None:
        self.cost = cost

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.cost.marks.append(time.perf_counter())


class MemoryLedger:
    """Keeps nothing beyond this process."""

    def __init__(self) -> None:
        self.entries: dict[str, JsonValue] = {}

    def find(self, key: str) -> JsonValue | None:
        """See :class:`harness.protocols.WorkLedger`."""
        return self.entries.get(key)

    def record(self, key: str, *, kind: str, result: JsonValue) -> JsonValue:
        """See :class:`harness.protocols.WorkLedger`."""
        return self.entries.setdefault(key, result)


def half_solved(
    policy: AnyPolicyConfig, suite: Any, tasks: tuple[Task, ...], config: RlConfig, size: int
) -> tuple[Task, ...]:
    """``size`` tasks, half of them solved by the untrained policy and half with rewards that differ.

    Raises:
        SystemExit: the tasks do not hold that many of both.
    """
    engine = open_engine(policy, threads=config.threads)
    harness, half, batch = suite.seed_harness(), size // 2, 32
    solved: list[Task] = []
    mixed: list[Task] = []
    for start in range(0, len(tasks), batch):
        part = tasks[start : start + batch]
        prompts = [
            Prompt(messages=render(harness, task.inputs), seed=derive_seed("pool", task.task_id, index))
            for task in part
            for index in range(config.group_size)
        ]
        sampling = Sampling(temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens)
        answers = iter(engine.generate(prompts, sampling))
        for task in part:
            verdicts = [
                suite.verify(task, made.text, finish_reason=made.finish_reason, token_count=len(made.token_ids))
                for made in (next(answers) for _ in range(config.group_size))
            ]
            if all(verdict.parts["exact"] == 1.0 for verdict in verdicts):
                solved.append(task)
            elif not is_all_equal([verdict.reward for verdict in verdicts]):
                mixed.append(task)
        if len(solved) >= half and len(mixed) >= half:
            return (*solved[:half], *mixed[:half])
    raise SystemExit(
        f"no half-solved pool: of {len(tasks)} tasks the policy solves {len(solved)} in all {config.group_size} "
        f"rollouts and {len(mixed)} in some; {half} of each are needed; lower --half-solved, --group-size or "
        "--temperature"
    )


def run_trl(
    policy: AnyPolicyConfig, suite: Any, tasks: tuple[Task, ...], config: RlConfig, steps: int, seed: int
) -> Cost:
    """Plain TRL on the task stream's order."""
    model, tokenizer = load_policy(policy_source(policy))
    stream, harness = TaskStream(tasks, seed), suite.seed_harness()
    drawn = [stream.at(position).task for position in range(config.prompts_per_step * (steps + 1))]
    rows = [[message.as_chat() for message in render(harness, task.inputs)] for task in drawn]
    cost, rewards_seen = Cost(), []

    def reward(prompts: Any, completions: Any, completion_ids: Any, index: list[int], **columns: Any) -> list[float]:
        made = []
        for number, completion, ids in zip(index, completions, completion_ids, strict=True):
            is_stopped = bool(ids) and ids[-1] == tokenizer.eos_token_id
            verdict = suite.verify(
                drawn[number],
                completion[0]["content"],
                finish_reason="stop" if is_stopped else "length",
                token_count=len(ids),
            )
            made.append(verdict.reward)
        rewards_seen.append(made)
        return made

    with tempfile.TemporaryDirectory() as folder:
        arguments = trl_arguments(config, rollout_steps=steps + 1, output_dir=folder, seed=seed, use_cpu=True)
        arguments.shuffle_dataset = False
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": rows, "index": list(range(len(rows)))}),
            processing_class=tokenizer,
            callbacks=[_Clock(cost)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    cost.seconds = cost.marks[-1] - cost.marks[0]
    for made in rewards_seen[1 : steps + 1]:
        count_groups(cost, made, config.group_size)
    return cost


def run_ours(
    policy: AnyPolicyConfig, suite: Any, tasks: tuple[Task, ...], config: RlConfig, steps: int, seed: int
) -> Cost:
    """This project's block trainer, checkpoints at the end only."""
    cost, kept = Cost(), []

    def progress(metrics: StepMetrics) -> None:
        cost.marks.append(time.perf_counter())
        kept.append(metrics)

    request = BlockRequest(
        parent=None,
        harness=suite.seed_harness(),
        suite=suite,
        tasks=tasks,
        rollout_steps=steps + 1,
        first_step=0,
        seed=seed,
        config=config,
    )
    ledger = MemoryLedger()
    with tempfile.TemporaryDirectory() as folder:
        GrpoBlockTrainer(policy, Path(folder)).train(request, ledger, progress)
    cost.seconds = cost.marks[-1] - cost.marks[0]
    batches = [entry for entry in ledger.entries.values() if isinstance(entry, dict) and "groups" in entry]
    for batch in sorted(batches, key=lambda entry: entry["step"])[1:]:
        for group in batch["groups"]:
            if group["fate"] == "trained":
                count(cost, [attempt["verdict"]["reward"] for attempt in group["attempts"]])
    return cost


def count_groups(cost: Cost, rewards: list[float], size: int) -> None:
    """Add the groups of one rollout step, which stand one after the other."""
    for start in range(0, len(rewards), size):
        count(cost, rewards[start : start + size])


def count(cost: Cost, rewards: list[float]) -> None:
    """Add one trained group; a sample whose reward is the group's mean has advantage zero."""
    mean = sum(rewards) / len(rewards)
    moved = sum(abs(reward - mean) > 1e-6 for reward in rewards)
    cost.samples += len(rewards)
    cost.with_signal += moved
    cost.groups += 1
    cost.groups_with_signal += moved > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", help="folder of another policy; the packaged one by default")
    parser.add_argument("--steps", type=int, default=6, help="counted rollout steps of every run")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a rollout step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--half-solved", type=int, default=0, metavar="N", help="train on N tasks, half of them solved")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    suite = build_suite(MetroConfig())
    tasks = suite.tasks(split="train")
    policy: AnyPolicyConfig = PocketPolicyConfig()
    if options.policy:
        policy = HfPolicyConfig(type="hf", model=options.policy, lora=None, batch_size=64)
    config = RlConfig(
        prompts_per_step=options.prompts,
        group_size=options.group_size,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        learning_rate=1e-5,
        threads=options.threads,
        checkpoint_every=0,
        dynamic_sampling=DynamicSampling(enabled=False),
    )
    if options.half_solved:
        tasks = half_solved(policy, suite, tasks, config, options.half_solved)
    on = config.model_copy(update={"dynamic_sampling": DynamicSampling()})
    trl = run_trl(policy, suite, tasks, config, options.steps, options.seed)
    ours_off = run_ours(policy, suite, tasks, config, options.steps, options.seed)
    ours_on = run_ours(policy, suite, tasks, on, options.steps, options.seed)
    report(trl, ours_off, ours_on, as_json=options.json)


def report(trl: Cost, ours_off: Cost, ours_on: Cost, *, as_json: bool) -> None:
    runs = {"trl": trl, "ours_off": ours_off, "ours_on": ours_on}
    table = {
        name: {
            "samples": cost.samples,
            "signal_samples": cost.with_signal,
            "seconds": round(cost.seconds, 3),
            "ms_per_sample": round(1000 * cost.per_sample_s, 2),
            "ms_per_signal_sample": round(1000 * cost.per_signal_sample_s, 2),
            "groups_with_signal": round(cost.groups_with_signal / cost.groups, 4),
        }
        for name, cost in runs.items()
    }
    goals = {
        "cost_per_sample_off": (ours_off.per_sample_s / trl.per_sample_s, "<= 1.05"),
        "cost_per_signal_sample_on": (ours_on.per_signal_sample_s / trl.per_signal_sample_s, "<= 1.0"),
        "groups_with_signal_on": (ours_on.groups_with_signal / ours_on.groups, ">= 0.99"),
        "groups_with_signal_trl": (trl.groups_with_signal / trl.groups, "none, to compare"),
    }
    if as_json:
        print(json.dumps({"runs": table, "ratios": {name: round(value, 4) for name, (value, _) in goals.items()}}))
        return
    for name, row in table.items():
        print(name, row)
    for name, (value, goal) in goals.items():
        print(f"{name}: {value:.3f} (goal {goal})")


if __name__ == "__main__":
    main()
