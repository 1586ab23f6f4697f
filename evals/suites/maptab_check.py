"""The exact solver over MapTab gold: agreement per query, with the reason of every disagreement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from evals.config import MapTabDomain, MapTabVariant
from evals.suites.base import Agreement
from evals.suites.maptab_layout import (
    DOMAINS,
    SPLITS,
    VARIANTS,
    VERTEX_ONLY,
    MapTabQuery,
    find_table,
    read_graph,
    read_queries,
    station_on_map,
)
from evals.suites.route import TRANSFER_MARK, split_route, without_mark
from evals.suites.route_cost import Costs, metro_costs, stop_costs, travel_costs, vertex_only_costs
from evals.suites.route_graph import RouteGraph
from evals.suites.route_solver import TOLERANCE, SearchLimit, Solution, price_path, solve_route, solve_vertex_only
from harness.errors import UserError
from harness.records import Record, Split


class QueryCheck(Record):
    """What the solver says of one gold answer."""

    query_id: str
    agreement: Agreement
    reason: str = ""
    totals_agree: bool | None = None
    """Whether the stated totals equal those of the gold route; None where none are stated or computable."""


class VariantAgreement(Record):
    """Agreement over one query file."""

    domain: MapTabDomain
    variant: MapTabVariant
    split: Split
    queries: int
    agrees: int
    disagrees: int
    unverifiable: int
    totals_checked: int
    totals_agree: int
    findings: tuple[QueryCheck, ...]
    """Every query that does not agree."""


class MissingTable(LookupError):  # noqa: N818 - the name says what is wrong
    """A table that the solver needs is not there."""


@lru_cache(maxsize=64)
def _graph(edge_path: Path, vertex_path: Path | None) -> RouteGraph:
    return read_graph(edge_path, vertex_path)


def query_graph(root: Path, query: MapTabQuery) -> RouteGraph:
    """The map behind a query; ``only_vertex2`` queries take their adjacency from the hidden edge table.

    Raises:
        MissingTable: the edge table, or the vertex table of a weighted query, is absent.
    """
    edge_tab = query.edge_tab or query.vertex_tab.replace("_vertex2", "_edge").replace("_vertex", "_edge")
    paths = {"edge": find_table(root, edge_tab), "vertex": find_table(root, query.vertex_tab)}
    needed = ["edge"] + (["vertex"] if query.weights is not None else [])
    absent = [
        f"{kind} table {edge_tab if kind == 'edge' else query.vertex_tab!r}" for kind in needed if not paths[kind]
    ]
    if absent or paths["edge"] is None:
        raise MissingTable(f"absent: {', '.join(absent)}")
    return _graph(paths["edge"], paths["vertex"] if query.weights is not None else None)


def query_costs(query: MapTabQuery, hop_count: int) -> Costs:
    """What the query minimises, for routes of ``hop_count`` hops (read by ``only_vertex2`` alone)."""
    weights = query.user_weights
    if weights is None:
        return stop_costs()
    if query.variant == VERTEX_ONLY:
        return vertex_only_costs(weights, hop_count, domain=query.domain)
    return metro_costs(weights) if query.domain == "metro" else travel_costs(weights)


def solve_query(graph: RouteGraph, query: MapTabQuery) -> Solution:
    """All optimal routes of a query.

    Raises:
        ValueError: an end of the query is not on the map.
    """
    ends = [station_on_map(graph.stations, name) for name in (query.start, query.goal)]
    if ends[0] is None or ends[1] is None:
        raise ValueError(f"{query.start!r} or {query.goal!r} is not on the map")
    weights = query.user_weights
    if query.variant == VERTEX_ONLY and weights is not None:
        return solve_vertex_only(graph, ends[0], ends[1], weights, domain=query.domain)
    return solve_route(graph, ends[0], ends[1], query_costs(query, 0))


def _gold_path(graph: RouteGraph, gold: str) -> tuple[str, ...] | str:
    """The stations of a gold route in the map's spelling, or what is wrong with it."""
    names = [part.replace(TRANSFER_MARK, "").strip() for part in gold.split("-")]
    path = [station_on_map(graph.stations, name) for name in names]
    unknown = [name for name, station in zip(names, path, strict=True) if station is None]
    if unknown:
        return f"gold has stations that are not on the map: {unknown}"
    known = tuple(station for station in path if station is not None)
    gaps = [f"{one}-{two}" for one, two in zip(known, known[1:], strict=False) if not graph.is_link(one, two)]
    if gaps:
        return f"gold has hops that are not on the map: {gaps}"
    return "gold visits a station twice" if len(set(known)) < len(known) else known


def _gold_fault(graph: RouteGraph, query: MapTabQuery, gold: str, solution: Solution) -> str:
    """Why one gold route is not optimal, or an empty string."""
    path = _gold_path(graph, gold)
    if isinstance(path, str):
        return path
    ends = split_route(f"{query.start}-{query.goal}")
    if tuple(map(without_mark, split_route(f"{path[0]}-{path[-1]}"))) != ends:
        return f"gold runs from {path[0]} to {path[-1]}"
    rides = price_path(graph, query_costs(query, len(path) - 1), path)
    if rides[0].cost > solution.cost + TOLERANCE:
        return f"gold {gold!r} costs {rides[0].cost:.6f}, the optimum {solution.routes[0].text!r} {solution.cost:.6f}"
    if split_route(gold) not in {split_route(ride.text) for ride in rides}:
        return f"gold {gold!r} is marked differently from {rides[0].text!r}"
    return ""


