"""Typed answers from any model: a ladder of request forms, at most three repairs, a name for every failure.

Providers disagree about structured output: one enforces ``json_schema``, the next rejects it, a third accepts it and
ignores it. So a call starts on the rung known to work for this model, or at the top, and steps down when the form is
rejected or shown to be ignored; the first rung that works is remembered per model and server. A reply that does not fit
goes back with the exact error.

Rungs: ``json_schema`` (enforced by most hosted APIs and vLLM), ``json_object_schema`` (llama.cpp's servers),
``json_object`` (valid JSON, schema in the prompt), ``prompt`` (nothing but words; every model).

A restart takes the same path: where the climb began and which rungs were rejected is in the work ledger, so the same
calls are asked for and found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, JsonValue

from agents.llm.call import request_of
from agents.llm.client import LiteLlmChat
from agents.llm.failure import Fault, FaultKind, ModelCallFailed, StructuredFailed
from agents.llm.parse import parse_reply
from agents.llm.record import ModelReply, StructuredRecord
from agents.llm.schema import json_schema, strict_schema
from harness.records import Message, Record

T = TypeVar("T", bound=BaseModel)

Rung = Literal["json_schema", "json_object_schema", "json_object", "prompt"]
LADDER: tuple[Rung, ...] = ("json_schema", "json_object_schema", "json_object", "prompt")

_REJECTIONS: frozenset[FaultKind] = frozenset({"bad_request", "server_error"})
"""Answers to a form that the server does not take: 400 or 422; llama.cpp's Python server says 500."""
_IGNORED: frozenset[FaultKind] = frozenset({"invalid_json", "schema_echo", "empty_content"})
"""What a reply cannot be where the form is enforced: the server takes the form and ignores it."""
_PROBE_ATTEMPTS = 2
"""Requests on a rung that has not worked yet: a 5xx may be the rejection, so it is not retried to the end."""
_QUOTE_LIMIT = 4000
"""Characters of a bad reply that are quoted back."""


@dataclass(frozen=True)
class StructuredReply(Generic[T]):
    """A valid answer and how it came about."""

    value: T
    rung: Rung
    repairs: int
    """Replies that did not fit before this one."""
    faults: tuple[Fault, ...]
    """Everything that went wrong on the way, in order; recovered blemishes and retried requests included."""
    replies: tuple[ModelReply, ...]
    """Every reply that was paid for, in order; the last one holds the value."""


@dataclass
class _Climb(Generic[T]):
    """The state of one structured answer."""

    model: LiteLlmChat
    messages: Sequence[Message]
    schema: type[T]
    purpose: str
    replicate: int
    rung: Rung = LADDER[0]
    is_proven: bool = False
    """The rung has worked for this model before: a bad reply is the model's slip, not the server's."""
    faults: list[Fault] = field(default_factory=list)
    replies: list[ModelReply] = field(default_factory=list)
    climb_id: str = ""

    def begin(self) -> None:
        """Choose the first rung; a restart finds the choice of the first sitting."""
        known = self.model.services.rungs.get(self.model.model_key)
        opening: JsonValue = {"rung": known or LADDER[0], "is_proven": known is not None}
        form: dict[str, JsonValue] = {"structured": json_schema(self.schema)}
        chat: list[dict[str, JsonValue]] = [{"role": item.role, "content": item.content} for item in self.messages]
        config, purpose, replicate = self.model.config, self.purpose, self.replicate
        request = request_of(config, chat, purpose=purpose, replicate=replicate, response_format=form)
        self.climb_id = request.call_id
        ledger = self.model.services.ledger
        if ledger is not None:
            opening = ledger.record(f"{self.climb_id}-opening", kind="structured", result=opening)
        begun = _Opening.model_validate(opening)
        self.rung, self.is_proven = begun.rung, begun.is_proven

    def is_rejected(self) -> bool:
        """Whether an earlier sitting was told that the server does not take this rung's form."""
        ledger = self.model.services.ledger
        return ledger is not None and ledger.find(f"{self.climb_id}-rejected-{self.rung}") is not None

    def reject(self, faults: Sequence[Fault]) -> None:
        """Name the rejection and step down one rung."""
        self.faults += [*faults[:-1], faults[-1].model_copy(update={"kind": "unsupported_format"})]
        ledger = self.model.services.ledger
        if ledger is not None:
            ledger.record(f"{self.climb_id}-rejected-{self.rung}", kind="structured", result=faults[-1].detail)
        self.step_to(LADDER[LADDER.index(self.rung) + 1])

    def step_to(self, rung: Rung) -> None:
        """Go on from a rung that nothing is known about."""
        self.rung, self.is_proven = rung, False

    def keep(self, *, is_valid: bool) -> None:
        """Remember a rung that worked, and give the record to the sink."""
        services = self.model.services
        if is_valid:
            services.rungs.setdefault(self.model.model_key, self.rung)
        services.sink(
            StructuredRecord(
                role=self.model.role,
                model=self.model.config.model,
                purpose=self.purpose,
                replicate=self.replicate,
                schema_name=self.schema.__name__,
                rung=self.rung,
                repairs=max(0, len(self.replies) - 1),
                call_ids=tuple(reply.call_id for reply in self.replies),
                faults=tuple(self.faults),
                is_valid=is_valid,
            )
        )


class _Opening(Record):
    rung: Rung
    is_proven: bool


