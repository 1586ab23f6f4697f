"""Do costly work once: by key in the ledger, as a call in the step record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import JsonValue

from graphs.recorder import Recorder, RoleCall
from harness.errors import BoundaryError
from harness.protocols import WorkLedger
from harness.records import Record, Usage, content_id


class Produced(Record):
    """What a piece of work gave: a result to keep, and what to show and count of it."""

    result: JsonValue
    """Kept whole in the ledger."""
    wrote: dict[str, JsonValue] = {}
    """Summary for the step record, with real values."""
    said: str = ""
    """One line for a person."""
    usage: Usage = Usage()
    evaluations: int = 0
    """Attempts scored on val or test."""
    model_calls: list[JsonValue] = []


class Done(NamedTuple):
    """A finished piece of work."""

    key: str
    result: Any


class Work:
    """The ledger and the step record behind every role call."""

    def __init__(self, ledger: WorkLedger, recorder: Recorder) -> None:
        self.ledger = ledger
        self._recorder = recorder

    def once(
        self,
        role: str,
        method: str,
        inputs: Mapping[str, JsonValue],
        do: Callable[[], Produced],
        *,
        shows: Mapping[str, JsonValue] | None = None,
    ) -> Done:
        """Find the work under the hash of its inputs, or do and record it.

        Args:
            role: who is called.
            method: its one method.
            inputs: everything that decides the result, purpose and replicate included.
            do: the work; called only when the ledger has no result.
            shows: what the step record shows as read; the inputs by default.
        """
        key = content_id({"role": role, "method": method, "inputs": dict(inputs)}, prefix=method)
        started = time.monotonic()
        found = self.ledger.find(key)
        is_reused = found is not None
        if found is None:
            found = self.ledger.record(key, kind=f"{role}.{method}", result=do().model_dump(mode="json"))
        produced = Produced.model_validate(found)
        self._recorder.step.calls.append(
            RoleCall(
                role=role,
                method=method,
                work_key=key,
                is_reused=is_reused,
                reads=dict(inputs if shows is None else shows),
                wrote=produced.wrote,
                said=produced.said,
                model_calls=produced.model_calls,
                usage=produced.usage,
                evaluations=produced.evaluations,
                seconds=time.monotonic() - started,
            )
        )
        return Done(key, produced.result)

    def result(self, key: str) -> Any:
        """The result recorded under ``key``.

        Raises:
            BoundaryError: the ledger has none, so the store lost finished work.
        """
        found = self.ledger.find(key)
        if found is None:
            raise BoundaryError("store", f"the ledger has no work {key}, which the run's state names; restore the store")
        return Produced.model_validate(found).result
