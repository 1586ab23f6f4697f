"""What an evaluation is: per attempt, per task and in total; and how two of them are paired."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from evals.statistics import Interval, mean, mean_interval, wilson_interval
from harness.errors import BoundaryError
from harness.records import Boundary, FinishReason, Record, Sampling, Split, Task, Usage

GATE_PART = "exact"
"""The verdict part that is the score of an attempt (:class:`harness.records.Scored`)."""


class EmptyMean(BoundaryError):
    """No attempt of an evaluation was scored, so it has no mean; it is not 0."""


class AttemptOutcome(Record):
    """One attempt in short; the whole of it is the trace."""

    task_id: str
    replicate: int
    trace_id: str
    score: float | None
    """``exact``; None when the attempt is unscored."""
    reward: float | None = None
    parts: dict[str, float] = {}
    faults: tuple[str, ...] = ()
    """Fault kinds that the verifier diagnosed."""
    finish_reason: FinishReason
    usage: Usage = Usage()
    """All tries together."""
    retries: int = 0
    """Tries after the first."""
    boundary: Boundary | None = None
    """Where an unscored attempt failed."""
    error: str = ""


class TaskScore(Record):
    """One task, averaged over its scored replicates."""

    task_id: str
    strata: dict[str, str] = {}
    score: float | None
    """None when no replicate was scored."""
    scored: int
    unscored: int
    trace_ids: tuple[str, ...]


class StratumMean(Record):
    """Mean over the scored tasks of one difficulty stratum."""

    mean: float
    tasks: int


class Evaluation(Record):
    """A pair measured on tasks of one split."""

    evaluation_id: str
    suite: str
    suite_fingerprint: str
    split: Split
    purpose: str
    policy_id: str
    engine: str
    """Identity of the engine that decoded."""
    harness_id: str
    sampling: Sampling
    replicates: int
    tasks: tuple[TaskScore, ...]
    attempts: tuple[AttemptOutcome, ...]
    mean: float
    """Mean over tasks, each averaged over its scored replicates."""
    scored: int
    """Attempts."""
    unscored: int
    """Attempts without a verdict after all retries; they are in no mean."""
    retries: int
    parts: dict[str, float]
    """Mean of each verdict part, over tasks as for ``mean``."""
    reward: float
    """Mean training reward, over tasks as for ``mean``."""
    strata: dict[str, dict[str, StratumMean]]
    """By stratum name and value."""
    faults: dict[str, int]
    """Attempts that show a fault kind, most frequent first."""
    truncated: int
    """Attempts that ran into the token limit."""
    usage: Usage

    @cached_property
    def scores(self) -> dict[str, float]:
        """Score by task id, scored tasks only."""
        return {task.task_id: task.score for task in self.tasks if task.score is not None}

    @property
    def trace_ids(self) -> tuple[str, ...]:
        """Ids of all traces, in order of attempts."""
        return tuple(attempt.trace_id for attempt in self.attempts)

    @property
    def unscored_share(self) -> float:
        """Share of attempts without a verdict."""
        return self.unscored / (self.scored + self.unscored)

    @property
    def replicate_means(self) -> tuple[float, ...]:
        """Mean over tasks of each replicate alone; replicates with no scored attempt are left out."""
        by_replicate: dict[int, list[float]] = defaultdict(list)
        for attempt in self.attempts:
            if attempt.score is not None:
                by_replicate[attempt.replicate].append(attempt.score)
        return tuple(mean(values) for _, values in sorted(by_replicate.items()))

    def interval(self, *, confidence: float = 0.95) -> Interval:
        """Interval of the mean; the task is the unit, so replicates of one task are not counted as new evidence.

        Wilson's for one pass/fail attempt a task, else Student's t over task means, cut to 0..1.
        """
        values = list(self.scores.values())
        if self.replicates == 1 and set(values) <= {0.0, 1.0}:
            return wilson_interval(int(sum(values)), len(values), confidence=confidence)
        if len(values) < 2:
            return Interval(low=0.0, high=1.0)  # one task says nothing about the spread
        wide = mean_interval(values, confidence=confidence)
        return Interval(low=max(0.0, wide.low), high=min(1.0, wide.high))


class PairedScores(Record):
    """Two evaluations over the attempts that both scored."""

    task_ids: tuple[str, ...]
    incumbent: tuple[float, ...]
    """Per task, mean over the replicates that both sides scored."""
    candidate: tuple[float, ...]
    excluded_tasks: tuple[str, ...]
    """Tasks with no replicate scored on both sides."""
    attempts: int
    """Attempt pairs."""
    excluded: int
    """Attempt pairs left out because at least one side is unscored."""

    @property
    def excluded_share(self) -> float:
        """Share of attempt pairs left out."""
        return self.excluded / self.attempts

    @property
    def differences(self) -> tuple[float, ...]:
        """Candidate − incumbent per task."""
        return tuple(after - before for before, after in zip(self.incumbent, self.candidate, strict=True))


def pair_evaluations(incumbent: Evaluation, candidate: Evaluation) -> PairedScores:
    """Match two evaluations attempt by attempt; an attempt unscored on either side leaves both.

    Args:
        incumbent: evaluated on the same tasks, split and sampling.
        candidate: the other side.

    Raises:
        ValueError: they were not measured alike; the message names what differs.
        EmptyMean: no attempt was scored on both sides.

    Source: METHODS §1, step 3 (same task ids, same evaluator, same sampling seeds, mean over tasks).
    """
    _refuse_unlike(incumbent, candidate)
    before, after = _by_attempt(incumbent.attempts), _by_attempt(candidate.attempts)
    pairs: dict[str, list[tuple[float, float]]] = {task.task_id: [] for task in incumbent.tasks}
    excluded = 0
    for (task_id, replicate), score in before.items():
        other = after[task_id, replicate]
        if score is None or other is None:
            excluded += 1
        else:
            pairs[task_id].append((score, other))
    kept = {task_id: values for task_id, values in pairs.items() if values}
    if not kept:
        raise EmptyMean("engine", "no attempt was scored under both versions; nothing can be compared; evaluate again")
    return PairedScores(
        task_ids=tuple(kept),
        incumbent=tuple(mean([pair[0] for pair in values]) for values in kept.values()),
        candidate=tuple(mean([pair[1] for pair in values]) for values in kept.values()),
        excluded_tasks=tuple(task_id for task_id, values in pairs.items() if not values),
        attempts=len(before),
        excluded=excluded,
    )


def summarise(tasks: Sequence[Task], attempts: Sequence[AttemptOutcome]) -> dict[str, object]:
    """The computed fields of an :class:`Evaluation`.

    Args:
        tasks: all evaluated tasks, in order.
        attempts: every attempt at them.

    Raises:
        EmptyMean: no attempt was scored.
    """
    grouped: dict[str, list[AttemptOutcome]] = {task.task_id: [] for task in tasks}
    for attempt in attempts:
        grouped[attempt.task_id].append(attempt)
    scored = [attempt for attempt in attempts if attempt.score is not None]
    if not scored:
        first = attempts[0]
        raise EmptyMean(
            first.boundary or "engine",
            f"none of {len(attempts)} attempts was scored, so there is no mean; first error: {first.error}",
        )
    scores = [_task_score(task, grouped[task.task_id]) for task in tasks]
    names = sorted({name for attempt in scored for name in attempt.parts})
    return {
        "tasks": tuple(scores),
        "attempts": tuple(attempts),
        "mean": mean([score.score for score in scores if score.score is not None]),
        "scored": len(scored),
        "unscored": len(attempts) - len(scored),
        "retries": sum(attempt.retries for attempt in attempts),
        "parts": {name: _over_tasks(grouped, name) for name in names},
        "reward": _over_tasks(grouped, None),
        "strata": _strata(scores),
        "faults": dict(Counter(fault for attempt in attempts for fault in attempt.faults).most_common()),
        "truncated": sum(attempt.finish_reason == "length" for attempt in attempts),
        "usage": add_usage(attempt.usage for attempt in attempts),
    }


def add_usage(usages: Iterable[Usage]) -> Usage:
    """Sum tokens and cost."""
    items = list(usages)
    return Usage(
        prompt_tokens=sum(item.prompt_tokens for item in items),
        completion_tokens=sum(item.completion_tokens for item in items),
        cost_usd=sum(item.cost_usd for item in items),
    )


def _task_score(task: Task, attempts: Sequence[AttemptOutcome]) -> TaskScore:
    values = [attempt.score for attempt in attempts if attempt.score is not None]
    return TaskScore(
        task_id=task.task_id,
        strata=task.strata,
        score=mean(values) if values else None,
        scored=len(values),
        unscored=len(attempts) - len(values),
        trace_ids=tuple(attempt.trace_id for attempt in attempts),
    )


def _over_tasks(grouped: Mapping[str, Sequence[AttemptOutcome]], part: str | None) -> float:
    """Mean over tasks of the task's mean of one part, or of the reward for None; where it is present."""
    means = []
    for attempts in grouped.values():
        found = (attempt.reward if part is None else attempt.parts.get(part) for attempt in attempts)
        values = [value for value in found if value is not None]
        if values:
            means.append(mean(values))
    return mean(means)


def _strata(scores: Sequence[TaskScore]) -> dict[str, dict[str, StratumMean]]:
    grouped: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task in scores:
        if task.score is not None:
            for name, value in task.strata.items():
                grouped[name][value].append(task.score)
    return {
        name: {value: StratumMean(mean=mean(items), tasks=len(items)) for value, items in sorted(values.items())}
        for name, values in sorted(grouped.items())
    }


def _by_attempt(attempts: Sequence[AttemptOutcome]) -> dict[tuple[str, int], float | None]:
    return {(attempt.task_id, attempt.replicate): attempt.score for attempt in attempts}


def _refuse_unlike(incumbent: Evaluation, candidate: Evaluation) -> None:
    for name in ("suite_fingerprint", "split", "sampling", "replicates"):
        got, expected = getattr(candidate, name), getattr(incumbent, name)
        if got != expected:
            raise ValueError(f"evaluations differ in {name}: {expected!r} and {got!r}; measure both sides alike")
    if _by_attempt(incumbent.attempts).keys() != _by_attempt(candidate.attempts).keys():
        raise ValueError("evaluations cover different tasks; measure both sides on the same task ids")
