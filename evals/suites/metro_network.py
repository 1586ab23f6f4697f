"""Synthetic metro networks: lines, interchanges, vertex and edge attributes.

A network is data; drawing one is a pure function of a ``random.Random``. The pocket policy's
training maps and every suite's maps come from here, from disjoint seeds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from evals.suites.route_graph import Attributes, RouteGraph, Station, Track

LINE_NAMES = (
    "Red", "Blue", "Green", "Yellow", "Orange", "Purple", "Pink", "Brown", "Grey", "Black", "White", "Gold",
)  # fmt: skip
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


def route_graph(network: Network) -> RouteGraph:
    """The network as the route solver reads it; parallel stretches become one track with several lines."""
    stations = {
        name: Station(
            Attributes(vertex.time, vertex.price, vertex.comfort, vertex.reliability), vertex.transfer_time
        )
        for name in network.stations()
        for vertex in (network.vertices.get(name, Vertex(name, ())),)
    }
    known = {frozenset((edge.station_1, edge.station_2)): edge for edge in network.edges}
    lines: dict[frozenset[str], list[str]] = {}
    for line, stops in network.lines.items():
        for one, two in zip(stops, stops[1:], strict=False):
            lines.setdefault(frozenset((one, two)), []).append(line)
    tracks = []
    for ends, names in lines.items():
        one, two = sorted(ends)
        edge = known.get(ends, Edge("", one, two))
        at = Attributes(edge.time, edge.price, edge.comfort, edge.reliability)
        tracks.append(Track(one, two, tuple(names), at))
    return RouteGraph(stations, tuple(tracks))
