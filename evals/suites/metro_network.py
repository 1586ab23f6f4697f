"""Synthetic metro networks: lines, interchanges, vertex and edge attributes.

A network is data; drawing one is a pure function of a ``random.Random``. The pocket policy's
training maps and every suite's maps come from here, from disjoint seeds.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from evals.suites.route_graph import Attributes, RouteGraph, Station, Track

LINE_NAMES = (
    "Red", "Blue", "Green", "Yellow", "Orange", "Purple", "Pink", "Brown", "Grey", "Black", "White", "Gold",
)  # fmt: skip
_FIRST_WORDS = (
    "Oak", "Mill", "Castle", "River", "Abbey", "Garden", "Market", "Harbour", "King", "Queen", "North", "South",
    "East", "West", "Stone", "Bridge", "Church", "Forest", "Lake", "Tower", "Silver", "Copper", "Elm", "Clay",
)  # fmt: skip
_SECOND_WORDS = (
    " Street", " Park", " Gate", " Square", " Road", " Hill", " Cross", " Green", " Hall", "_Town", " Quay", " Lane",
)  # fmt: skip
STATION_NAMES = tuple(f"{first}{second}" for first in _FIRST_WORDS for second in _SECOND_WORDS)
"""Names as on real maps, with spaces and ``_`` for a hyphen inside a name."""
STATION_CODES = tuple(f"K{number:02d}" for number in range(100))
"""Short station names that the pocket-size preset draws afresh for every map."""


@dataclass(frozen=True)
class Edge:
    """One stretch between neighbouring stations on one line, usable both ways."""

    line: str
    station_1: str
    station_2: str
    time: float = 0.0
    price: float = 0.0
    comfort: float = 0.0
    reliability: float = 0.0


@dataclass(frozen=True)
class Vertex:
    """One station and the lines that stop there."""

    name: str
    lines: tuple[str, ...]
    time: float = 0.0
    price: float = 0.0
    comfort: float = 0.0
    reliability: float = 0.0
    transfer_time: float = 0.0


@dataclass(frozen=True)
class Network:
    """A metro network: lines as station sequences plus attributed edges and vertices."""

    lines: dict[str, tuple[str, ...]]
    edges: tuple[Edge, ...] = ()
    vertices: dict[str, Vertex] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Hash of the line layout; equal for the same map whatever its attributes."""
        text = ";".join(f"{name}:{','.join(stops)}" for name, stops in sorted(self.lines.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def stations(self) -> list[str]:
        """All stations once, in order of first appearance."""
        return list(dict.fromkeys(stop for stops in self.lines.values() for stop in stops))

    def lines_of(self, station: str) -> tuple[str, ...]:
        """Lines that stop at ``station``, in map order."""
        return tuple(name for name, stops in self.lines.items() if station in stops)


@dataclass(frozen=True)
class NetworkShape:
    """Size of a network to draw."""

    line_count: int
    stops_min: int
    stops_max: int
    """Stations on a line, inclusive bounds."""


def draw_lines(
    shape: NetworkShape, names: Sequence[str], rng: random.Random, line_names: Sequence[str] = LINE_NAMES
) -> dict[str, tuple[str, ...]]:
    """Draw connected lines that share exactly one interchange with one earlier line each.

    Args:
        shape: size of the network.
        names: station names to draw from, at least as many as stations are needed.
        rng: source of randomness; the only one used.
        line_names: names to draw lines from.
    """
    chosen = rng.sample(list(line_names), shape.line_count)
    pool = iter(rng.sample(list(names), min(len(names), shape.line_count * shape.stops_max)))
    lines: dict[str, tuple[str, ...]] = {}
    interchanges: set[str] = set()
    for index, name in enumerate(chosen):
        stops = [next(pool) for _ in range(rng.randint(shape.stops_min, shape.stops_max))]
        if index:
            host = lines[rng.choice(list(lines))]
            shared = rng.choice([stop for stop in host if stop not in interchanges])
            stops[rng.randrange(len(stops))] = shared
            interchanges.add(shared)
        lines[name] = tuple(stops)
    return lines


def add_crossings(lines: dict[str, tuple[str, ...]], count: int, rng: random.Random) -> dict[str, tuple[str, ...]]:
    """Let ``count`` further pairs of lines meet, so that a trip has more than one way to go.

    A stop of one line is replaced by a stop of another; both served one line before.
    """
    crossed = {name: list(stops) for name, stops in lines.items()}
    for _ in range(count):
        one, two = rng.sample([*crossed], 2)
        served = Counter(stop for stops in crossed.values() for stop in stops)
        old = [index for index, stop in enumerate(crossed[one]) if served[stop] == 1]
        new = [stop for stop in crossed[two] if served[stop] == 1]
        if old and new:
            crossed[one][rng.choice(old)] = rng.choice(new)
    return {name: tuple(stops) for name, stops in crossed.items()}


def draw_attributes(lines: dict[str, tuple[str, ...]], rng: random.Random) -> Network:
    """A network with every edge and vertex attribute drawn, two decimals, some zero as in real tables."""

    def grade() -> float:
        return 0.0 if rng.random() < 0.1 else round(rng.uniform(0.05, 1.0), 2)

    edges = [
        Edge(line, one, two, round(rng.uniform(1, 6), 2), round(rng.uniform(0.2, 3), 2), grade(), grade())
        for line, stops in lines.items()
        for one, two in zip(stops, stops[1:], strict=False)
    ]
    bare = Network(lines)
    vertices = {}
    for name in bare.stations():
        at = bare.lines_of(name)
        transfer = round(rng.uniform(1, 6), 2) if len(at) > 1 else 0.0
        vertices[name] = Vertex(name, at, round(rng.uniform(0.3, 2), 2), 0.0, grade(), grade(), transfer)
    return Network(lines, tuple(edges), vertices)


def route_graph(network: Network) -> RouteGraph:
    """The network as the route solver reads it: one track per line and stretch."""
    stations = {
        name: Station(Attributes(vertex.time, vertex.price, vertex.comfort, vertex.reliability), vertex.transfer_time)
        for name in network.stations()
        for vertex in (network.vertices.get(name, Vertex(name, ())),)
    }
    known = {(edge.line, frozenset((edge.station_1, edge.station_2))): edge for edge in network.edges}
    tracks = []
    for line, stops in network.lines.items():
        for one, two in zip(stops, stops[1:], strict=False):
            edge = known.get((line, frozenset((one, two))), Edge(line, one, two))
            at = Attributes(edge.time, edge.price, edge.comfort, edge.reliability)
            tracks.append(Track(one, two, (line,), at))
    return RouteGraph(stations, tuple(tracks))
