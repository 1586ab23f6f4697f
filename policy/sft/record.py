"""Records for supervised fine-tuning, made from accepted traces. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.model import Harness
from harness.records import Message, Record, Scored, Task, Trace
from harness.render import render
from policy.errors import TrainingError
from policy.rollout_record import RolloutBatch


class SftRecord(Record):
    """One prompt and the completion to learn."""

    record_id: str
    """Names the record in every message about it; a trace's id, where it comes from one."""
    prompt: tuple[Message, ...]
    completion: str
    harness_id: str = ""
    """Harness that the prompt was rendered with."""
    token_ids: tuple[int, ...] = ()
    """Ids that the policy itself sampled, the end token included; empty where the text came from elsewhere. They are
    trained as they are, since text does not always encode to the ids that it was decoded from."""


def sft_records(
    traces: Iterable[Trace],
    tasks: Sequence[Task],
    harness: Harness,
    *,
    is_exact_only: bool = True,
    token_ids: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[SftRecord, ...]:
    """Records of accepted traces: the prompt as it was rendered, the completion as it was written.

    Args:
        traces: attempts under ``harness``, in the order wanted. Unscored ones are left out.
        tasks: among them every task of a kept trace.
        harness: what the prompts were rendered with.
        is_exact_only: False keeps every scored trace instead of the exact ones.
        token_ids: sampled ids by trace id, see :func:`sampled_token_ids`; only for traces of the policy to be trained.

    Raises:
        TrainingError: a kept trace was truncated, ran under another harness, is of a task that is not given or of
            another split than train; the message names it.

    Source: METHODS §2, Harness I step 7 (audited accepted traces are the material of SFT).
    """
    by_id = {task.task_id: task for task in tasks}
    kept = [trace for trace in traces if _is_accepted(trace, is_exact_only)]
    for trace in kept:
        _check(trace, by_id, harness)
    return tuple(
        SftRecord(
            record_id=trace.trace_id,
            prompt=render(harness, by_id[trace.task_id].inputs, by_id[trace.task_id].images),
            completion=trace.completion,
            harness_id=trace.harness_id,
            token_ids=(token_ids or {}).get(trace.trace_id, ()),
        )
        for trace in kept
    )


def sampled_token_ids(batches: Iterable[RolloutBatch]) -> dict[str, tuple[int, ...]]:
    """Sampled ids of every attempt of rollout batches, by trace id."""
    return {
        trace.trace_id: attempt.token_ids
        for batch in batches
        for trace, attempt in zip(
            batch.traces(), (attempt for group in batch.groups for attempt in group.attempts), strict=True
        )
        if attempt.token_ids
    }


def _is_accepted(trace: Trace, is_exact_only: bool) -> bool:
    if not isinstance(trace.verdict, Scored):
        return False
    return not is_exact_only or trace.verdict.parts["exact"] == 1.0


def _check(trace: Trace, tasks: Mapping[str, Task], harness: Harness) -> None:
    if trace.finish_reason != "stop":
        raise TrainingError(
            f"trace {trace.trace_id} ended by {trace.finish_reason!r}, not by the policy's own stop; a cut completion "
            "would teach to stop in mid-sentence; leave it out or sample it again with more max_tokens"
        )
    if trace.harness_id != harness.harness_id:
        raise TrainingError(
            f"trace {trace.trace_id} ran under harness {trace.harness_id}, the prompts would be rendered with "
            f"{harness.harness_id}; give the traces of one harness with that harness"
        )
    if trace.split != "train" or trace.task_id not in tasks:
        raise TrainingError(
            f"trace {trace.trace_id} is of task {trace.task_id} (split {trace.split}); expected one of the "
            f"{len(tasks)} train tasks given; give its task, or leave out traces of other splits"
        )
