"""Sizes of the metro suite: what is drawn, how it is worded, and from which seeds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from evals.suites.metro_network import (
    LINE_NAMES,
    STATION_CODES,
    STATION_NAMES,
    Network,
    NetworkShape,
    add_crossings,
    draw_attributes,
    draw_lines,
    route_graph,
)
from evals.suites.metro_text import route_legs
from evals.suites.route_cost import Costs, Weights, metro_costs, stop_costs
from evals.suites.route_graph import Route, RouteGraph
from evals.suites.route_solver import solve_route
from harness.records import Split

PresetName = Literal["pocket", "mini", "standard"]
Rendering = Literal["codes", "listing", "tables"]
"""How a map is worded: station codes, a listing of full names, or vertex and edge tables."""

SUITE_SEED_RANGE = range(100_000_000, 200_000_000)
"""Seeds from which suite maps are drawn; policy training draws from other ranges."""
_STREAMS_PER_SEED = 64
_QUERY_TRIES = 40
"""Questions tried on one map before another map is drawn."""
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
    rendering: Rendering = "codes"
    is_forward: bool = False
    """Questions travel every line in its listed direction only."""
    crossings: int = 0
    """Further interchanges that turn the tree of lines into a mesh."""
    is_weighted: bool = False
    """Attributes and user weights decide the optimum; otherwise the fewest stations."""
    strata: tuple[tuple[str, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        """List the map × query strata in the order in which tasks cycle through them."""
        object.__setattr__(self, "strata", tuple(itertools.product(self.maps, self.queries)))


PRESETS: dict[str, MetroPreset] = {
    "pocket": MetroPreset(
        name="pocket",
        number=0,
        maps={"easy": NetworkShape(2, 4, 5), "hard": NetworkShape(3, 4, 5)},
        queries={"easy": 0, "hard": 1},
        counts={"train": 512, "val": 160, "test": 400},
        is_forward=True,
    ),
    "mini": MetroPreset(
        name="mini",
        number=1,
        maps={"easy": NetworkShape(3, 5, 7), "medium": NetworkShape(4, 6, 8), "hard": NetworkShape(5, 7, 9)},
        queries={"easy": 0, "medium": 1, "hard": 2},
        counts={"train": 270, "val": 90, "test": 180},
        station_names=STATION_NAMES,
        rendering="listing",
    ),
    "standard": MetroPreset(
        name="standard",
        number=2,
        maps={"easy": NetworkShape(3, 6, 8), "medium": NetworkShape(5, 7, 9), "hard": NetworkShape(7, 8, 11)},
        queries={"easy": 0, "medium": 1, "hard": 2},
        counts={"train": 270, "val": 90, "test": 180},
        station_names=STATION_NAMES,
        rendering="tables",
        crossings=3,
        is_weighted=True,
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
    weights: Weights | None = None

    @cached_property
    def graph(self) -> RouteGraph:
        """The map as the solver reads it."""
        return route_graph(self.network)

    @property
    def costs(self) -> Costs:
        """What the optimum minimises."""
        return stop_costs() if self.weights is None else metro_costs(self.weights)


def map_split(fingerprint: str) -> Split:
    """The split that a map belongs to, under every seed."""
    bucket = int(fingerprint, 16) % 8
    return next(split for split, buckets in _SPLIT_BUCKETS.items() if bucket in buckets)


def stream_seed(preset: MetroPreset, seed: int, *, split: Split) -> int:
    """The integer seed of one split's random stream, inside :data:`SUITE_SEED_RANGE`."""
    if not 0 <= seed < SUITE_SEED_COUNT:
        raise ValueError(f"a metro suite's seed failed; got {seed}; expected 0..{SUITE_SEED_COUNT - 1}")
    offset = preset.number * len(_SPLIT_BUCKETS) + list(_SPLIT_BUCKETS).index(split)
    return SUITE_SEED_RANGE.start + seed * _STREAMS_PER_SEED + offset


def _draw_network(preset: MetroPreset, difficulty: str, rng: random.Random) -> Network:
    lines = draw_lines(preset.maps[difficulty], preset.station_names, rng, preset.line_names)
    lines = add_crossings(lines, preset.crossings, rng)
    return draw_attributes(lines, rng) if preset.is_weighted else Network(lines)


def _draw_weights(rng: random.Random) -> Weights:
    """User weights in hundredths that sum to one; up to two objectives may not count."""
    shares = [rng.randint(1, 100) for _ in range(4)]
    for index in rng.sample(range(4), rng.choice((0, 0, 1, 2))):
        shares[index] = 0
    cents = [100 * share // sum(shares) for share in shares]
    cents[shares.index(max(shares))] += 100 - sum(cents)
    time, price, comfort, reliability = (cent / 100 for cent in cents)
    return Weights(time, price, comfort, reliability)


def _is_forward(network: Network, route: Route) -> bool:
    """True when every ride follows its line's listed direction."""
    return all(leg.label.endswith("+") for leg in route_legs(network, route))


def _draw_query(
    preset: MetroPreset, network: Network, changes: int, weights: Weights | None, rng: random.Random
) -> Route | None:
    """A question whose unique optimum has ``changes`` line changes, or None when luck runs out."""
    graph = route_graph(network)
    costs = stop_costs() if weights is None else metro_costs(weights)
    plain = [station for station in network.stations() if len(network.lines_of(station)) == 1]
    for _ in range(_QUERY_TRIES):
        start, goal = rng.sample(plain if changes else network.stations(), 2)
        if not changes and not set(network.lines_of(start)) & set(network.lines_of(goal)):
            continue
        solution = solve_route(graph, start, goal, costs)
        if solution.is_unique and len(solution.routes[0].changes) == changes:
            if not preset.is_forward or _is_forward(network, solution.routes[0]):
                return solution.routes[0]
    return None


def draw_problems(preset: MetroPreset, seed: int, *, split: Split) -> Iterator[Problem]:
    """Endless problems of one split; a longer draw starts with the shorter one.

    Strata follow each other in a fixed cycle, so every prefix is balanced; each map is used once.
    """
    rng = random.Random(stream_seed(preset, seed, split=split))
    seen: set[str] = set()
    for map_difficulty, query_difficulty in itertools.cycle(preset.strata):
        while True:
            network = _draw_network(preset, map_difficulty, rng)
            if map_split(network.fingerprint) != split or network.fingerprint in seen:
                continue
            weights = _draw_weights(rng) if preset.is_weighted else None
            route = _draw_query(preset, network, preset.queries[query_difficulty], weights, rng)
            if route is not None:
                break
        seen.add(network.fingerprint)
        start, goal = route.stations[0], route.stations[-1]
        yield Problem(network, start, goal, route, map_difficulty, query_difficulty, weights)
