"""Suites by name: the built-in ones in one dict, others through the entry-point group ``cohelix.suites``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from evals.config import PluginConfig, SuiteConfig
from evals.suites.base import Suite
from evals.suites.guard import guarded
from evals.suites.maptab import MapTabSuite
from evals.suites.metro import MetroSuite
from harness.errors import BoundaryError, UserError

ENTRY_POINT_GROUP = "cohelix.suites"


@dataclass(frozen=True)
class SuiteEntry:
    """A built-in suite."""

    description: str
    build: Callable[[Any, Path | None], Suite]
    """Takes the config of this ``type`` and the folder for pictures."""


SUITES: dict[str, SuiteEntry] = {
    "metro": SuiteEntry(
        "synthetic metro networks drawn from a seed; presets pocket, mini, standard",
        lambda config, folder: MetroSuite(
            config.preset,
            config.seed,
            counts=config.counts,
            reward=config.reward,
            image=config.image,
            image_folder=folder,
        ),
    ),
    "maptab": SuiteEntry(
        "query files, tables and map images in the MapTab layout, read from a folder",
        lambda config, folder: MapTabSuite(config),
    ),
}
"""Built-in suites by config ``type``."""


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def suite_names() -> tuple[str, ...]:
    """Names of all suites that can be built here, built-in ones first."""
    return (*SUITES, *sorted(set(_plugins()) - set(SUITES)))


def build_suite(config: SuiteConfig, *, image_folder: Path | None = None) -> Suite:
    """Build the suite that a config describes.

    Args:
        config: which suite.
        image_folder: where a suite that draws pictures writes them; None writes none: the tasks and their fingerprint
            are the same, but cannot be shown to a policy.

    Raises:
        UserError: no suite has that name; the message lists the known ones.
        BoundaryError: an outside suite's factory failed (boundary ``user_code``).
    """
    if isinstance(config, PluginConfig):
        return _build_plugin(config)
    return SUITES[config.type].build(config, image_folder)


def _build_plugin(config: PluginConfig) -> Suite:
    point = _plugins().get(config.name)
    if point is None:
        raise UserError(
            "building a suite failed",
            got=f"suite {config.name!r}",
            expected=f"one of {[*suite_names()]}",
            do=f"install the distribution that registers it under {ENTRY_POINT_GROUP!r}, or correct the name",
        )
    try:
        suite = point.load()(**config.options)
    except UserError:
        raise
    except Exception as error:
        raise BoundaryError("user_code", f"suite {config.name!r} ({point.value}) failed: {error!r}") from error
    return guarded(suite, config.name)
