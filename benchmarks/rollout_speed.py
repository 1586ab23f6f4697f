"""Tokens a CPU second of rollouts: through the collector, from the bare engine, and from the library's own generate.

    python benchmarks/rollout_speed.py [--prompts 12] [--group-size 8] [--repeats 5] [--output FILE]

One policy, one set of prompts, one process; the variants take turns, so a busy machine hits them alike, and a ratio
compares neighbours in time. A token is one that was sampled, its end token included; a second is one of this
process' CPU time on one thread, which other programs on the machine disturb least.

* ``collector``: prompts rendered, answers scored, the batch recorded (in memory), as in a training step;
* ``engine_in_collector``: the bare engine inside that very step (goal: collector / engine_in_collector >= 0.95);
* ``engine``: the bare engine on exactly those prompts and seeds, once more;
* ``generate``: transformers' own ``generate`` on the same token ids, in the same batch size;
* ``no_reuse``: the engine without shared prefixes, every rollout's prompt prefilled whole;
* ``short``, ``short_no_reuse``: both with answers of ``--short-tokens`` tokens, where prefill weighs more;
* ``uneven``, ``uneven_refill``: a quarter of the places, so that rows wait for places, without and with refill.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from pydantic import JsonValue

from evals.config import MetroConfig
from evals.suites.registry import build_suite
from harness.protocols import Prompt
from harness.records import Generation, Sampling
from policy.block import suite_score
from policy.config import DynamicSampling, RlConfig
from policy.engines.refill import RefillingEngine
from policy.engines.transformers_engine import Request, TransformersEngine
from policy.load import load_policy
from policy.rollout import Collector
from policy.task_stream import TaskStream
from policy.weights import all_weights_id

RATIOS = {
    "collector_over_engine": ("collector", "engine_in_collector"),
    "engine_over_generate": ("engine", "generate"),
    "prefix_reuse_gain": ("engine", "no_reuse"),
    "prefix_reuse_gain_short_answers": ("short", "short_no_reuse"),
    "refill_gain": ("uneven_refill", "uneven"),
}


class WholePrefills(TransformersEngine):
    """The engine with every row a prompt of its own and no shared prefix."""

    def _prepare(self, prompts: Sequence[Prompt]) -> Request:
        made = super()._prepare(prompts)
        rows = made.row_prompts
        return Request(
            prompts,
            [made.token_ids[row] for row in rows],
            [made.images[row] for row in rows],
            {},
            list(range(len(rows))),
        )


class Listening:
    """An engine that keeps what it was asked, so that others can be asked the same."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine
        self.asked: list[tuple[list[Prompt], Sampling]] = []
        self.tokens = 0
        self.seconds = 0.0

    @property
    def policy_id(self) -> str:
        """See :class:`harness.protocols.RolloutEngine`."""
        return self._engine.policy_id

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """See :class:`harness.protocols.RolloutEngine`."""
        self.asked.append((list(prompts), sampling))
        started = time.process_time()
        made = self._engine.generate(prompts, sampling, progress=progress)
        self.seconds += time.process_time() - started
        self.tokens += sum(len(one.token_ids) for one in made)
        return made


class Nothing:
    """A ledger that keeps one process' entries."""

    def __init__(self) -> None:
        self._entries: dict[str, JsonValue] = {}

    def find(self, key: str) -> JsonValue | None:
        """See :class:`harness.protocols.WorkLedger`."""
        return self._entries.get(key)

    def record(self, key: str, *, kind: str, result: JsonValue) -> JsonValue:
        """See :class:`harness.protocols.WorkLedger`."""
        return self._entries.setdefault(key, result)


class Measured(NamedTuple):
    """One variant in one turn."""

    tokens_per_s: float
    passes: int
    """Forward passes of the model, prefills included; what a device pays that is not filled by one pass."""


