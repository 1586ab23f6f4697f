"""Do costly work once: by key in the ledger, as a call in the step record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, JsonValue

from agents.records import RoleRecord
from graphs.recorder import Recorder, RoleCall
from harness.errors import BoundaryError
from harness.protocols import WorkLedger
from harness.records import Record, Usage, content_id


class Produced(Record):
    """What a piece of work gave: a result to keep, and what to show and count of it."""

    result: JsonValue
    """Kept whole in the ledger."""
    saw: dict[str, JsonValue] = {}
    """Real inputs in short."""
    wrote: dict[str, JsonValue] = {}
    """The result in short."""
    said: str = ""
    """One line for a person."""
    backend: str = ""
    """``rules`` or a model string; empty for the trainer and the stores."""
    refusals: list[JsonValue] = []
    """Answers of a model that were sent back, with the errors."""
    usage: Usage = Usage()
    evaluations: int = 0
    """Attempts scored on val or test."""
    model_calls: list[JsonValue] = []
    """Each call of a language model: prompt, reply, tokens, cost, retries, faults."""


class _OfRole(Protocol):
    """A role's result: a record that carries its :class:`RoleRecord`."""

    @property
    def record(self) -> RoleRecord: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def by_role(value: _OfRole) -> Produced:
    """A role's result as work."""
    record = value.record
    return Produced(
        result=value.model_dump(mode="json"),
        saw=record.saw,
        wrote=record.wrote,
        said=record.said,
        backend=record.backend,
        refusals=[refusal.model_dump(mode="json") for refusal in record.refusals],
        usage=record.usage,
    )


class Done(NamedTuple):
    """A finished piece of work."""

    key: str
    result: Any


class Work:
    """The ledger and the step record behind every role call."""

    def __init__(self, ledger: WorkLedger, recorder: Recorder) -> None:
        self.ledger = ledger
        self.recorder = recorder

    def once(self, role: str, method: str, inputs: Mapping[str, JsonValue], do: Callable[[], Produced]) -> Done:
        """Find the work under the hash of its inputs, or do and record it.

        Args:
            role: who is called.
            method: its one method.
            inputs: everything that decides the result, purpose and replicate included.
            do: the work; called only when the ledger has no result.
        """
        key = content_id({"role": role, "method": method, "inputs": dict(inputs)}, prefix=method)
        started = time.monotonic()
        found = self.ledger.find(key)
        is_reused = found is not None
        if found is None:
            self.recorder.model_calls.clear()
            made = do()
            made = made.model_copy(update={"model_calls": [*made.model_calls, *self.recorder.model_calls]})
            found = self.ledger.record(key, kind=f"{role}.{method}", result=made.model_dump(mode="json"))
        produced = Produced.model_validate(found)
        if not produced.saw:
            produced = produced.model_copy(update={"saw": dict(inputs)})
        self.note(role, method, key, produced, is_reused=is_reused, seconds=time.monotonic() - started)
        return Done(key, produced.result)

    def note(
        self, role: str, method: str, key: str, produced: Produced, *, is_reused: bool = False, seconds: float = 0.0
    ) -> None:
        """Add a call to the step record."""
        self.recorder.step.calls.append(
            RoleCall(
                role=role,
                method=method,
                backend=produced.backend,
                work_key=key,
                is_reused=is_reused,
                reads=produced.saw,
                wrote=produced.wrote,
                said=produced.said,
                refusals=produced.refusals,
                model_calls=produced.model_calls,
                usage=produced.usage,
                evaluations=produced.evaluations,
                seconds=seconds,
            )
        )

    def result(self, key: str) -> Any:
        """The result recorded under ``key``.

        Raises:
            BoundaryError: the ledger has none, so the store lost finished work.
        """
        found = self.ledger.find(key)
        if found is None:
            raise BoundaryError("store", f"no work {key} in the ledger, which the run's state names; restore the store")
        return Produced.model_validate(found).result


def as_inputs(**values: JsonValue | BaseModel) -> dict[str, JsonValue]:
    """Named inputs as JSON; records are dumped."""
    return {
        name: value.model_dump(mode="json") if isinstance(value, BaseModel) else value for name, value in values.items()
    }
