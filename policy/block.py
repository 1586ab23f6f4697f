"""A training block: what is asked for, what comes out, and the keys it is recorded under."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from evals.suites.base import Suite
from harness.model import Harness
from harness.protocols import WorkLedger
from harness.records import Generation, Record, Scored, Task, Trace, Unscored, content_id
from policy.checkpoint import Progress, read_manifest, verify_checkpoint
from policy.config import AnyPolicyConfig, RlConfig
from policy.errors import CheckpointError, TrainingError
from policy.rollout import Score
from policy.rollout_record import RolloutBatch, sampled_count
from policy.step_metric import StepMetrics
from policy.task_stream import TaskOrder, task_order


@dataclass(frozen=True)
class BlockRequest:
    """What to train."""

    parent: Path | None
    """Checkpoint folder to go on from; None starts from the base policy."""
    harness: Harness
    suite: Suite
    tasks: tuple[Task, ...]
    """Train tasks to draw from."""
    rollout_steps: int
    first_step: int
    """Absolute number of the block's first rollout step; the parent must have trained exactly that many."""
    seed: int
    config: RlConfig
    task_weights: dict[str, float] | None = None
    """Sampling weight by task id, 1 where a task is not named; None draws in shuffled passes."""
    order: TaskOrder | None = None
    """An order of the caller's own, for training in this process; it takes the place of ``task_weights``."""

    @property
    def task_order(self) -> TaskOrder:
        """In which order tasks are drawn."""
        return self.order or task_order(self.tasks, self.seed, self.task_weights)


@dataclass(frozen=True)
class BlockResult:
    """What came out."""

    checkpoint: Path
    checkpoint_id: str
    policy_id: str
    base_id: str
    progress: Progress
    traces: tuple[Trace, ...]
    """Every attempt of the block, dropped groups included, in the order they were made."""
    steps: tuple[StepMetrics, ...]
    stop: str = ""
    """Why the block ended before its last step; empty when it did not. The weights are those of the last step."""


class BlockRecord(Record):
    """A block, or its first steps, as the ledger keeps it."""

    checkpoint_id: str
    rollouts: tuple[str, ...]
    """Ledger keys of the rollout batches, in order."""
    steps: tuple[StepMetrics, ...]
    stop: str = ""


MERGED_MANIFEST = "merged.json"
"""Of a policy folder that :mod:`policy.merge` wrote; the folder is named after its weights."""


def policy_identity(policy: AnyPolicyConfig) -> dict[str, JsonValue]:
    """What of a policy decides the weights that training gives.

    A merged policy is known by its content id, wherever its folder stands.
    """
    chosen: dict[str, JsonValue] = policy.model_dump(mode="json", exclude={"executor", "telemetry"})
    if policy.type == "hf" and (Path(policy.model) / MERGED_MANIFEST).is_file():
        chosen["model"] = Path(policy.model).name
    processes = policy.executor.num_processes if policy.executor.type == "accelerate" else None
    return {"policy": chosen, **({"processes": processes} if processes else {})}


def block_identity(policy: AnyPolicyConfig, request: BlockRequest) -> dict[str, JsonValue]:
    """What every rollout batch of a block shares with the block's own key."""
    pool: list[JsonValue] = [task.task_id for task in request.tasks]
    return {
        "suite": request.suite.fingerprint,
        "pool": content_id(pool, prefix="pool"),
        **policy_identity(policy),
    }


def block_key(policy: AnyPolicyConfig, request: BlockRequest) -> str:
    """Ledger key of a block: the hash of everything that decides its weights."""
    inputs: dict[str, JsonValue] = {
        **block_identity(policy, request),
        "work": "training_block",
        "purpose": "training",
        "replicate": 0,
        "parent": read_manifest(request.parent).checkpoint_id if request.parent else None,
        "harness_id": request.harness.harness_id,
        "rollout_steps": request.rollout_steps,
        "first_step": request.first_step,
        "seed": request.seed,
        "config": request.config.model_dump(mode="json"),
        "order": request.task_order.fingerprint,
    }
    return content_id(inputs, prefix="block", length=32)


def suite_score(suite: Suite) -> Score:
    """Outcome reward by a suite's verifier; an exception inside it is an attempt without a score."""

    def score(task: Task, generation: Generation) -> Scored | Unscored:
        tokens = sampled_count(generation.token_ids, generation.token_mask)
        try:
            return suite.verify(task, generation.text, finish_reason=generation.finish_reason, token_count=tokens)
        except Exception as error:  # the boundary to user code
            return Unscored(
                boundary="user_code", error=f"verify of task {task.task_id}: {type(error).__name__}: {error}"
            )

    return score


def check_request(request: BlockRequest) -> None:
    """Refuse a request that cannot be trained.

    Raises:
        TrainingError: no steps, a pool smaller than a rollout step, tasks of another split, or weights and an order.
    """
    if request.order is not None and request.task_weights is not None:
        raise TrainingError("a block has an order of its own or task_weights, not both; give one of them")
    try:
        len(request.task_order)
    except ValueError as error:
        raise TrainingError(f"tasks cannot be drawn: {error}") from None
    if request.rollout_steps < 1:
        raise TrainingError(f"a block needs at least one rollout step; got {request.rollout_steps}")
    if len(request.tasks) < request.config.prompts_per_step:
        raise TrainingError(
            f"a rollout step needs {request.config.prompts_per_step} different tasks; the pool has "
            f"{len(request.tasks)}; give more tasks or lower prompts_per_step"
        )
    splits = {task.split for task in request.tasks} - {"train"}
    if splits:
        raise TrainingError(f"training may only see train tasks; got tasks of {sorted(splits)}; pass the train split")


def progress_key(block_key: str, steps: int) -> str:
    """Ledger key of a block's progress after some of its rollout steps."""
    return f"{block_key}-step-{steps}"


def find_result(key: str, checkpoints: Path, ledger: WorkLedger) -> BlockResult | None:
    """The result of a block that was finished before and whose checkpoint is whole, or None.

    Args:
        key: see :func:`block_key`.
        checkpoints: folder of all checkpoints.
        ledger: where the block is recorded.
    """
    finished = ledger.find(key)
    if finished is None:
        return None
    record = BlockRecord.model_validate(finished)
    return read_result(record, checkpoints, ledger) if is_whole(checkpoints / record.checkpoint_id) else None


def read_result(record: BlockRecord, checkpoints: Path, ledger: WorkLedger) -> BlockResult:
    """A finished block's result, its traces read back from the ledger's rollout batches."""
    path = checkpoints / record.checkpoint_id
    manifest = read_manifest(path)
    batches = [RolloutBatch.model_validate(ledger.find(key)) for key in record.rollouts]
    return BlockResult(
        checkpoint=path,
        checkpoint_id=record.checkpoint_id,
        policy_id=manifest.policy_id,
        base_id=manifest.base_id,
        progress=manifest.progress,
        traces=tuple(trace for batch in batches for trace in batch.traces()),
        steps=record.steps,
        stop=record.stop,
    )


def is_whole(path: Path) -> bool:
    """Whether a checkpoint folder holds every file as it was recorded."""
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True
