"""The graph that the route solver reads: stations, tracks, their attributes, and the answer string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evals.suites.route import TRANSFER_MARK


@dataclass(frozen=True)
class Attributes:
    """The four attributes of an edge or a vertex, in the tables' own units."""

    time: float = 0.0
    price: float = 0.0
    comfort: float = 0.0
    reliability: float = 0.0


@dataclass(frozen=True)
class Station:
    """One vertex: its attributes and what a line change costs there."""

    attributes: Attributes = Attributes()
    transfer_time: float = 0.0


@dataclass(frozen=True)
class Track:
    """One stretch between neighbouring stations, usable both ways, on every line of ``lines``."""

    station_1: str
    station_2: str
    lines: tuple[str, ...] = ("",)
    """Travel maps have no lines: one line with an empty name."""
    attributes: Attributes = Attributes()


@dataclass(frozen=True)
class Hop:
    """A move to a neighbour by one line."""

    line: str
    to: str
    attributes: Attributes


@dataclass(frozen=True)
class RouteGraph:
    """Stations by name and the tracks between them."""

    stations: dict[str, Station]
    tracks: tuple[Track, ...]
    hops: dict[str, tuple[Hop, ...]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Index the moves that leave each station.

        Raises:
            ValueError: a track ends at a station that is not in ``stations``.
        """
        moves: dict[str, list[Hop]] = {name: [] for name in self.stations}
        for track in self.tracks:
            for one, two in ((track.station_1, track.station_2), (track.station_2, track.station_1)):
                if one not in moves:
                    raise ValueError(
                        f"route graph failed; got a track at station {one!r}, which is no vertex; "
                        "expected every end of a track among the vertices; check the spelling in both tables"
                    )
                moves[one] += [Hop(line, two, track.attributes) for line in track.lines]
        object.__setattr__(self, "hops", {name: tuple(hops) for name, hops in moves.items()})

    @cached_property
    def _links(self) -> frozenset[tuple[str, str]]:
        return frozenset((name, hop.to) for name, hops in self.hops.items() for hop in hops)

    def is_link(self, one: str, two: str) -> bool:
        """Whether the two stations are neighbours on some line."""
        return (one, two) in self._links

    def lines_at(self, station: str) -> tuple[str, ...]:
        """Lines that stop at ``station``, once each."""
        return tuple(dict.fromkeys(hop.line for hop in self.hops[station]))


@dataclass(frozen=True)
class Route:
    """One way through the graph: stations, the line of every hop, what it costs."""

    stations: tuple[str, ...]
    lines: tuple[str, ...]
    """One per hop: one shorter than ``stations``."""
    cost: float

    @property
    def changes(self) -> tuple[int, ...]:
        """Positions of the stations where the line changes."""
        pairs = zip(self.lines, self.lines[1:], strict=False)
        return tuple(index for index, (one, two) in enumerate(pairs, start=1) if one != two)

    @property
    def text(self) -> str:
        """The answer string."""
        return mark_route(self.stations, self.changes)


def mark_route(stations: Sequence[str], changes: Iterable[int]) -> str:
    """Join stations by ``-``, with a transfer mark behind those at the positions ``changes``."""
    marked = set(changes)
    return "-".join(name + TRANSFER_MARK if index in marked else name for index, name in enumerate(stations))
