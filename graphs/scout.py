"""Attempts of a pair through the explorer: measurements on val and test, diagnostic traces on train."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from agents.explorer import EXPLORE, REPORT, Explorer
from evals.evaluation import Evaluation
from evals.request import EvaluationRequest, evaluation_key
from evals.suites.base import Suite
from graphs.config import RunConfig
from graphs.lab import Lab
from graphs.seeds import derive_seed
from graphs.work import Produced, Work, by_role
from harness.model import Harness
from harness.records import Sampling, Split, Task

VAL_PURPOSE = "gate"
"""All val measurements have one purpose, so a pair is measured once, whoever asks."""


class Scout:
    """Runs the explorer on a run's tasks with a run's seeds."""

    def __init__(self, config: RunConfig, suite: Suite, explorer: Explorer, lab: Lab, work: Work) -> None:
        self._config = config
        self._suite = suite
        self._explorer = explorer
        self._lab = lab
        self._work = work

    def tasks(self, *, split: Split) -> tuple[Task, ...]:
        """The tasks of a split that this run may read."""
        wanted: int | None = getattr(self._config.budget.tasks, split)
        return self._suite.tasks(split=split)[:wanted]

    def measure(self, checkpoint_id: str, harness: Harness, *, split: Split) -> Evaluation:
        """A pair on val or test; the same tasks, decoding and seeds every time."""
        replicates = self._config.budget.replicates
        request = self._request(
            harness,
            self.tasks(split=split),
            split=split,
            purpose=VAL_PURPOSE if split == "val" else REPORT,
            replicates=replicates.val if split == "val" else replicates.test,
            seed=derive_seed(self._config.seed, split),
        )
        return self._run(request, checkpoint_id)

    def explore(self, checkpoint_id: str, harness: Harness, *, count: int, round_number: int) -> str:
        """Attempts at ``count`` train tasks drawn for this round; returns the ledger key of their trace ids."""
        pool = self.tasks(split="train")
        seed = derive_seed(self._config.seed, EXPLORE, round_number)
        tasks = random.Random(seed).sample(pool, min(count, len(pool)))
        request = self._request(harness, tasks, split="train", purpose=EXPLORE, replicates=1, seed=seed)
        evaluation = self._run(request, checkpoint_id)
        key = f"evidence-{evaluation.evaluation_id}"
        ids: list[Any] = list(evaluation.trace_ids)
        self._work.ledger.record(key, kind="evidence", result=Produced(result=ids).model_dump(mode="json"))
        return key

    def _request(
        self, harness: Harness, tasks: Sequence[Task], *, split: Split, purpose: str, replicates: int, seed: int
    ) -> EvaluationRequest:
        strategy = self._config.strategy
        return EvaluationRequest(
            suite=self._suite,
            harness=harness,
            tasks=tasks,
            split=split,
            sampling=Sampling(
                temperature=strategy.evaluation.temperature,
                top_p=strategy.evaluation.top_p,
                max_tokens=strategy.answer_tokens,
                seed=seed,
            ),
            purpose=purpose,
            replicates=replicates,
            max_unscored_share=strategy.max_unscored_share,
        )

    def _run(self, request: EvaluationRequest, checkpoint_id: str) -> Evaluation:
        started = time.monotonic()
        engine = self._lab.engine(checkpoint_id)
        key = evaluation_key(request, engine)
        is_reused = self._work.ledger.find(key) is not None
        recorder = self._work.recorder
        text = f"{request.split} attempts"
        done = self._explorer.explore(
            request, engine, progress=lambda made, total: recorder.tell("progress", text, done=made, total=total)
        )
        attempts = 0 if request.split == "train" else done.evaluation.scored + done.evaluation.unscored
        produced = by_role(done).model_copy(update={"evaluations": attempts})
        self._work.note("explorer", "explore", key, produced, is_reused=is_reused, seconds=time.monotonic() - started)
        return done.evaluation
