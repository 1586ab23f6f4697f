"""Exact optimal routes over simple paths, with all ties.

Search is best-first over simple station paths. A path carries, for every line it may have arrived
by, the cheapest cost so far; a reverse Dijkstra over (station, line) states gives the lower bound
of the rest. That makes the first finished path optimal, keeps parallel lines from multiplying the
work, and goes on through equal costs until every tie is found. Per station sequence the gold uses
as few line changes as its cost allows.
Source: METHODS §5, optimal route.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

from evals.suites.route_bound import START, Bound, CostTables, cheapest_rest, cost_tables, exact_hops_rest
from evals.suites.route_cost import Costs, Domain, Weights, vertex_only_costs
from evals.suites.route_graph import Route, RouteGraph

TOLERANCE = 1e-9
"""Costs closer than this are equal; attributes have two decimals and weights six."""


@dataclass(frozen=True)
class Solution:
    """All optimal routes of one query."""

    cost: float
    routes: tuple[Route, ...]
    """Distinct answer strings, in order of discovery; empty when the goal cannot be reached."""
    is_complete: bool
    """False when the search limit was hit before all ties were found."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The answer strings."""
        return tuple(route.text for route in self.routes)

    @property
    def is_unique(self) -> bool:
        """Proven to have exactly one answer string."""
        return self.is_complete and len(self.routes) == 1


@dataclass(frozen=True)
class Limits:
    """Where a search gives up."""

    labels: int = 200_000
    """Paths looked at."""
    routes: int = 1_000
    """Distinct optimal answer strings kept."""


class SearchLimit(RuntimeError):  # noqa: N818 - the name says what was hit
    """No optimum was found within the search limit."""


def _lines_of_path(tables: CostTables, path: tuple[str, ...]) -> tuple[float, list[tuple[str, ...]]]:
    """The cheapest line assignments of a station sequence and, among those, the fewest changes."""
    partial: dict[str, tuple[float, int, list[tuple[str, ...]]]] = {START: (0.0, 0, [()])}
    for one, two in zip(path, path[1:], strict=False):
        grown: dict[str, tuple[float, int, list[tuple[str, ...]]]] = {}
        for line, to, edge in tables.leave[one]:
            if to != two:
                continue
            for arrived, (cost, changes, chains) in partial.items():
                is_change = arrived not in (line, START)
                total = cost + tables.stay[one] + edge + (tables.change[one] if is_change else 0.0)
                _keep(grown, line, total, changes + is_change, [(*chain, line) for chain in chains])
        partial = grown
    ends: dict[str, tuple[float, int, list[tuple[str, ...]]]] = {}
    for cost, changes, chains in partial.values():
        _keep(ends, "", cost + tables.stay[path[-1]], changes, chains)
    return (ends[""][0], ends[""][2]) if ends else (float("inf"), [])


def _keep(
    table: dict[str, tuple[float, int, list[tuple[str, ...]]]],
    key: str,
    cost: float,
    changes: int,
    chains: list[tuple[str, ...]],
) -> None:
    """Keep the better of two ways to the same state; equal ones are both kept."""
    if key not in table or cost < table[key][0] - TOLERANCE:
        table[key] = (cost, changes, chains)
        return
    if cost > table[key][0] + TOLERANCE or changes > table[key][1]:
        return
    if changes < table[key][1]:
        table[key] = (cost, changes, chains)
    else:
        table[key] = (table[key][0], changes, table[key][2] + chains)


def _search(tables: CostTables, start: str, bound: Bound, limits: Limits, ceiling: float = float("inf")) -> Solution:
    """Best-first search over simple paths that cost at most ``ceiling``; see the module's docstring."""
    goal = tables.goal
    order = itertools.count()
    heap: list[tuple[float, int, int, tuple[str, ...], dict[str, float]]] = []
    first = bound(0, start, START)
    if first < float("inf"):
        heap.append((first, 0, next(order), (start,), {START: 0.0}))
    best = ceiling
    found: dict[str, Route] = {}
    for _ in range(limits.labels):
        if not heap or heap[0][0] > best + TOLERANCE or len(found) > limits.routes:
            break
        _, _, _, path, arrived = heapq.heappop(heap)
        if path[-1] == goal:
            cost, chains = _lines_of_path(tables, path)
            best = min(best, cost)
            for chain in chains:
                route = Route(path, chain, cost)
                found.setdefault(route.text, route)
            continue
        for onward, costs, total in _extensions(tables, path, arrived, bound):
            if total <= best + TOLERANCE:
                heapq.heappush(heap, (total, -len(onward), next(order), onward, costs))
    is_complete = len(found) <= limits.routes and (not heap or heap[0][0] > best + TOLERANCE)
    if not found and not is_complete:
        raise SearchLimit(f"solving a route failed; got no route in {limits.labels} labels; raise the limit")
    return Solution(best, tuple(found.values()), is_complete)


