"""Lower bounds of the rest of a route: what the solver's best-first search is guided by."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from evals.suites.route_cost import Costs
from evals.suites.route_graph import RouteGraph

START = "\0start"
"""The line by which the rider is at the origin: none, so the first boarding is no change."""
Bound = Callable[[int, str, str], float]
"""(hops so far, station, line arrived by) -> lower bound of what is still to pay; inf when impossible."""


@dataclass(frozen=True)
class CostTables:
    """Costs looked up once per station and per hop."""

    graph: RouteGraph
    goal: str
    stay: dict[str, float]
    change: dict[str, float]
    leave: dict[str, tuple[tuple[str, str, float], ...]]
    """station -> (line, neighbour, edge cost)."""


def cost_tables(graph: RouteGraph, goal: str, costs: Costs) -> CostTables:
    """Look up every cost of a map once.

    Raises:
        ValueError: a cost is negative, so the bounds would not hold.
    """
    stay = {name: costs.station(station, name == goal) for name, station in graph.stations.items()}
    change = {name: costs.change(station) for name, station in graph.stations.items()}
    leave = {
        name: tuple((hop.line, hop.to, costs.edge(hop.attributes)) for hop in hops) for name, hops in graph.hops.items()
    }
    edge_costs = [cost for hops in leave.values() for _, _, cost in hops]
    lowest = min([*stay.values(), *change.values(), *edge_costs], default=0.0)
    if lowest < 0:
        raise ValueError(
            f"solving a route failed; got a negative cost {lowest}; expected comfort and reliability within "
            "their scale and times and prices from 0; check the tables"
        )
    return CostTables(graph, goal, stay, change, leave)


def cheapest_rest(tables: CostTables) -> Bound:
    """Cheapest cost from having arrived at (station, line) to the goal, station cost included."""
    graph, goal = tables.graph, tables.goal
    best: dict[tuple[str, str], float] = {}
    heap = [(tables.stay[goal], goal, line) for line in (START, *graph.lines_at(goal))]
    heapq.heapify(heap)
    while heap:
        cost, station, line = heapq.heappop(heap)
        if (station, line) in best:
            continue
        best[station, line] = cost
        for via, before, edge in tables.leave[station]:
            if via != line:
                continue
            for arrived in (START, *graph.lines_at(before)):
                extra = 0.0 if arrived in (via, START) else tables.change[before]
                if (before, arrived) not in best:
                    heapq.heappush(heap, (cost + edge + extra + tables.stay[before], before, arrived))
    return lambda _, station, line: best.get((station, line), float("inf"))


def exact_hops_rest(tables: CostTables, hop_count: int) -> Bound:
    """As :func:`cheapest_rest`, for walks that arrive after exactly ``hop_count`` hops."""
    graph = tables.graph
    now = {(tables.goal, line): tables.stay[tables.goal] for line in (START, *graph.lines_at(tables.goal))}
    layers = [now]
    for _ in range(hop_count):
        earlier: dict[tuple[str, str], float] = {}
        for before in graph.stations:
            for arrived in (START, *graph.lines_at(before)):
                options = [
                    edge + layers[-1][to, via] + (0.0 if arrived in (via, START) else tables.change[before])
                    for via, to, edge in tables.leave[before]
                    if (to, via) in layers[-1]
                ]
                if options:
                    earlier[before, arrived] = min(options) + tables.stay[before]
        layers.append(earlier)

    def bound(hops: int, station: str, line: str) -> float:
        left = hop_count - hops
        if station == tables.goal and left:
            return float("inf")
        return layers[left].get((station, line), float("inf")) if left >= 0 else float("inf")

    return bound
