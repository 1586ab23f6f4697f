"""Record every execution of a graph node: what it read, wrote and called, and what that cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from pydantic import JsonValue

from graphs.events import Event, Listener, ignore
from graphs.state import Spent
from harness.records import Record, Usage
from memory.records import StepRecord
from memory.steps import Steps


class RoleCall(Record):
    """One call of a role, the trainer or a store from inside a node."""

    role: str
    """``explorer``, ``teacher``, ``diagnoser``, ``proposer``, ``gate``, ``selector``, ``trainer`` or ``store``."""
    method: str
    work_key: str = ""
    """Ledger key of the call; empty for calls that cost nothing."""
    is_reused: bool = False
    """The result was in the ledger; nothing was paid now."""
    reads: dict[str, JsonValue]
    wrote: dict[str, JsonValue]
    """A summary with real values; the whole result is in the ledger under ``work_key``."""
    said: str = ""
    """One line for a person."""
    backend: str = ""
    """``rules`` or a model string; empty for the trainer and the stores."""
    refusals: list[JsonValue] = []
    """Answers of a model that were sent back, with the errors."""
    model_calls: list[JsonValue] = []
    """Each call of a language model: prompt, reply, tokens, cost, retries, faults."""
    usage: Usage = Usage()
    evaluations: int = 0
    """Attempts scored on val or test."""
    seconds: float = 0.0


@dataclass
class Step:
    """The node execution in progress."""

    node: str
    round_number: int
    calls: list[RoleCall] = field(default_factory=list)
    counted: frozenset[str] = frozenset()
    """Ledger keys of work that earlier steps of the run counted."""

    def spent(self) -> Spent:
        """Totals over the work that no earlier step counted, each piece once.

        Work found in the ledger counts as well, so the totals do not depend on interruptions.
        """
        calls = [self.calls[index] for index in first_of_each([call.work_key for call in self.calls], self.counted)]
        return {
            "tokens": sum(call.usage.prompt_tokens + call.usage.completion_tokens for call in calls),
            "cost_usd": sum(call.usage.cost_usd for call in calls),
            "evaluations": sum(call.evaluations for call in calls),
        }


def first_of_each(keys: Iterable[str], counted: Iterable[str] = ()) -> list[int]:
    """Where each piece of work stands for the first time; work without a key is a piece of its own.

    Args:
        keys: ledger keys of calls, in order.
        counted: keys that are not wanted.
    """
    seen, places = set(counted), []
    for index, key in enumerate(keys):
        if key and key in seen:
            continue
        seen.add(key)
        places.append(index)
    return places


class Recorder:
    """Writes one row per executed node and tells the listener."""

    def __init__(self, steps: Steps, run_id: str, listener: Listener = ignore) -> None:
        self._steps = steps
        self._run_id = run_id
        self._listener = listener
        self._started = time.monotonic()
        self.step = Step(node="", round_number=0)
        self.model_calls: list[JsonValue] = []
        """Filled by the models' sink while a role works."""

    @property
    def elapsed_s(self) -> float:
        """Wall seconds of this sitting."""
        return time.monotonic() - self._started

    def tell(self, kind: Any, text: str = "", *, done: int = 0, total: int = 0) -> None:
        """Send an event about the current step."""
        self._listener(
            Event(
                kind=kind,
                run_id=self._run_id,
                node=self.step.node,
                round=self.step.round_number,
                text=text,
                done=done,
                total=total,
                seconds=self.elapsed_s,
            )
        )

    @contextmanager
    def executing(self, node: str, number: int, state: _Reads) -> Iterator[dict[str, Any]]:
        """Around one node: yields the dict that the node's update goes into, then writes the row."""
        self.step = Step(node=node, round_number=_round_of(node, state), counted=self._counted_before(number))
        started_at, started = datetime.now(UTC), time.monotonic()
        self.tell("node_started")
        update: dict[str, Any] = {}
        yield update
        update["spent"] = self.step.spent()
        seconds = time.monotonic() - started
        self._write(node, number, state.seen, update, started_at, seconds)
        self.tell("node_finished", _told(self.step, seconds))

    def _counted_before(self, number: int) -> frozenset[str]:
        rows = self._steps.list(self._run_id)
        return frozenset(str(call["work_key"]) for row in rows if row.number < number for call in row.calls)

    def _write(
        self, node: str, number: int, read: dict[str, Any], wrote: dict[str, Any], started_at: datetime, seconds: float
    ) -> None:
        if self._steps.next_number(self._run_id) > number:
            return  # a kill fell between this row and the graph's checkpoint; the first execution's row stands
        spent = self.step.spent()
        self._steps.record(
            StepRecord(
                run_id=self._run_id,
                number=number,
                node=node,
                read=read,
                wrote=dict(wrote),
                calls=tuple(call.model_dump(mode="json") for call in self.step.calls),
                evaluations=tuple(call.work_key for call in self.step.calls if call.evaluations),
                tokens=spent["tokens"],
                cost_usd=spent["cost_usd"],
                started_at=started_at.isoformat(),
                seconds=seconds,
            )
        )


class _Reads(dict[str, Any]):
    """A state that notes which keys were read."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self.seen: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        self.seen[key] = value
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """As dict.get; notes keys that are present."""
        return self[key] if key in self else default


class _HasRecorder(Protocol):
    @property
    def recorder(self) -> Recorder: ...


def recorded(node: Callable[[Any, Runtime[Any]], Any]) -> Callable[..., dict[str, Any]]:
    """Wrap a node so that its execution is a step; the context must have a ``recorder``."""

    def run(state: dict[str, Any], runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
        context: _HasRecorder = runtime.context
        reads = _Reads(state)
        with context.recorder.executing(node.__name__, config["metadata"]["langgraph_step"], reads) as update:
            update.update(node(reads, runtime))
        return update

    run.__name__ = node.__name__
    run.__doc__ = node.__doc__
    return run


def _round_of(node: str, state: Mapping[str, Any]) -> int:
    """The round a node belongs to, from 1; 0 outside the loop."""
    is_outside = node in ("seed", "baseline", "adopt", "select", "report")
    return 0 if is_outside else int(dict(state).get("round") or 0) + 1


def _told(step: Step, seconds: float) -> str:
    said = "; ".join(call.said for call in step.calls if call.said)
    return f"{said or 'done'} ({seconds:.1f} s)"