def _extensions(
    tables: CostTables, path: tuple[str, ...], arrived: dict[str, float], bound: Bound
) -> list[tuple[tuple[str, ...], dict[str, float], float]]:
    """One-hop extensions of a path: (path, cost per arrival line, lower bound of the whole)."""
    here = path[-1]
    grown: dict[str, dict[str, float]] = {}
    for line, to, edge in tables.leave[here]:
        if to in path:
            continue
        cheapest = min(cost + (0.0 if came in (line, START) else tables.change[here]) for came, cost in arrived.items())
        total = cheapest + tables.stay[here] + edge
        costs = grown.setdefault(to, {})
        costs[line] = min(total, costs.get(line, total))
    extensions = []
    for to, costs in grown.items():
        low = min(cost + bound(len(path), to, line) for line, cost in costs.items())
        if low < float("inf"):
            extensions.append(((*path, to), costs, low))
    return extensions


def _check_ends(graph: RouteGraph, start: str, goal: str) -> None:
    missing = [name for name in (start, goal) if name not in graph.stations]
    if missing:
        raise ValueError(
            f"solving a route failed; got {missing}, not on the map; expected both ends among its "
            f"{len(graph.stations)} stations; check the spelling"
        )


def solve_route(graph: RouteGraph, start: str, goal: str, costs: Costs, *, limits: Limits | None = None) -> Solution:
    """Find every cheapest simple route from ``start`` to ``goal``.

    Args:
        graph: the map.
        start: origin.
        goal: destination.
        costs: additive, non-negative costs (:mod:`evals.suites.route_cost`).
        limits: where to give up; the result says whether it is complete.

    Raises:
        ValueError: an end is not on the map, or a cost is negative.
        SearchLimit: not even one route was found within the limits.
    """
    _check_ends(graph, start, goal)
    tables = cost_tables(graph, goal, costs)
    return _search(tables, start, cheapest_rest(tables), limits or Limits())


def solve_vertex_only(
    graph: RouteGraph,
    start: str,
    goal: str,
    weights: Weights,
    *,
    domain: Domain = "metro",
    limits: Limits | None = None,
) -> Solution:
    """Find every optimal route of an ``only_vertex2`` query, whose score has means in it.

    A mean is additive once the number of hops is fixed, so each number is solved on its own; counting
    stops when even the cheapest stations of that number cost more than the best route found.

    Args:
        graph: the map; its tracks give adjacency alone, their attributes are not read.
        start: origin.
        goal: destination.
        weights: user weights.
        domain: whose scales and counted stations apply.
        limits: where to give up, for each number of hops.
    """
    _check_ends(graph, start, goal)
    best = Solution(float("inf"), (), True)
    free = vertex_only_costs(Weights(weights.time, weights.price, 0, 0), 1, domain=domain)
    cheapest = min(free.station(station, False) for station in graph.stations.values())
    for count in range(1 if start != goal else 0, len(graph.stations)):
        if count * cheapest > best.cost + TOLERANCE:
            break
        tables = cost_tables(graph, goal, vertex_only_costs(weights, count, domain=domain))
        found = _search(tables, start, exact_hops_rest(tables, count), limits or Limits(), best.cost)
        if not found.routes:
            continue
        ties = best.routes if abs(found.cost - best.cost) <= TOLERANCE else ()
        best = Solution(found.cost, (*ties, *found.routes), found.is_complete and best.is_complete)
    return best


def price_path(graph: RouteGraph, costs: Costs, stations: tuple[str, ...]) -> tuple[Route, ...]:
    """The cheapest ways, with the fewest line changes, to ride a given station sequence.

    Args:
        graph: the map.
        costs: as for :func:`solve_route`.
        stations: origin first.

    Returns:
        Routes with distinct line assignments; none when two stations in a row are no neighbours.
    """
    if not stations or any(name not in graph.stations for name in stations):
        return ()
    cost, chains = _lines_of_path(cost_tables(graph, stations[-1], costs), stations)
    return tuple(Route(stations, chain, cost) for chain in chains)
