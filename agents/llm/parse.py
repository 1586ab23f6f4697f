"""Read one reply against a schema: a value, or the name of what is wrong with it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from agents.llm.failure import Fault, FaultKind
from agents.llm.record import ModelReply

T = TypeVar("T", bound=BaseModel)

_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_REFUSAL = re.compile(
    r"\A\W*(?:i['’]?m (?:sorry|unable|not able)|i (?:am (?:sorry|unable|not able)|can(?:['’]t|not)|won['’]t)|sorry\b"
    r"|as an ai\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """A reply that fits the schema (``value``), or why it does not (``failed``)."""

    value: T | None
    failed: Fault | None
    recovered: tuple[Fault, ...] = ()
    """Blemishes that cost nothing: a code fence, words around the JSON."""


def parse_reply(reply: ModelReply, schema: type[T], *, rung: str) -> Parsed[T]:
    """Parse and validate ``reply``; every way to fail has its own fault kind.

    Args:
        reply: what the model said.
        schema: the pydantic model to fill.
        rung: the rung of the ladder that was used, for the record.
    """

    def failed(kind: FaultKind, detail: str) -> Parsed[T]:
        return Parsed(None, Fault(kind=kind, detail=detail, rung=rung), recovered)

    recovered: tuple[Fault, ...] = ()
    text = _THINKING.sub("", reply.text).strip()
    if reply.refusal:
        return failed("refusal", reply.refusal)
    if not text:
        cut = " (cut at max_tokens before the answer began)" if reply.finish_reason == "length" else ""
        return failed("empty_content", f"the reply has no content{cut}")
    fenced = _FENCE.search(text)
    if fenced and fenced.group(1).lstrip().startswith(("{", "[")):
        text = fenced.group(1).strip()
        recovered = (Fault(kind="fenced", detail="the JSON stood in a code fence", rung=rung),)
    try:
        decoded, around = _decode(text)
    except json.JSONDecodeError as error:
        return failed(*_name_broken_json(text, reply, error))
    if around:
        recovered += (Fault(kind="wrapped", detail=f"words around the JSON: {around[:80]!r}", rung=rung),)
    if _is_echo(decoded, schema):
        return failed("schema_echo", "the reply repeats the JSON schema instead of an instance of it")
    try:
        return Parsed(schema.model_validate(decoded), None, recovered)
    except ValidationError as error:
        return failed("validation_error", _explain(error))


def _decode(text: str) -> tuple[JsonValue, str]:
    """The JSON value in ``text`` and the words around it; the first complete object counts.

    Raises:
        json.JSONDecodeError: no object or list in the text is complete; the error is that of the first opening.
    """
    try:
        return json.loads(text), ""
    except json.JSONDecodeError as error:
        first = error
    openings = [match.start() for match in re.finditer(r"[{\[]", text)]
    for number, start in enumerate(openings):
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except json.JSONDecodeError as error:
            first = error if number == 0 else first
            if number == 0 and text.startswith("{"):
                break  # a broken object: a complete one inside it is not the answer
            continue
        if isinstance(value, dict):
            return value, f"{text[:start]}…{text[end:]}".strip()
    raise first


def _name_broken_json(text: str, reply: ModelReply, error: json.JSONDecodeError) -> tuple[FaultKind, str]:
    has_json = "{" in text
    if not has_json and _REFUSAL.match(text):
        return "refusal", text[:200]
    ends_early = has_json and (error.pos >= len(text) - 1 or error.msg.startswith("Unterminated string"))
    if has_json and (reply.finish_reason == "length" or ends_early):
        return "truncated_json", f"the JSON stops after {len(text)} characters: {error}"
    if not has_json and reply.finish_reason == "length":
        return "truncated_json", f"the reply was cut at max_tokens before any JSON: {text[:80]!r}"
    return "invalid_json", f"{error}; the reply begins {text[:120]!r}"


def _is_echo(decoded: JsonValue, schema: type[BaseModel]) -> bool:
    if not isinstance(decoded, dict):
        return False
    own = {name for key, info in schema.model_fields.items() for name in (key, info.alias) if name}
    return isinstance(decoded.get("properties"), dict) and "properties" not in own


def _explain(error: ValidationError) -> str:
    """The faults as ``path: message; got value``, at most eight of them."""
    lines: list[str] = []
    for fault in error.errors(include_url=False)[:8]:
        where = ".".join(str(part) for part in fault["loc"]) or "(the whole reply)"
        got = "" if fault["type"] == "missing" else f"; got {_shown(fault['input'])}"
        lines.append(f"{where}: {fault['msg']}{got}")
    return " | ".join(lines)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
