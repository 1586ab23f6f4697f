"""Strategies by name."""

from importlib.metadata import EntryPoint

import pytest

from graphs import registry
from graphs.config import RunConfig
from harness.errors import UserError


def outside_build(config):
    return f"built for seed {config.seed}"


@pytest.fixture
def plugins(monkeypatch):
    point = EntryPoint("outside", f"{__name__}:outside_build", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_every_builtin_strategy_compiles_from_a_configuration_with_its_name(name):
    required = {"train": {"stages": [{"type": "rl", "rollout_steps": 1}]}}
    config = RunConfig.model_validate(
        {"suite": {"type": "metro"}, "strategy": {"type": name, **required.get(name, {})}}
    )
    drawn = registry.load_build(name)(config).compile().get_graph()
    assert {"__start__", "__end__"} < set(drawn.nodes)


def test_an_unknown_strategy_lists_the_known_ones_and_is_never_replaced_by_another(plugins):
    with pytest.raises(UserError, match="'alternate'.*outside.*vace"):
        registry.load_build("alternate")


def test_a_strategy_of_another_distribution_is_found_by_its_entry_point(plugins):
    assert registry.known_strategies() == ["outside", "train", "vace"]
    assert registry.load_build("outside")(RunConfig.model_validate({"suite": {"type": "metro"}, "seed": 4})) == (
        "built for seed 4"
    )
