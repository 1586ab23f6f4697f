"""The order in which training draws tasks: shuffled passes, addressed by position, no hidden state."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from harness.records import Task


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any printable parts; the same parts give the same seed on every machine."""
    payload = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big") >> 1


class TaskStream:
    """Position ``i`` of the stream is entry ``i % n`` of the shuffled pass ``i // n`` over ``n`` tasks."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        """Shuffle ``tasks`` by ``seed`` and the number of the pass."""
        if not tasks:
            raise ValueError("training needs at least one task; the pool is empty")
        self._tasks = tuple(tasks)
        self._seed = seed
        self._pass = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        """Tasks in the pool."""
        return len(self._tasks)

    def at(self, position: int) -> Task:
        """The task at a position, from 0 without end."""
        number, index = divmod(position, len(self._tasks))
        if number != self._pass:
            self._order = list(range(len(self._tasks)))
            random.Random(derive_seed("task-stream", self._seed, number)).shuffle(self._order)
            self._pass = number
        return self._tasks[self._order[index]]
