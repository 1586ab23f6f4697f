"""Suites by config, built-in and from outside."""

from importlib.metadata import EntryPoint

import pytest
from pydantic import TypeAdapter, ValidationError

from evals.config import MetroConfig, PluginConfig, SuiteConfig
from evals.suites import registry
from evals.suites.metro import MetroSuite
from harness.errors import BoundaryError, UserError

PARSE = TypeAdapter(SuiteConfig).validate_python


def outside_suite(seed):
    return MetroSuite("mini", seed)


def broken_suite():
    raise RuntimeError("no data")


@pytest.fixture
def plugins(monkeypatch):
    points = [
        EntryPoint(name, f"{__name__}:{function}", registry.ENTRY_POINT_GROUP)
        for name, function in (("outside", "outside_suite"), ("broken", "broken_suite"))
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def test_a_metro_config_builds_its_preset_seed_and_counts():
    suite = registry.build_suite(PARSE({"type": "metro", "preset": "mini", "seed": 7, "val": 5}))
    assert suite.name == "metro-mini-7"
    assert len(suite.tasks(split="val")) == 5


def test_an_outside_suite_is_built_from_its_entry_point(plugins):
    suite = registry.build_suite(PARSE({"type": "plugin", "name": "outside", "options": {"seed": 2}}))
    assert suite.name == "metro-mini-2"
    assert registry.suite_names() == ("metro", "maptab", "broken", "outside")


def test_an_unknown_suite_lists_the_known_ones(plugins):
    with pytest.raises(UserError, match="metro.*maptab.*broken.*outside"):
        registry.build_suite(PluginConfig(name="nowhere"))


def test_a_failing_factory_is_user_code(plugins):
    with pytest.raises(BoundaryError, match="user_code.*broken.*no data"):
        registry.build_suite(PluginConfig(name="broken"))


@pytest.mark.parametrize(
    "bad",
    [{"type": "tram"}, {"type": "metro", "preset": "huge"}, {"type": "metro", "val": 0}, {"type": "metro", "x": 1}],
)
def test_a_wrong_config_is_refused_at_parse(bad):
    with pytest.raises(ValidationError):
        PARSE(bad)


def test_every_builtin_has_a_config_type():
    assert set(registry.SUITES) == {MetroConfig().type, "maptab"}
