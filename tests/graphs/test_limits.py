import pytest

from graphs.config import BudgetConfig, RunConfig
from graphs.limits import LIMITS, changed_limits, named_limits, reached_limit, with_limits

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


def config(**budget):
    return RunConfig.model_validate({"suite": {"type": "metro"}, "budget": budget})


def test_the_limits_are_the_numbers_of_the_budget():
    assert {f"budget.{name}" for name in BudgetConfig.model_fields if name.startswith("max_")} == set(LIMITS)


def test_only_a_limit_by_its_whole_key_is_named_by_an_override():
    overrides = ["seed=1", " budget.max_tokens =5", "budget={max_cost_usd: 1}", "budget.tasks.val=2"]
    assert named_limits(overrides) == ["budget.max_tokens"]


def test_changed_limits_tell_none_from_a_number():
    recorded = config(max_tokens=5, max_wall_s=9).model_dump(mode="json")
    assert changed_limits(config(max_tokens=5, max_wall_s=9), recorded) == {}
    assert changed_limits(config(max_cost_usd=2), recorded) == {
        "budget.max_wall_s": None,
        "budget.max_tokens": None,
        "budget.max_cost_usd": 2.0,
    }


def test_recorded_limits_are_put_back_for_the_named_keys_alone():
    recorded = config(max_tokens=5, max_wall_s=9).model_dump(mode="json")
    same = with_limits(config(max_tokens=6, max_wall_s=10, replicates={"val": 2}), recorded, ["budget.max_tokens"])
    assert same == config(max_tokens=5, max_wall_s=10, replicates={"val": 2})
