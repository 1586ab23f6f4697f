"""Strategies by name: built-ins in one dict, outsiders through the entry point group ``cohelix.strategies``."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from harness.errors import UserError

GROUP = "cohelix.strategies"

BUILT_IN: dict[str, str] = {"train": "graphs.train:build", "vace": "graphs.vace:build"}
"""Strategy type to ``module:function``; the function takes a RunConfig and returns an uncompiled graph."""


def known_strategies() -> list[str]:
    """Names that ``strategy.type`` may take."""
    return sorted(BUILT_IN | {entry.name: entry.value for entry in entry_points(group=GROUP)})


def load_build(name: str) -> Any:
    """The ``build`` function of a strategy; only now is its module, and langgraph, imported.

    Raises:
        UserError: no such strategy; the known ones are listed.
    """
    if name in BUILT_IN:
        module, _, function = BUILT_IN[name].partition(":")
        return getattr(import_module(module), function)
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return entry.load()
    raise UserError("no such strategy", got=repr(name), expected=f"one of {known_strategies()}")
