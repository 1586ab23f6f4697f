"""A run's limits: which one is reached, and which a resume changes. Pure, so that routers stay pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from graphs.config import BudgetConfig, RunConfig
from graphs.state import NOTHING_SPENT, Spent

LIMITS = tuple(f"budget.{name}" for name in ("max_wall_s", "max_tokens", "max_cost_usd", "max_evaluations"))
"""Dotted keys that say how much a run may do, not what it does: the only ones that may change at a resume."""


def reached_limit(budget: BudgetConfig, spent: Spent | None, *, wall_s: float) -> str:
    """Name the first reached limit with both numbers, or return an empty text.

    Args:
        budget: the limits; null is none.
        spent: the run's work so far.
        wall_s: wall seconds of all finished nodes.
    """
    used = spent or NOTHING_SPENT
    amounts = (
        ("max_wall_s", wall_s, budget.max_wall_s),
        ("max_tokens", used["tokens"], budget.max_tokens),
        ("max_cost_usd", used["cost_usd"], budget.max_cost_usd),
        ("max_evaluations", used["evaluations"], budget.max_evaluations),
    )
    for name, amount, limit in amounts:
        if limit is not None and amount >= limit:
            return f"budget.{name}={limit:g} reached ({amount:g})"
    return ""


def named_limits(overrides: Sequence[str]) -> list[str]:
    """The limits among ``key=value`` overrides."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    return [limit for limit in LIMITS if limit in keys]


def with_limits(config: RunConfig, recorded: Mapping[str, Any], keys: Collection[str]) -> RunConfig:
    """``config`` with the recorded values of the limits ``keys``."""
    values = {key.removeprefix("budget."): recorded["budget"][key.removeprefix("budget.")] for key in keys}
    return config.model_copy(update={"budget": config.budget.model_copy(update=values)})


def changed_limits(config: RunConfig, recorded: Mapping[str, Any]) -> dict[str, JsonValue]:
    """New values of the limits in which ``config`` differs from the recorded configuration, by dotted key."""
    now = {key: getattr(config.budget, key.removeprefix("budget.")) for key in LIMITS}
    return {key: value for key, value in now.items() if value != recorded["budget"][key.removeprefix("budget.")]}
