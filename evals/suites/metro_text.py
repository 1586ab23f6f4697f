"""Text of metro tasks: the listing a text policy reads, and worked solutions in several styles.

The pocket listing gives every line once, under its label (``Red+``), and every interchange with its
lines; pocket questions travel every line in the listed direction. Larger presets list both directions
(``Red+``, ``Red-``) and ask both ways. The question stands before and after the map, so that a causal
model knows what to look for while it reads the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from evals.suites.metro_network import Network
from evals.suites.route import TRANSFER_MARK as TRANSFER_MARK
from evals.suites.route_graph import Route

SolutionStyle = Literal["direct", "plan", "expand", "hops"]
"""How much working a solution shows; ``direct`` shows none."""
STYLES: tuple[SolutionStyle, ...] = get_args(SolutionStyle)
INPUT_TEMPLATE = "{question}\n{map}\n{question}"
INSTRUCTIONS = "Find the route with the fewest stations."
CONTRACT = (
    "Answer as <reasoning>working</reasoning><response>route</response>. The route joins stations with - "
    "and marks a line change with (transfer)."
)
"""Output contract of every metro preset."""


@dataclass(frozen=True)
class Leg:
    """A ride on one line in one direction; ``stops`` includes both ends."""

    label: str
    """Line name and direction, for example ``Red+``."""
    stops: tuple[str, ...]


def directed_lines(network: Network) -> dict[str, tuple[str, ...]]:
    """Every line under ``name+`` in map order and under ``name-`` reversed."""
    listing: dict[str, tuple[str, ...]] = {}
    for name, stops in network.lines.items():
        listing[f"{name}+"] = stops
        listing[f"{name}-"] = tuple(reversed(stops))
    return listing


def question_text(start: str, goal: str) -> str:
    """The question of a route task."""
    return f"From {start} to {goal}."


def map_text(network: Network) -> str:
    """The pocket listing: one row per line in the direction of travel, one row per interchange."""
    rows = [f"{name}+ {' '.join(stops)}" for name, stops in network.lines.items()]
    for station in network.stations():
        lines = network.lines_of(station)
        if len(lines) > 1:
            rows.append(f"Change {station} {' '.join(lines)}")
    return "\n".join(rows)


def route_text(legs: Sequence[Leg]) -> str:
    """The answer string: stations joined by ``-``, a mark behind the station of each line change."""
    parts = [legs[0].stops[0]]
    for number, leg in enumerate(legs):
        parts += leg.stops[1:]
        if number < len(legs) - 1:
            parts[-1] += TRANSFER_MARK
    return "-".join(parts)


def working_text(network: Network, legs: Sequence[Leg], style: SolutionStyle, *, gap: str = " ") -> str:
    """The reasoning of a worked solution in ``style``; ``gap`` stands between stations in a row."""
    if style == "direct":
        return "Direct."
    if style == "plan":
        return "Plan: " + "; ".join(f"{leg.label} {leg.stops[0]}{gap}{leg.stops[-1]}" for leg in legs) + "."
    if style == "expand":
        listing = directed_lines(network)
        return "Lines: " + "; ".join(f"{leg.label} {gap.join(listing[leg.label])}" for leg in legs) + "."
    hops = [f"{one} {leg.label} {two}" for leg in legs for one, two in zip(leg.stops, leg.stops[1:], strict=False)]
    return "Hops: " + "; ".join(hops) + "."


def route_legs(network: Network, route: Route) -> tuple[Leg, ...]:
    """Cut a solved route into rides on one line each."""
    cuts = [0, *route.changes, len(route.stations) - 1]
    listing = directed_lines(network)
    legs = []
    for one, two in zip(cuts, cuts[1:], strict=False):
        line, stops = route.lines[one], route.stations[one : two + 1]
        order = listing[f"{line}+"]
        legs.append(Leg(f"{line}{'+' if order.index(stops[0]) < order.index(stops[-1]) else '-'}", stops))
    return tuple(legs)


def completion_text(working: str, answer: str) -> str:
    """Wrap working and answer in the output contract's tags."""
    return f"<reasoning>{working}</reasoning><response>{answer}</response>"
