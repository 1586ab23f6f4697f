"""What to evaluate, and the identity of that work: seeds and ledger keys."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from harness.errors import UserError
from harness.model import Harness
from harness.protocols import RolloutEngine
from harness.records import FinishReason, Sampling, Scored, Split, Task, content_id


class Scorer(Protocol):
    """The part of :class:`evals.suites.base.Suite` that an evaluation needs."""

    @property
    def name(self) -> str:
        """Unique name, shown in reports."""
        ...

    @property
    def fingerprint(self) -> str:
        """Content id of all tasks and verifier settings."""
        ...

    def verify(self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0) -> Scored:
        """Score one completion; pure and deterministic."""
        ...


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What to measure; together with the engine it decides the ledger key."""

    suite: Scorer
    harness: Harness
    tasks: Sequence[Task]
    split: Split
    """Every task must be of this split."""
    sampling: Sampling
    purpose: str
    """Why: ``gate``, ``report``…; part of the identity, so equal work for two purposes is done twice."""
    replicates: int = 1
    """Independent attempts per task."""
    max_retries: int = 2
    """Further tries of an attempt that the engine failed on."""
    batch_size: int = 256
    """Attempts per engine call and ledger entry; a kill loses at most one batch. Part of the identity."""
    max_unscored_share: float = 0.05
    """Above this the evaluation is returned but not recorded, so that a resumed run measures again."""

    def __post_init__(self) -> None:
        """Refuse a request that cannot be measured."""
        ids = [task.task_id for task in self.tasks]
        strays = sorted({task.split for task in self.tasks} - {self.split})
        if not ids or self.replicates < 1 or self.batch_size < 1 or self.max_retries < 0:
            raise UserError(
                f"evaluation for {self.purpose} measures nothing",
                got=f"{len(ids)} tasks, {self.replicates} replicates, batches of {self.batch_size}",
                expected="at least one of each",
            )
        if strays:
            raise UserError(
                f"evaluation for {self.purpose} mixes splits", got=f"tasks of {strays}", expected=f"only {self.split!r}"
            )
        if len(set(ids)) != len(ids):
            raise UserError(f"evaluation for {self.purpose} names a task twice", do="use replicates to repeat tasks")


def attempt_seed(seed: int, task_id: str, replicate: int) -> int:
    """The 31-bit prompt seed of one attempt, the same for every harness and policy."""
    digest = hashlib.sha256(f"{seed}\0{task_id}\0{replicate}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def evaluation_key(request: EvaluationRequest, engine: RolloutEngine) -> str:
    """The ledger key: hash of everything that decides the result, ``purpose`` and ``replicates`` included."""
    task_ids: list[JsonValue] = [task.task_id for task in request.tasks]
    inputs = shared_inputs(request, engine) | {"tasks": task_ids, "replicates": request.replicates}
    return content_id(inputs, prefix="evaluation")


def shared_inputs(request: EvaluationRequest, engine: RolloutEngine) -> dict[str, JsonValue]:
    """What decides every attempt of an evaluation, besides the task and the replicate."""
    return {
        "policy_id": engine.policy_id,
        "engine": engine_identity(engine),
        "harness_id": request.harness.harness_id,
        "suite_fingerprint": request.suite.fingerprint,
        "split": request.split,
        "sampling": request.sampling.model_dump(mode="json"),
        "purpose": request.purpose,
        "batch_size": request.batch_size,
    }


def engine_identity(engine: RolloutEngine) -> str:
    """An engine's own ``identity`` (settings that move its samples), else its class name."""
    identity = getattr(engine, "identity", None)
    return identity if isinstance(identity, str) else type(engine).__name__
