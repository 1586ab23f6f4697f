import pytest

from graphs.config import BudgetConfig
from graphs.limits import reached_limit

SPENT = {"tokens": 100, "cost_usd": 0.5, "evaluations": 30}


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"max_tokens": 100}, "budget.max_tokens=100 reached (100)"),
        ({"max_cost_usd": 0.4}, "budget.max_cost_usd=0.4 reached (0.5)"),
        ({"max_evaluations": 29}, "budget.max_evaluations=29 reached (30)"),
        ({"max_wall_s": 5}, "budget.max_wall_s=5 reached (6)"),
    ],
)
def test_a_limit_is_reached_when_the_amount_is_not_below_it(limit, said):
    assert reached_limit(BudgetConfig(**limit), SPENT, wall_s=6.0) == said


def test_limits_above_the_amounts_and_absent_limits_are_not_reached():
    budget = BudgetConfig(max_tokens=101, max_cost_usd=0.51, max_evaluations=31, max_wall_s=6.1)
    assert reached_limit(budget, SPENT, wall_s=6.0) == ""
    assert reached_limit(BudgetConfig(), SPENT, wall_s=1e9) == ""