def _list_fault(query: MapTabQuery) -> str:
    stations = tuple(len(gold.split("-")) for gold in query.routes)
    changes = tuple(gold.count(TRANSFER_MARK) for gold in query.routes)
    if stations != query.route_vertex_numbers:
        return f"route_vertex_numbers {query.route_vertex_numbers}, the gold routes have {stations}"
    if query.domain == "metro" and changes != query.transfer_vertex_numbers:
        return f"transfer_vertex_numbers {query.transfer_vertex_numbers}, the gold routes have {changes}"
    return ""


def _totals_agree(graph: RouteGraph, query: MapTabQuery) -> bool | None:
    """Compare stated totals with those of the first gold route.

    Time and price are sums over edges and counted stations (with transfer times), comfort and
    reliability means over their values that are not zero.
    """
    path = _gold_path(graph, query.routes[0])
    if not query.totals or query.weights is None or isinstance(path, str):
        return None
    ride = price_path(graph, query_costs(query, len(path) - 1), path)[0]
    counted = path if query.domain == "travel" else path[:-1]
    parts = [graph.stations[name].attributes for name in counted]
    if query.variant != VERTEX_ONLY:
        for one, two, line in zip(path, path[1:], ride.lines, strict=False):
            parts.append(next(hop.attributes for hop in graph.hops[one] if (hop.to, hop.line) == (two, line)))
    transfers = sum(graph.stations[path[index]].transfer_time for index in ride.changes)
    found = {"Total_Time": sum(at.time for at in parts) + transfers, "Total_Price": sum(at.price for at in parts)}
    for name, values in (
        ("Average_Comfort Level", [at.comfort for at in parts if at.comfort]),
        ("Average_Reliability", [at.reliability for at in parts if at.reliability]),
    ):
        found[name] = sum(values) / len(values) if values else 0.0
    return all(math.isclose(found[name], stated, abs_tol=6e-3) for name, stated in query.totals.items())


def check_query(root: Path, query: MapTabQuery) -> QueryCheck:
    """Solve one query and compare with its gold."""
    try:
        graph = query_graph(root, query)
        solution = solve_query(graph, query)
    except (MissingTable, SearchLimit) as error:
        return QueryCheck(query_id=query.query_id, agreement="unverifiable", reason=str(error))
    except (ValueError, UserError) as error:
        return QueryCheck(query_id=query.query_id, agreement="disagrees", reason=str(error))
    if not solution.routes:
        return QueryCheck(query_id=query.query_id, agreement="disagrees", reason="the goal cannot be reached")
    faults = [_list_fault(query), *(_gold_fault(graph, query, gold, solution) for gold in query.routes)]
    golds = {split_route(gold) for gold in query.routes}
    more = [text for text in solution.texts if split_route(text) not in golds]
    if more and not any(faults):
        faults.append(f"{len(more)} further optimal routes, for example {more[0]!r}")
    reason = "; ".join(fault for fault in faults if fault)
    totals = _totals_agree(graph, query)
    if not reason and not solution.is_complete:
        reason = "gold is optimal, but the search limit was hit before all ties were found"
        return QueryCheck(query_id=query.query_id, agreement="unverifiable", reason=reason, totals_agree=totals)
    return QueryCheck(
        query_id=query.query_id, agreement="disagrees" if reason else "agrees", reason=reason, totals_agree=totals
    )


def tally(checks: Sequence[QueryCheck], queries: Sequence[MapTabQuery]) -> VariantAgreement:
    """Count the checks of one query file."""
    count = {word: sum(check.agreement == word for check in checks) for word in ("agrees", "disagrees", "unverifiable")}
    first = queries[0]
    return VariantAgreement(
        domain=first.domain,
        variant=first.variant,
        split=first.split,
        queries=len(queries),
        agrees=count["agrees"],
        disagrees=count["disagrees"],
        unverifiable=count["unverifiable"],
        totals_checked=sum(check.totals_agree is not None for check in checks),
        totals_agree=sum(check.totals_agree is True for check in checks),
        findings=tuple(check for check in checks if check.agreement != "agrees"),
    )


def validate_maptab(root: str | Path) -> tuple[VariantAgreement, ...]:
    """Run the solver over every gold answer below ``root``.

    Args:
        root: folder with ``metromap/`` or ``travelmap/`` (also below ``raw/`` or ``assets/``).

    Returns:
        One row per domain, variant and split that has a query file.

    Raises:
        UserError: there is no query file at all, or a file is not in the layout.
    """
    folder = Path(root)
    rows = []
    for domain in DOMAINS:
        for variant in VARIANTS:
            for split in SPLITS:
                queries = read_queries(folder, domain, variant, split=split)
                if queries:
                    rows.append(tally([check_query(folder, query) for query in queries], queries))
    if not rows:
        raise UserError(
            "validating MapTab failed",
            got=f"no query file below {folder}",
            expected="metromap/data/test_set/metromap_shortest_path_query_<variant>_test_set.json or the like",
            do="point --root at the folder that holds metromap/ or travelmap/",
        )
    return tuple(rows)
