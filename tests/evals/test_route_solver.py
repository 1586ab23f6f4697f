"""The exact solver: worked by hand, and against an enumeration that shares no code with it."""

import itertools
import random

import pytest

from evals.suites.metro_network import NetworkShape, add_crossings, draw_attributes, draw_lines, route_graph
from evals.suites.route_cost import Weights, metro_costs, stop_costs, travel_costs
from evals.suites.route_graph import Attributes, RouteGraph, Station, Track
from evals.suites.route_solver import Limits, SearchLimit, price_path, solve_route, solve_vertex_only


def graph(tracks, **stations):
    names = {end for one, two, *_ in tracks for end in (one, two)}
    return RouteGraph(
        {name: stations.get(name, Station()) for name in sorted(names)},
        tuple(
            Track(one, two, tuple(lines.split(",")), rest[0] if rest else Attributes())
            for one, two, lines, *rest in tracks
        ),
    )


def test_fewest_stations_finds_every_tie():
    square = graph(
        [
            ("A", "B", "r"),
            ("B", "D", "r"),
            ("A", "C", "b"),
            ("C", "D", "b"),
            ("A", "E", "g"),
            ("E", "F", "g"),
            ("F", "D", "g"),
        ]
    )
    solution = solve_route(square, "A", "D", stop_costs())
    assert set(solution.texts) == {"A-B-D", "A-C-D"}
    assert solution.cost == 2
    assert solution.is_complete and not solution.is_unique


def test_the_mark_stands_behind_the_station_of_the_change():
    line = graph([("A", "B", "r"), ("B", "C", "r"), ("C", "D", "b")])
    assert solve_route(line, "A", "D", stop_costs()).texts == ("A-B-C(transfer)-D",)


def test_parallel_lines_are_ridden_without_needless_changes():
    # r serves A-B-C, b serves B-C-D: changing at B or at C needs one change, both are gold
    shared = graph([("A", "B", "r"), ("B", "C", "r,b"), ("C", "D", "b")])
    assert set(solve_route(shared, "A", "D", stop_costs()).texts) == {"A-B(transfer)-C-D", "A-B-C(transfer)-D"}
    assert solve_route(shared, "A", "C", stop_costs()).texts == ("A-B-C",)


def test_metro_cost_counts_edges_stations_but_the_goal_and_transfers():
    at = Attributes(time=3, price=1.5, comfort=0.5, reliability=0)
    line = graph([("A", "B", "r", at), ("B", "C", "b", at)], A=Station(at), B=Station(at, 6), C=Station(at))
    # phi = 0.4*3/3 + 0.3*1.5/1.5 + 0.2*(1-0.5) + 0 (reliability 0 adds nothing) = 0.8
    # two edges, A and B: 4 * 0.8 = 3.2; change at B: 0.4 * 6/3 = 0.8
    solution = solve_route(line, "A", "C", metro_costs(Weights(0.4, 0.3, 0.2, 0.1)))
    assert solution.cost == pytest.approx(4.0)
    assert solution.texts == ("A-B(transfer)-C",)


def test_a_long_transfer_makes_the_longer_ride_better():
    minute = Attributes(time=1)
    slow = graph(
        [("A", "B", "r", minute), ("B", "D", "b", minute), ("B", "C", "r", minute), ("C", "D", "r", minute)],
        B=Station(transfer_time=4),
    )
    # by B: 2/3 + 4/3 = 2; staying on r by C: 3/3 = 1
    assert solve_route(slow, "A", "D", metro_costs(Weights(1, 0, 0, 0))).texts == ("A-B-C-D",)


def test_a_loop_that_dodges_a_transfer_charge_is_no_simple_path():
    minute = Attributes(time=1)
    # Leaving B by r to C, changing there for free to b and coming back to B would avoid B's 30 minutes,
    # but visits B twice.
    dodge = graph(
        [("A", "B", "r", minute), ("B", "C", "r", minute), ("C", "B", "b", minute), ("B", "D", "b", minute)],
        B=Station(transfer_time=30),
    )
    solution = solve_route(dodge, "A", "D", metro_costs(Weights(1, 0, 0, 0)))
    assert solution.texts == ("A-B(transfer)-D",)
    assert solution.cost == pytest.approx(2 / 3 + 10)


def test_travel_counts_the_goal_and_frees_spots_that_are_only_passed():
    passed, ticket = Station(Attributes(time=0, price=100)), Station(Attributes(time=0, price=100))
    path = graph(
        [("A", "B", ""), ("B", "C", "")], A=Station(Attributes(time=90, price=20, comfort=2.5)), B=passed, C=ticket
    )
    # weights 0.4 time, 0.5 price, 0.1 comfort. A: 0.4*90/180 + 0.5*20/200 + 0.1*(1-2.5/5) = 0.2+0.05+0.05 = 0.3
    # B: time 0 on the way, so price 0; C: the goal pays 0.5*100/200 = 0.25
    solution = solve_route(path, "A", "C", travel_costs(Weights(0.4, 0.5, 0.1, 0)))
    assert solution.cost == pytest.approx(0.55)


def test_vertex_only_scores_means_so_a_longer_route_can_win():
    def stop(comfort):
        return Station(Attributes(time=0.3, comfort=comfort))

    two_ways = graph(
        [("A", "B", "r"), ("B", "E", "r"), ("A", "C", "r"), ("C", "D", "r"), ("D", "E", "r")],
        A=stop(0.2),
        B=stop(0.2),
        C=stop(1.0),
        D=stop(1.0),
    )
    # by B: T = 0.6/3 = 0.2, mean comfort 0.2: 0.1*0.2 + 0.9*0.8 = 0.74
    # by C, D: T = 0.9/3 = 0.3, mean (0.2+1+1)/3 = 0.7333: 0.1*0.3 + 0.9*0.26667 = 0.27
    solution = solve_vertex_only(two_ways, "A", "E", Weights(0.1, 0, 0.9, 0))
    assert solution.texts == ("A-C-D-E",)
    assert solution.cost == pytest.approx(0.27)


