"""The order in which training draws tasks: addressed by position, no hidden state.

So a block that is resumed draws what it would have drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from harness.records import Task, content_id
from policy.advantage import importance_weights


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any printable parts; the same parts give the same seed on every machine."""
    payload = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big") >> 1


class Draw(NamedTuple):
    """One drawn task."""

    task: Task
    importance: float = 1.0
    """Multiplies the clipped surrogate of the task's group, and nothing else."""


class TaskOrder(Protocol):
    """A curriculum: which task stands at which position."""

    @property
    def fingerprint(self) -> str:
        """Content id of everything that decides the draws; part of a block's key."""
        ...

    @property
    def is_with_replacement(self) -> bool:
        """Whether one rollout step may hold a task twice; where not, a task seen in the step is passed over."""
        ...

    def __len__(self) -> int:
        """Tasks in the pool."""
        ...

    def at(self, position: int) -> Draw:
        """What is drawn at a position, from 0 without end; the same whenever and in whatever order it is asked."""
        ...


class TaskStream:
    """Position ``i`` of the stream is entry ``i % n`` of the shuffled pass ``i // n`` over ``n`` tasks."""

    is_with_replacement = False

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        """Shuffle ``tasks`` by ``seed`` and the number of the pass."""
        self._tasks = _pool(tasks)
        self._seed = seed
        self._pass = -1
        self._order: list[int] = []

    @property
    def fingerprint(self) -> str:
        """Of pool and seed."""
        return content_id(["shuffled", [task.task_id for task in self._tasks], self._seed], prefix="order")

    def __len__(self) -> int:
        """Tasks in the pool."""
        return len(self._tasks)

    def at(self, position: int) -> Draw:
        """The task at a position, from 0 without end."""
        number, index = divmod(position, len(self._tasks))
        if number != self._pass:
            self._order = list(range(len(self._tasks)))
            random.Random(derive_seed("task-stream", self._seed, number)).shuffle(self._order)
            self._pass = number
        return Draw(self._tasks[self._order[index]])


class WeightedStream:
    """Position ``i`` holds task t with probability ``w_t / sum(w)``, whatever the other positions hold.

    A draw carries ``u = 1 / (N p)``, which keeps the expected gradient of the surrogate that of uniform draws. That
    is exact with ``aggregation: sequence_mean`` and dynamic sampling off; with dynamic sampling on it is exact up to
    one factor, the inverse of the share of draws with signal; a token mean also weighs tasks by their lengths.

    Source: METHODS §3, p.
    """

    is_with_replacement = True

    def __init__(self, tasks: Sequence[Task], weights: Mapping[str, float], seed: int) -> None:
        """Draw from ``tasks``; a task that ``weights`` does not name weighs 1.

        Raises:
            ValueError: no tasks, a name that is no task's, or a weight that is not positive.
        """
        self._tasks = _pool(tasks)
        unknown = sorted(set(weights) - {task.task_id for task in self._tasks})
        if unknown:
            raise ValueError(f"task_weights names {unknown[:3]}, which are not in the pool of {len(self._tasks)} tasks")
        self._weights = [float(weights.get(task.task_id, 1.0)) for task in self._tasks]
        self._importance = importance_weights(self._weights).tolist()
        self._seed = seed

    @property
    def fingerprint(self) -> str:
        """Of pool, weights and seed."""
        names = [task.task_id for task in self._tasks]
        return content_id(["weighted", [*names], [*self._weights], self._seed], prefix="order")

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Of every task of the pool, in its order."""
        total = sum(self._weights)
        return tuple(weight / total for weight in self._weights)

    def __len__(self) -> int:
        """Tasks in the pool."""
        return len(self._tasks)

    def at(self, position: int) -> Draw:
        """The task at a position, from 0 without end."""
        source = random.Random(derive_seed("weighted-stream", self._seed, position))
        (index,) = source.choices(range(len(self._tasks)), weights=self._weights)
        return Draw(self._tasks[index], self._importance[index])


def task_order(tasks: Sequence[Task], seed: int, weights: Mapping[str, float] | None = None) -> TaskOrder:
    """The order of a block: shuffled passes, or draws by weight where there are weights."""
    return TaskStream(tasks, seed) if weights is None else WeightedStream(tasks, weights, seed)


def _pool(tasks: Sequence[Task]) -> tuple[Task, ...]:
    if not tasks:
        raise ValueError("training needs at least one task; the pool is empty")
    return tuple(tasks)
