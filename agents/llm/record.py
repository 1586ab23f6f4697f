"""What is kept of every model call, and the hook through which a recorder receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import JsonValue

from agents.llm.failure import Fault
from harness.protocols import ChatReply
from harness.records import FinishReason, Record, Usage


class ModelReply(ChatReply):
    """A reply with what the structured ladder and the accounts need beside the text."""

    fault_details: tuple[Fault, ...] = ()
    """What ``faults`` names, with the provider's words."""
    refusal: str = ""
    """The provider's own refusal field, or its content filter's word."""
    is_unpriced: bool = False
    """No price is known, the cost counts as 0."""
    is_usage_estimated: bool = False
    """The server reported no tokens; they are estimated from the text so that limits still bind."""
    call_id: str = ""
    """The key of the call in the work ledger."""


class CallRecord(Record):
    """One model call: what was asked, what came back, what it cost, what went wrong on the way."""

    type: Literal["call"] = "call"
    call_id: str
    role: str
    model: str
    purpose: str
    replicate: int
    messages: tuple[dict[str, JsonValue], ...]
    """The chat messages as sent, in OpenAI's form."""
    parameters: dict[str, JsonValue]
    """Sampling and response format as sent; never a key."""
    reply: str
    finish_reason: FinishReason
    """``error``: the call failed and ``reply`` is empty."""
    usage: Usage
    is_unpriced: bool = False
    latency_s: float
    """Seconds from the first request to the reply, waits included; 0 when the reply was already recorded."""
    retries: int
    faults: tuple[Fault, ...] = ()
    is_replayed: bool = False
    """The reply was found in the work ledger: nothing was sent or paid."""
    error: str = ""


class StructuredRecord(Record):
    """One structured answer: the calls behind it and every fault of their replies."""

    type: Literal["structured"] = "structured"
    role: str
    model: str
    purpose: str
    replicate: int
    schema_name: str
    rung: str
    """The rung that gave the accepted reply, or the last one tried."""
    repairs: int
    call_ids: tuple[str, ...]
    faults: tuple[Fault, ...]
    is_valid: bool


CallSink = Callable[[CallRecord | StructuredRecord], None]
"""Receives every record as soon as it exists."""


def discard(record: CallRecord | StructuredRecord) -> None:
    """The sink of callers that keep nothing."""