@dataclass
class Bench:
    """The policy, its prompts and the variants."""

    model: Any
    tokenizer: Any
    suite: Any
    config: RlConfig
    batch_size: int
    short_tokens: int

    def engine(self, kind: type[TransformersEngine] = TransformersEngine, places: int = 0) -> TransformersEngine:
        """An engine over the policy."""
        shared = {} if kind is not WholePrefills else {"is_prefix_shared": False}
        policy_id = all_weights_id(self.model)
        return kind(self.model, self.tokenizer, policy_id, places or self.batch_size, **shared)

    def collect(self, step: int) -> tuple[Listening, float]:
        """One rollout step: its engine, and the seconds of all of it."""
        engine = Listening(self.engine())
        collector = Collector(
            engine=engine,
            harness=self.suite.seed_harness(),
            stream=TaskStream(self.suite.tasks(split="train"), 0),
            config=self.config,
            score=suite_score(self.suite),
            seed=0,
            rows_at_once=self.batch_size,
        )
        ledger = Nothing()
        started = time.process_time()
        collector.collect(step, step * self.config.prompts_per_step, ledger)
        seconds = time.process_time() - started
        return engine, seconds

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> int:
        """The library's own generate in batches; returns its sampled tokens."""
        ids = self.engine().encode([prompt.messages for prompt in prompts])
        ids.sort(key=len)
        count, end = 0, self.tokenizer.eos_token_id
        for start in range(0, len(ids), self.batch_size):
            batch = self.tokenizer.pad({"input_ids": ids[start : start + self.batch_size]}, return_tensors="pt")
            width = batch["input_ids"].shape[1]
            with torch.inference_mode():
                made = self.model.generate(
                    **batch, max_new_tokens=sampling.max_tokens, do_sample=True, temperature=1.0, top_p=1.0, top_k=0
                )
            for row in made[:, width:].tolist():
                count += row.index(end) + 1 if end in row else len(row)
        return count

    def turn(self, step: int) -> dict[str, Measured]:
        """Every variant on one rollout step's prompts."""
        engine, seconds = self.collect(step)
        ((prompts, sampling),) = engine.asked
        short = sampling.model_copy(update={"max_tokens": self.short_tokens})
        few = self.batch_size // 4
        plans: dict[str, tuple[TransformersEngine, Sampling]] = {
            "engine": (self.engine(), sampling),
            "no_reuse": (self.engine(WholePrefills), sampling),
            "short": (self.engine(), short),
            "short_no_reuse": (self.engine(WholePrefills), short),
            "uneven": (self.engine(places=few), sampling),
            "uneven_refill": (self.engine(RefillingEngine, few), sampling),
        }

        def answer(name: str) -> Callable[[], int]:
            engine, asked = plans[name]
            return lambda: count(engine.generate(prompts, asked))

        runs: dict[str, Callable[[], int]] = {name: answer(name) for name in plans}
        runs["generate"] = lambda: self.generate(prompts, sampling)
        made = {
            "collector": Measured(engine.tokens / seconds, 0),
            "engine_in_collector": Measured(engine.tokens / engine.seconds, 0),
        }
        return made | {name: self.measure(run) for name, run in runs.items()}

    def measure(self, run: Callable[[], int]) -> Measured:
        """Speed and forward passes of one variant."""
        passes = []
        handle = self.model.register_forward_pre_hook(lambda module, arguments: passes.append(1))
        started = time.process_time()
        tokens = run()
        seconds = time.process_time() - started
        handle.remove()
        return Measured(tokens / seconds, len(passes))


def count(generations: Sequence[Generation]) -> int:
    """Sampled tokens; a failed attempt would spoil the figure."""
    failed = [one.error for one in generations if one.error]
    if failed:
        raise SystemExit(f"an attempt failed: {failed[0]}")
    return sum(len(one.token_ids) for one in generations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="pocket", help="folder of another policy")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--short-tokens", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load_policy(options.policy)
    config = RlConfig(
        prompts_per_step=options.prompts,
        group_size=options.group_size,
        max_tokens=options.max_tokens,
        dynamic_sampling=DynamicSampling(enabled=False),
    )
    bench = Bench(model, tokenizer, build_suite(MetroConfig()), config, options.batch_size, options.short_tokens)
    bench.turn(0)  # warm-up
    turns = [bench.turn(step) for step in range(1, options.repeats + 1)]
    ratios = {
        name: [turn[top].tokens_per_s / turn[bottom].tokens_per_s for turn in turns]
        for name, (top, bottom) in RATIOS.items()
    }
    result = {
        "settings": {name: value for name, value in vars(options).items() if name != "output"},
        "machine": {"processor": platform.processor() or platform.machine(), "threads": 1, "load": os.getloadavg()[0]},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "tokens_per_cpu_s": {
            name: round(statistics.median(turn[name].tokens_per_s for turn in turns), 1) for name in turns[0]
        },
        "forward_passes": {name: turns[-1][name].passes for name in turns[0] if turns[-1][name].passes},
        "ratios": {
            name: {"median": round(statistics.median(values), 3), "all": [round(value, 3) for value in values]}
            for name, values in ratios.items()
        },
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