def test_an_end_that_is_not_on_the_map_is_an_error():
    with pytest.raises(ValueError, match="not on the map"):
        solve_route(graph([("A", "B", "r")]), "A", "Z", stop_costs())


def test_an_unreachable_goal_gives_no_route():
    assert solve_route(graph([("A", "B", "r"), ("C", "D", "r")]), "A", "D", stop_costs()).routes == ()


def test_a_negative_cost_is_refused():
    bad = graph([("A", "B", "r", Attributes(comfort=2))])
    with pytest.raises(ValueError, match="negative cost"):
        solve_route(bad, "A", "B", metro_costs(Weights(0, 0, 1, 0)))


def test_a_search_limit_is_said_not_hidden():
    square = graph([("A", "B", "r"), ("B", "D", "r"), ("A", "C", "b"), ("C", "D", "b")])
    # three labels: A, then A-B, then A-B-D; A-C is left
    cut = solve_route(square, "A", "D", stop_costs(), limits=Limits(labels=3))
    assert not cut.is_complete
    with pytest.raises(SearchLimit):
        solve_route(square, "A", "D", stop_costs(), limits=Limits(labels=1))


def test_price_path_refuses_a_gap():
    assert price_path(graph([("A", "B", "r"), ("B", "C", "r")]), stop_costs(), ("A", "C")) == ()


def all_rides(tracks, start, goal):
    """Every simple station path with every choice of lines: (stations, tracks)."""

    def walk(path, used):
        if path[-1] == goal:
            yield path, used
            return
        for one, two, line, at in tracks:
            for here, there in ((one, two), (two, one)):
                if here == path[-1] and there not in path:
                    yield from walk([*path, there], [*used, (line, at)])

    yield from walk([start], [])


def random_map(seed):
    rng = random.Random(seed)
    lines = draw_lines(NetworkShape(rng.choice((2, 3)), 3, 4), [f"S{n}" for n in range(20)], rng)
    return draw_attributes(add_crossings(lines, 2, rng), rng), rng


def brute_force(network, start, goal, weights, mode):
    """Cheapest cost and its answer strings; formulas of METHODS §5 written out a second time."""
    tracks = [(e.station_1, e.station_2, e.line, e) for e in network.edges]
    best = {}
    for stations, used in all_rides(tracks, start, goal):
        at = [network.vertices[name] for name in stations]
        changes = [i for i in range(1, len(used)) if used[i - 1][0] != used[i][0]]
        transfer = sum(at[i].transfer_time for i in changes) / 3
        if mode == "stops":
            cost = len(stations)
        elif mode == "metro":
            items = [edge for _, edge in used] + at[:-1]
            cost = weights.time * transfer + sum(
                weights.time * x.time / 3
                + weights.price * x.price / 1.5
                + (weights.comfort * (1 - x.comfort) if x.comfort else 0)
                + (weights.reliability * (1 - x.reliability) if x.reliability else 0)
                for x in items
            )
        else:
            counted = at[:-1]
            cost = (
                weights.time * (sum(x.time for x in counted) / 3 + transfer)
                + weights.price * sum(x.price for x in counted) / 1.5
                + weights.comfort * (1 - sum(x.comfort for x in counted) / len(counted))
                + weights.reliability * (1 - sum(x.reliability for x in counted) / len(counted))
            )
        text = "-".join(s + "(transfer)" * (i in changes) for i, s in enumerate(stations))
        best.setdefault(tuple(stations), []).append((cost, len(changes), text))
    low = min(cost for rides in best.values() for cost, _, _ in rides)
    texts = set()
    for rides in best.values():
        cheap = [(changes, text) for cost, changes, text in rides if cost <= low + 1e-9]
        texts |= {text for changes, text in cheap if changes == min(c for c, _ in cheap)}
    return low, texts


@pytest.mark.parametrize("mode", ["stops", "metro", "vertex_only"])
@pytest.mark.parametrize("seed", range(25))
def test_solver_equals_enumeration_on_random_maps(mode, seed):
    network, rng = random_map(seed)
    weights = Weights(*(rng.choice((0.0, 0.1, 0.4, 1.0)) for _ in range(3)), 0.2)
    for start, goal in [rng.sample(network.stations(), 2) for _ in range(4)]:
        if mode == "vertex_only":
            solution = solve_vertex_only(route_graph(network), start, goal, weights)
        else:
            costs = stop_costs() if mode == "stops" else metro_costs(weights)
            solution = solve_route(route_graph(network), start, goal, costs)
        low, texts = brute_force(network, start, goal, weights, mode)
        assert solution.is_complete
        # the enumeration counts stations, the solver hops
        assert solution.cost == pytest.approx(low - (mode == "stops"))
        assert set(solution.texts) == texts


def test_random_maps_do_hold_ties_and_several_ways():
    """Guards the property test above: its maps are not all trees."""
    several = 0
    for seed in range(25):
        network, _ = random_map(seed)
        tracks = [(e.station_1, e.station_2, e.line, e) for e in network.edges]
        pairs = itertools.combinations(network.stations()[:4], 2)
        several += any(len({tuple(path) for path, _ in all_rides(tracks, *pair)}) > 1 for pair in pairs)
    assert several >= 5
