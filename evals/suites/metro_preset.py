"""Sizes of the metro suite: what is drawn, how it is worded, and from which seeds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from evals.suites.metro_network import LINE_NAMES, STATION_CODES, Network, NetworkShape, draw_lines, route_graph
from evals.suites.route_cost import Costs, stop_costs
from evals.suites.route_graph import Route
from evals.suites.route_solver import solve_route
from harness.records import Split

PresetName = Literal["pocket"]

SUITE_SEED_RANGE = range(100_000_000, 200_000_000)
"""Seeds from which suite maps are drawn; policy training draws from other ranges."""
_STREAMS_PER_SEED = 64
SUITE_SEED_COUNT = len(SUITE_SEED_RANGE) // _STREAMS_PER_SEED
"""A suite's ``seed`` lies in 0..SUITE_SEED_COUNT-1."""

_SPLIT_BUCKETS: dict[Split, frozenset[int]] = {
    "train": frozenset({0, 1, 2, 3}),
    "val": frozenset({4, 5}),
    "test": frozenset({6, 7}),
}
"""The hash of a map decides its split, so no map is in two splits under any seed or size."""


@dataclass(frozen=True)
class MetroPreset:
    """One size of the metro suite."""

    name: str
    number: int
    """Keeps the presets' random streams apart."""
    maps: dict[str, NetworkShape]
    """Map difficulty -> size."""
    queries: dict[str, int]
    """Query difficulty -> line changes of the route."""
    counts: dict[Split, int]
    """Default number of tasks per split."""
    station_names: tuple[str, ...] = STATION_CODES
    line_names: tuple[str, ...] = LINE_NAMES
    strata: tuple[tuple[str, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        """List the map × query strata in the order in which tasks cycle through them."""
        object.__setattr__(self, "strata", tuple(itertools.product(self.maps, self.queries)))


PRESETS: dict[str, MetroPreset] = {
    "pocket": MetroPreset(
        name="pocket",
        number=0,
        maps={"easy": NetworkShape(2, 4, 6), "hard": NetworkShape(3, 4, 6)},
        queries={"easy": 0, "hard": 1},
        counts={"train": 512, "val": 160, "test": 400},
    ),
}


@dataclass(frozen=True)
class Problem:
    """A map, a question on it and its proven unique optimum."""

    network: Network
    start: str
    goal: str
    route: Route
    map_difficulty: str
    query_difficulty: str

    @property
    def costs(self) -> Costs:
        """What the optimum minimises."""
        return stop_costs()


def map_split(fingerprint: str) -> Split:
    """The split that a map belongs to, under every seed."""
    bucket = int(fingerprint, 16) % 8
    return next(split for split, buckets in _SPLIT_BUCKETS.items() if bucket in buckets)


def stream_seed(preset: MetroPreset, seed: int, split: Split) -> int:
    """The integer seed of one split's random stream, inside :data:`SUITE_SEED_RANGE`."""
    if not 0 <= seed < SUITE_SEED_COUNT:
        raise ValueError(f"a metro suite's seed failed; got {seed}; expected 0..{SUITE_SEED_COUNT - 1}")
    offset = preset.number * len(_SPLIT_BUCKETS) + list(_SPLIT_BUCKETS).index(split)
    return SUITE_SEED_RANGE.start + seed * _STREAMS_PER_SEED + offset


def _draw_network(preset: MetroPreset, difficulty: str, rng: random.Random) -> Network:
    shape = preset.maps[difficulty]
    return Network(draw_lines(shape, preset.station_names, rng, preset.line_names))


def _draw_query(network: Network, changes: int, rng: random.Random) -> Route | None:
    """A question whose unique optimum has ``changes`` line changes, or None when luck runs out."""
    graph = route_graph(network)
    plain = [station for station in network.stations() if len(network.lines_of(station)) == 1]
    for _ in range(40):
        start, goal = rng.sample(plain if changes else network.stations(), 2)
        if not changes and not set(network.lines_of(start)) & set(network.lines_of(goal)):
            continue
        solution = solve_route(graph, start, goal, stop_costs())
        if solution.is_unique and len(solution.routes[0].changes) == changes:
            return solution.routes[0]
    return None


def draw_problems(preset: MetroPreset, seed: int, split: Split) -> Iterator[Problem]:
    """Endless problems of one split; a longer draw starts with the shorter one.

    Strata follow each other in a fixed cycle, so every prefix is balanced; each map is used once.
    """
    rng = random.Random(stream_seed(preset, seed, split))
    seen: set[str] = set()
    for map_difficulty, query_difficulty in itertools.cycle(preset.strata):
        while True:
            network = _draw_network(preset, map_difficulty, rng)
            if map_split(network.fingerprint) != split or network.fingerprint in seen:
                continue
            route = _draw_query(network, preset.queries[query_difficulty], rng)
            if route is not None:
                break
        seen.add(network.fingerprint)
        start, goal = route.stations[0], route.stations[-1]
        yield Problem(network, start, goal, route, map_difficulty, query_difficulty)
