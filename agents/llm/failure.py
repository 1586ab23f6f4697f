"""Every way a model call can go wrong has a name; the names appear in records, traces and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harness.errors import BoundaryError, SpendLimitReached, UserError
from harness.records import Record, Usage

FaultKind = Literal[
    # transport: the provider gave no reply
    "rate_limited",
    "server_error",
    "timeout",
    "connection_failed",
    "malformed_response",
    "authentication",
    "not_found",
    "context_overflow",
    "bad_request",
    # structured answers: a reply came and is not usable, or needed a hand
    "unsupported_format",
    "schema_echo",
    "fenced",
    "wrapped",
    "empty_content",
    "truncated_json",
    "refusal",
    "invalid_json",
    "validation_error",
]
"""``timeout`` is a stall: no whole reply within ``timeout_s``. ``fenced`` and ``wrapped`` (words around the JSON) are
recovered from; the others cost a retry, a rung of the ladder, or a repair."""

RETRYABLE: frozenset[FaultKind] = frozenset(
    {"rate_limited", "server_error", "timeout", "connection_failed", "malformed_response"}
)
"""Kinds that another identical request may cure."""


class Fault(Record):
    """One thing that went wrong on the way to a reply."""

    kind: FaultKind
    detail: str
    """What the provider or the parser said, keys removed."""
    status_code: int | None = None
    """HTTP status, where there was one."""
    rung: str = ""
    """Rung of the structured-output ladder that was tried; empty for plain calls."""


class ModelCallFailed(BoundaryError):  # noqa: N818 - the name says what happened
    """A model call gave no usable reply; an infrastructure failure, never a score."""

    def __init__(self, failed: str, faults: Sequence[Fault], *, attempts: int) -> None:
        """Name what failed, the faults in order, and how many requests were sent."""
        super().__init__("model_call", failed)
        self.faults: tuple[Fault, ...] = tuple(faults)
        self.attempts = attempts

    @property
    def fault(self) -> Fault:
        """The fault that ended the call."""
        return self.faults[-1]


class StructuredFailed(ModelCallFailed):
    """Replies came, but none fitted the schema within the allowed repairs."""

    def __init__(self, failed: str, faults: Sequence[Fault], *, usages: Sequence[Usage]) -> None:
        """Name what failed, the faults in order, and what each of the replies cost: they are paid all the same."""
        super().__init__(failed, faults, attempts=len(usages))
        self.usages: tuple[Usage, ...] = tuple(usages)


class BudgetExhausted(SpendLimitReached):  # noqa: N818 - the name says what happened
    """A call was refused before it was sent, because it could pass a hard limit."""

    def __init__(self, owner: str, unit: str, *, spent: float, wanted: float, limit: float) -> None:
        """Name the role (or ``run``), the unit, and the three amounts behind the refusal."""
        name = "max_cost_usd" if unit == "USD" else "max_tokens"
        raising = (
            f"raise it with `cohelix resume RUN --set budget.{name}=…`; recorded calls are not paid again"
            if owner == "run"
            else f"start a run with a higher roles.{owner}.budget.{name}, which is part of a run's identity"
        )
        super().__init__(
            "model_call",
            f"the budget of {owner} is used up: spent or in flight {spent:g} {unit}, this call may need {wanted:g}, "
            f"limit {limit:g}; {raising}",
        )
        self.owner = owner
        self.unit = unit


class MissingApiKey(UserError):
    """The environment variable that should hold a key is not set."""

    def __init__(self, model: str, variables: Sequence[str]) -> None:
        """Name the model and the variables, never a value."""
        names = " or ".join(variables)
        super().__init__(
            f"model {model!r} has no API key",
            got=f"an empty or missing environment variable {names}",
            expected="the provider's key in it",
            do=f"export {names}, or name another variable in api_key_env",
        )
