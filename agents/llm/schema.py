"""The JSON schema of a pydantic model as providers want it."""

from __future__ import annotations

import copy

from pydantic import BaseModel, JsonValue

_DROPPED = ("default", "title", "examples")


def json_schema(schema: type[BaseModel]) -> dict[str, JsonValue]:
    """The model's JSON schema without titles, defaults and examples, which only cost tokens."""
    raw = _cleaned(copy.deepcopy(schema.model_json_schema()))
    assert isinstance(raw, dict)
    return raw


def strict_schema(schema: type[BaseModel]) -> tuple[dict[str, JsonValue], bool]:
    """The schema for ``json_schema`` requests, and whether it can be asked for strictly.

    Strict decoding wants every object closed and every property required. That is a narrower schema than pydantic's
    own, so its instances validate. An object with free keys cannot be closed; then the plain schema is sent.
    """
    plain = json_schema(schema)
    if _has_free_keys(plain):
        return plain, False
    closed = _closed(plain)
    assert isinstance(closed, dict)
    return closed, True


def _cleaned(node: JsonValue, *, is_properties: bool = False) -> JsonValue:
    """Drop annotations of schemas; under ``properties`` the keys are field names and stay."""
    if isinstance(node, list):
        return [_cleaned(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _cleaned(value, is_properties=key in ("properties", "$defs") and not is_properties)
        for key, value in node.items()
        if is_properties or key not in _DROPPED
    }


def _has_free_keys(node: JsonValue) -> bool:
    if isinstance(node, list):
        return any(_has_free_keys(item) for item in node)
    if not isinstance(node, dict):
        return False
    is_object = node.get("type") == "object"
    if is_object and (node.get("additionalProperties") not in (None, False) or "properties" not in node):
        return True
    return any(_has_free_keys(value) for value in node.values())


def _closed(node: JsonValue) -> JsonValue:
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed: dict[str, JsonValue] = {key: _closed(value) for key, value in node.items()}
    properties = closed.get("properties")
    if closed.get("type") == "object" and isinstance(properties, dict):
        closed["additionalProperties"] = False
        closed["required"] = list(properties)
    return closed
