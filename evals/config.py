"""Configuration of task suites: frozen records, a union on ``type``; nothing is drawn or read here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from evals.suites.metro_preset import SUITE_SEED_COUNT, PresetName
from evals.suites.route_verdict import RewardConfig
from harness.records import Record, Split

TaskCount = Annotated[int, Field(ge=1, le=100_000)]

MetroImage = Literal["none", "only_map", "map_and_text"]
MapTabDomain = Literal["metro", "travel"]
MapTabVariant = Literal[
    "only_map",
    "only_tab",
    "map_and_tab",
    "map_and_tab_with_constraint_1",
    "map_and_tab_with_constraint_2",
    "map_and_tab_with_constraint_3",
    "map_and_tab_with_constraint_4",
    "map_and_tab_with_constraint_1_2_3_4",
    "map_and_tab_with_constraint_1_2_4",
    "map_and_tab_with_constraint_1_3_4",
    "map_and_tab_with_constraint_2_3_4",
    "map_and_tab_with_constraint_1_2_3_4_only_vertex2",
]


class MetroConfig(Record):
    """Synthetic metro networks, drawn from a seed."""

    type: Literal["metro"] = "metro"
    """Which suite this is."""
    preset: PresetName = "pocket"
    """Size and wording: ``pocket`` (codes), ``mini`` (names), ``standard`` (tables and weights)."""
    seed: int = Field(default=0, ge=0, lt=SUITE_SEED_COUNT)
    """Decides every map and question."""
    train: TaskCount | None = None
    """Number of train tasks; None keeps the preset's number. A larger set starts with the smaller one."""
    val: TaskCount | None = None
    """Number of val tasks; None keeps the preset's number."""
    test: TaskCount | None = None
    """Number of test tasks; None keeps the preset's number."""
    reward: RewardConfig = RewardConfig()
    """What training is rewarded for; the gate always reads ``exact``."""
    image: MetroImage = "none"
    """``only_map`` draws the map as a picture and takes its text out of the prompt, ``map_and_text`` shows both; the
    policy must see (``policy.image``). Pictures go to ``images`` below the home."""

    @model_validator(mode="after")
    def _drawable(self) -> Self:
        if self.image == "only_map" and self.preset == "standard":
            raise ValueError(
                "image=only_map cannot ask preset=standard's questions: no picture shows attributes; use map_and_text"
            )
        return self

    @property
    def counts(self) -> dict[Split, int]:
        """The counts that are set."""
        counts: dict[Split, int | None] = {"train": self.train, "val": self.val, "test": self.test}
        return {split: count for split, count in counts.items() if count is not None}


class MapTabConfig(Record):
    """Query files and tables in the MapTab layout, read from a folder."""

    type: Literal["maptab"] = "maptab"
    """Which suite this is."""
    root: str = Field(min_length=1)
    """Folder that holds ``metromap/`` or ``travelmap/``."""
    domain: MapTabDomain = "metro"
    """``metro`` (lines and transfers) or ``travel`` (scenic spots)."""
    variants: tuple[MapTabVariant, ...] = ()
    """Variants to load; empty loads every variant that has a query file."""
    reward: RewardConfig = RewardConfig()
    """What training is rewarded for."""


class PluginConfig(Record):
    """A suite that another distribution registers under the entry-point group ``cohelix.suites``."""

    type: Literal["plugin"] = "plugin"
    """Which suite this is."""
    name: str
    """Entry-point name."""
    options: dict[str, JsonValue] = {}
    """Keyword arguments of the entry point's factory."""


SuiteConfig = Annotated[MetroConfig | MapTabConfig | PluginConfig, Field(discriminator="type")]
