"""Does the pocket policy follow its harness? Measured at fixed weights.

Prints one table and, with ``--json FILE``, writes every number:

* accuracy of eleven harness variants on three disjoint val sets: spread, best, worst, Kendall tau;
* what the misleading rule and the neutral sentence do, paired by task;
* how much of each wording's effect its held-out paraphrases keep (``benchmarks/heldout``);
* evaluation throughput in attempts a minute.

Run: ``python benchmarks/pocket_harness.py [--weights DIR] [--tasks 500] [--threads 2]``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics as stats
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from evals.statistics import kendall_tau
from evals.suites.metro import MetroSuite
from evals.suites.metro_text import STYLES
from harness.edit import AddSkill, AppendExecution, SetExecution, apply_edits
from harness.model import Demonstration, Harness
from harness.protocols import Prompt
from harness.records import Sampling, Task
from harness.render import render
from policy.engines.transformers_engine import TransformersEngine
from policy.load import load_policy
from policy.pocket.corpus import wordings

HELD_OUT = Path(__file__).parent / "heldout"
GUARDS = ("careful", "mark_transfer")
MISLEADING = "reverse"


def held_out(directive: str) -> tuple[str, ...]:
    """Wordings that no code of the training has seen."""
    return tuple((HELD_OUT / f"{directive}.txt").read_text(encoding="utf-8").strip().splitlines())


def with_skill(harness: Harness, *texts: str) -> Harness:
    """One skill per text, the text in its action."""
    edits = [AddSkill(title=f"Rule {text[:24]}", trigger="Every task.", action=text) for text in texts]
    return apply_edits(harness, edits)


def with_protocol(harness: Harness, text: str) -> Harness:
    """The execution protocol replaced."""
    return apply_edits(harness, [SetExecution(text=text)])


def with_demonstration(suite: MetroSuite, harness: Harness, style: str) -> Harness:
    """One worked example of a train task that changes lines."""
    tasks = suite.tasks(split="train")
    task = min((t for t in tasks if t.strata["query"] != "easy"), key=lambda t: len(t.inputs["map"]))
    example = Demonstration(
        demonstration_id="d1", task_id=task.task_id, inputs=task.inputs, completion=suite.solve(task, style=style)
    )
    return harness.model_copy(update={"demonstrations": (example,)})


def variants(suite: MetroSuite) -> dict[str, Harness]:
    """The harness variants: the first training wording of each directive."""
    seed = suite.seed_harness()
    first = {name: wordings(name)[0] for name in (*STYLES, *GUARDS, MISLEADING)}
    return {
        "seed": seed,
        **{f"protocol {style}": with_protocol(seed, first[style]) for style in STYLES},
        "guard mark": with_skill(seed, first["mark_transfer"]),
        "guard check": with_skill(seed, first["careful"]),
        "guards both": with_skill(seed, first["careful"], first["mark_transfer"]),
        "demonstration": with_demonstration(suite, seed, "hops"),
        "misleading rule": with_skill(seed, first[MISLEADING]),
        "neutral sentence": apply_edits(seed, [AppendExecution(text=wordings("neutral")[0])]),
    }


@dataclass
class Bench:
    """Runs harnesses on tasks and counts time."""

    engine: TransformersEngine
    suite: MetroSuite
    attempts: int = 0
    seconds: float = 0.0
    styles: dict[str, int] = field(default_factory=dict)

    def exact(self, harness: Harness, tasks: tuple[Task, ...]) -> list[float]:
        """Exact score per task, one sampled rollout each, common random numbers across harnesses."""
        prompts = [Prompt(messages=render(harness, task.inputs), seed=number) for number, task in enumerate(tasks)]
        started = time.monotonic()
        answers = self.engine.generate(prompts, Sampling(max_tokens=128, seed=11))
        self.seconds += time.monotonic() - started
        self.attempts += len(tasks)
        scores = []
        for task, answer in zip(tasks, answers, strict=True):
            if answer.finish_reason == "error":
                raise RuntimeError(f"the engine failed: {answer.error}")
            verdict = self.suite.verify(task, answer.text, finish_reason=answer.finish_reason)
            scores.append(verdict.parts["exact"])
        return scores


def paraphrase_effects(bench: Bench, tasks: tuple[Task, ...], base: float) -> dict[str, dict[str, float]]:
    """Effect of five training wordings and of ten held-out ones, against the seed harness."""
    rows = {}
    seed = bench.suite.seed_harness()
    for name in (*STYLES, *GUARDS, MISLEADING):
        edit = with_protocol if name in STYLES else with_skill
        seen = [stats.fmean(bench.exact(edit(seed, text), tasks)) for text in wordings(name)[:100:20]]
        new = [stats.fmean(bench.exact(edit(seed, text), tasks)) for text in held_out(name)]
        effect, kept = stats.fmean(seen) - base, stats.fmean(new) - base
        rows[name] = {"trained": effect, "held_out": kept, "kept_share": kept / effect if effect else float("nan")}
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="pocket")
    parser.add_argument("--tasks", type=int, default=500, help="tasks in each of the three val sets")
    parser.add_argument("--paraphrase-tasks", type=int, default=250, help="val tasks behind each paraphrase")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load_policy(options.weights)
    suite = MetroSuite("pocket", 0, counts={"val": 3 * options.tasks})
    bench = Bench(TransformersEngine(model, tokenizer, "policy-benchmark", 256), suite)
    tasks = suite.tasks(split="val")
    sets = [tasks[number::3] for number in range(3)]
    scores = {name: [bench.exact(harness, part) for part in sets] for name, harness in variants(suite).items()}
    table = {name: [stats.fmean(part) for part in parts] for name, parts in scores.items()}
    print(f"{'variant':18s} set 1  set 2  set 3   mean")
    for name, row in sorted(table.items(), key=lambda item: -stats.fmean(item[1])):
        print(f"{name:18s} {row[0]:.3f}  {row[1]:.3f}  {row[2]:.3f}  {stats.fmean(row):.3f}", flush=True)
    columns = [[row[number] for row in table.values()] for number in range(3)]
    names = list(table)
    taus = [kendall_tau(one, two) for one, two in itertools.combinations(columns, 2)]
    best = [names[column.index(max(column))] for column in columns]
    worst = [names[column.index(min(column))] for column in columns]
    spreads = [max(column) - min(column) for column in columns]
    mean = {name: stats.fmean(row) for name, row in table.items()}
    print(f"spread {[round(100 * s, 1) for s in spreads]} points; best {best}; worst {worst}")
    print(f"Kendall tau {[round(tau, 3) for tau in taus]}")
    print(f"misleading rule {100 * (mean['misleading rule'] - mean['seed']):+.1f} points")
    print(f"neutral sentence {100 * (mean['neutral sentence'] - mean['seed']):+.1f} points over {len(tasks)} pairs")
    few = sets[0][: options.paraphrase_tasks]
    base = stats.fmean(scores["seed"][0][: options.paraphrase_tasks])
    effects = paraphrase_effects(bench, few, base)
    for name, row in effects.items():
        print(
            f"wording {name:14s} trained {100 * row['trained']:+.1f}, held out {100 * row['held_out']:+.1f}, "
            f"kept {row['kept_share']:.2f}"
        )
    per_minute = 60 * bench.attempts / bench.seconds
    print(f"{bench.attempts} attempts, {per_minute:.0f} a minute on {options.threads} threads")
    if options.json:
        result = {
            "table": table, "taus": taus, "best": best, "worst": worst, "spreads": spreads,
            "paraphrases": effects, "attempts_per_minute": per_minute, "tasks_per_set": options.tasks,
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