async def structured(
    model: LiteLlmChat,
    messages: Sequence[Message],
    schema: type[T],
    *,
    purpose: str,
    replicate: int = 0,
    max_repairs: int = 3,
) -> StructuredReply[T]:
    """Ask for an instance of ``schema``.

    Args:
        model: the client to ask.
        messages: the chat; the schema need not be in it.
        schema: a pydantic model whose JSON form is an object.
        purpose: why; part of every call's key.
        replicate: keeps repeated independent answers apart.
        max_repairs: replies that may be sent back with their error.

    Raises:
        StructuredFailed: no reply fitted; ``faults`` names each failure in order.
        ModelCallFailed: the provider gave no reply (time-outs, limits, a rejected key).
        BudgetExhausted: a limit of the role or the run is reached.
    """
    climb = _Climb(model, messages, schema, purpose, replicate)
    climb.begin()
    feedback: list[Message] = []
    for repairs in range(max_repairs + 1):
        reply = await _ask(climb, feedback)
        parsed = parse_reply(reply, schema, rung=climb.rung)
        climb.faults += parsed.recovered
        if parsed.value is not None:
            climb.keep(is_valid=True)
            return StructuredReply(parsed.value, climb.rung, repairs, tuple(climb.faults), tuple(climb.replies))
        assert parsed.failed is not None
        climb.faults.append(parsed.failed)
        if parsed.failed.kind in _IGNORED and not climb.is_proven:
            climb.step_to("prompt")
        feedback = _feedback(reply, parsed.failed, schema, attempt=repairs + 2, attempts=max_repairs + 1)
    climb.keep(is_valid=False)
    names = ", ".join(f"{fault.rung}:{fault.kind}" for fault in climb.faults)
    raise StructuredFailed(
        f"{model.config.model} for {model.role}/{purpose} gave no {schema.__name__} in {max_repairs + 1} replies "
        f"({names}); last: {climb.faults[-1].detail}; try a stronger model or a smaller schema",
        climb.faults,
        usages=[reply.usage for reply in climb.replies],
    )


async def _ask(climb: _Climb[T], feedback: Sequence[Message]) -> ModelReply:
    """One reply, stepping down the ladder while the server rejects the form."""
    retry = climb.model.config.retry
    while True:
        is_probe = climb.rung != "prompt" and not climb.is_proven
        if is_probe and climb.is_rejected():
            climb.reject([Fault(kind="unsupported_format", detail="rejected in an earlier sitting", rung=climb.rung)])
            continue
        try:
            reply = await climb.model.complete(
                [*_with_schema(climb.messages, climb.schema, climb.rung), *feedback],
                purpose=climb.purpose,
                replicate=climb.replicate,
                response_format=response_format(climb.schema, climb.rung),
                max_attempts=min(_PROBE_ATTEMPTS, retry.max_attempts) if is_probe else None,
            )
        except ModelCallFailed as failure:
            faults = [fault.model_copy(update={"rung": climb.rung}) for fault in failure.faults]
            is_outage = failure.fault.kind == "server_error" and not is_probe
            if climb.rung != "prompt" and failure.fault.kind in _REJECTIONS and not is_outage:
                climb.reject(faults)
                continue
            climb.faults += faults
            climb.keep(is_valid=False)
            failure.faults = tuple(climb.faults)
            raise
        climb.replies.append(reply)
        climb.faults += [fault.model_copy(update={"rung": climb.rung}) for fault in reply.fault_details]
        return reply


def response_format(schema: type[BaseModel], rung: Rung) -> dict[str, JsonValue] | None:
    """OpenAI's ``response_format`` for a rung; None on the last one."""
    if rung == "prompt":
        return None
    if rung == "json_object":
        return {"type": "json_object"}
    if rung == "json_object_schema":
        return {"type": "json_object", "schema": json_schema(schema)}
    body, is_strict = strict_schema(schema)
    return {"type": "json_schema", "json_schema": {"name": schema.__name__, "schema": body, "strict": is_strict}}


def _with_schema(messages: Sequence[Message], schema: type[BaseModel], rung: Rung) -> list[Message]:
    """The chat with the schema in words at the end of its last turn, on rungs that do not carry it."""
    chat = list(messages)
    if rung in ("json_schema", "json_object_schema"):
        return chat
    words = _schema_words(schema)
    if chat and chat[-1].role == "user":
        return [*chat[:-1], Message(role="user", content=f"{chat[-1].content}\n\n{words}")]
    return [*chat, Message(role="user", content=words)]


def _schema_words(schema: type[BaseModel]) -> str:
    body = json.dumps(json_schema(schema), ensure_ascii=False, separators=(",", ":"))
    return (
        "Answer with one JSON object and nothing else: no words around it, no code fence. It must be an instance of "
        f"this JSON schema, with values of your own, not the schema itself:\n{body}"
    )


def _feedback(
    reply: ModelReply, fault: Fault, schema: type[BaseModel], *, attempt: int, attempts: int
) -> list[Message]:
    """The bad reply and its exact error; the attempt's number keeps equal repairs apart in the ledger."""
    said = (reply.text or reply.refusal).strip() or "(no content)"
    advice = {
        "truncated_json": "Answer again, more briefly, so that the JSON is complete.",
        "refusal": "The task is to fill a form about the text above; fill it.",
    }.get(fault.kind, "Answer again and mend exactly this.")
    return [
        Message(role="assistant", content=said[:_QUOTE_LIMIT]),
        Message(
            role="user",
            content=f"That reply cannot be used ({fault.kind}): {fault.detail}\n{advice} "
            f"Attempt {attempt} of {attempts}.\n{_schema_words(schema)}",
        ),
    ]
