"""Read a run configuration: YAML, dotted overrides, and errors that name the keys."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, JsonValue, ValidationError

from evals.config import SuiteConfig
from graphs.config import RunConfig
from harness.errors import UserError
from memory.redaction import redact

_MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key ``<<``, which takes the keys of another mapping."""


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a repeated key, which plain YAML lets win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != _MERGE]
        repeated = sorted({str(key) for key in keys if keys.count(key) > 1})
        if repeated:
            raise yaml.constructor.ConstructorError(None, None, f"key {repeated} is given twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read ``path``, apply ``key=value`` overrides in order, and validate.

    Args:
        path: a YAML file with the keys of :class:`RunConfig`.
        overrides: dotted keys with YAML values, for example ``strategy.rounds=2``.

    Raises:
        UserError: no such file, broken YAML, an unknown key, a value out of range; the message names the key.
    """
    with _not_too_deep(str(path)):
        return parse_config(_apply(read_yaml(path), overrides), source=str(path))


def parse_config(raw: Mapping[str, JsonValue], *, source: str) -> RunConfig:
    """Validate a raw mapping; ``source`` is named in the error."""
    try:
        config = RunConfig.model_validate(dict(raw))
        faults = list(_unstorable(config.model_dump(mode="json")))
    except ValidationError as error:
        faults = list(_faults(error))
    if faults:
        lines = "\n".join(f"  {line}" for line in faults)
        raise UserError(f"configuration {source} is not valid:\n{lines}\n", do="mend the named keys")
    return config


def _unstorable(config: dict[str, JsonValue]) -> Iterator[str]:
    """Values that a store would not give back: infinity, which no JSON holds, and secrets, which it removes."""
    clean = dict(_leaves(redact(config)))
    for key, value in _leaves(config):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{key}: must be a finite number; got {value}"
        elif value != clean.get(key):
            yield f"{key}: holds what looks like a key, not shown; no file keeps one, so put it into the environment"


def _leaves(value: JsonValue, key: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Values by dotted key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield key, value
        return
    for name, item in items:
        yield from _leaves(item, f"{key}.{name}" if key else str(name))


@contextmanager
def _not_too_deep(source: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise UserError(
            f"configuration {source} cannot be read",
            got="lists, mappings or dotted keys nested too deeply",
            expected=f"a mapping with the keys {sorted(RunConfig.model_fields)}",
        ) from None


def read_yaml(path: str | Path) -> dict[str, JsonValue]:
    """The mapping in a YAML file."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            "cannot read the configuration", got=f"no file {file}", expected="a YAML file", do="check the path"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {file}", got=str(error), do="give a readable file") from None
    return _parse_yaml(text, where=str(file))


def _parse_yaml(text: str, *, where: str) -> dict[str, JsonValue]:
    try:
        value = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader subclass
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML", got=" ".join(str(error).split()), do="mend that line") from None
    if not isinstance(value, dict):
        raise UserError(
            f"{where} holds no configuration",
            got=type(value).__name__,
            expected=f"a mapping with the keys {sorted(RunConfig.model_fields)}",
        )
    return value


def _apply(raw: dict[str, JsonValue], overrides: Sequence[str]) -> dict[str, JsonValue]:
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise UserError("cannot read --set", got=repr(override), expected="key=value, for example seed=3")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"the value of --set {key} is not YAML", got=" ".join(str(error).split())) from None
        _put(raw, key.strip().split("."), value, override)
    return raw


def _put(raw: dict[str, Any], path: list[str], value: JsonValue, override: str) -> None:
    for depth, name in enumerate(path[:-1]):
        inner = raw.setdefault(name, {})
        if inner is None:
            inner = raw[name] = {}
        if not isinstance(inner, dict):
            raise UserError(
                f"cannot apply --set {override}",
                got=f"{'.'.join(path[: depth + 1])} = {inner!r}, which holds no keys",
                do=f"set {'.'.join(path[: depth + 1])} itself",
            )
        raw = inner
    raw[path[-1]] = value


def _faults(error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_url=False):
        where, known = _known_keys(fault["loc"])
        if fault["type"] == "extra_forbidden":
            name = str(fault["loc"][-1])
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            yield f"{where}: unknown key; {hint}known keys here: {', '.join(known)}"
        elif fault["type"] == "union_tag_not_found":
            yield f"{where}.type: missing; it says which kind of {where} this is"
        elif fault["type"] in ("value_error", "missing"):
            yield f"{where or 'configuration'}: {fault['msg'].removeprefix('Value error, ')}"
        else:
            yield f"{where}: {fault['msg']}; got {_shown(fault['input'], is_private=where.startswith('roles'))}"


def _shown(value: object, *, is_private: bool) -> str:
    if is_private and not isinstance(value, int | float | None):
        return f"a {type(value).__name__}, not shown because it may be a key"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _known_keys(location: tuple[int | str, ...]) -> tuple[str, list[str]]:
    """Dotted path of a fault without union tags, and the keys known beside its last part."""
    models: list[type[BaseModel]] = [RunConfig]
    shown: list[str] = []
    known: list[str] = sorted(RunConfig.model_fields)
    for part in location:
        tagged = [model for model in models if str(part) in _tags(model)]
        if tagged and not any(str(part) in model.model_fields for model in models):
            models = tagged
            continue
        known = sorted({name for model in models for name in model.model_fields})
        shown.append(str(part))
        annotations = [model.model_fields[str(part)].annotation for model in models if str(part) in model.model_fields]
        models = [model for annotation in annotations for model in _models(annotation)]
    return ".".join(shown), known


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get("type")
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def load_suite_config(name: str, overrides: Sequence[str] = ()) -> SuiteConfig:
    """The configuration of one suite by name, for commands that need no run.

    Args:
        name: a built-in suite's type, or the name of another distribution's suite.
        overrides: keys below ``suite``, for example ``preset=mini``.
    """
    built_in = [tag for model in _models(SuiteConfig) for tag in _tags(model) if tag != "plugin"]
    raw: dict[str, JsonValue] = {"type": name} if name in built_in else {"type": "plugin", "name": name}
    source = f"of suite {name}"
    with _not_too_deep(source):
        return parse_config({"suite": _apply(raw, overrides)}, source=source).suite
