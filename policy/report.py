"""What a training process says, line by line, on a descriptor of its own: ready, steps, and how a job ended."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from harness.records import Record
from policy.failure import Failure


class Ready(Record):
    """The libraries are loaded; a job can start at once."""

    type: Literal["ready"] = "ready"


class StepDone(Record):
    """One rollout step is trained."""

    type: Literal["step"] = "step"
    metrics: dict[str, JsonValue]
    """A dumped :class:`policy.step_metric.StepMetrics`."""


class JobDone(Record):
    """The job's result is in the ledger under its key, and its checkpoint on disk."""

    type: Literal["done"] = "done"


class JobFailed(Record):
    """The job ended with a typed failure; the process can take another."""

    type: Literal["failed"] = "failed"
    failure: Failure


AnyReport = Ready | StepDone | JobDone | JobFailed
_REPORT: TypeAdapter[AnyReport] = TypeAdapter(Annotated[AnyReport, Field(discriminator="type")])


def read_report(line: str | bytes) -> AnyReport:
    """A report from its line.

    Raises:
        ValidationError: the line is no report.
    """
    return _REPORT.validate_json(line)
