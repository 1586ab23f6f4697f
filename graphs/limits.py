"""Which limit of a run's budget is reached: pure, so that routers stay pure."""

from __future__ import annotations

from graphs.config import BudgetConfig
from graphs.state import NOTHING_SPENT, Spent


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
