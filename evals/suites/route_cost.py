"""What a route costs, per family of queries.

Source: METHODS §5, optimal route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evals.suites.route_graph import Attributes, Station

Domain = Literal["metro", "travel"]


@dataclass(frozen=True)
class Weights:
    """User weights of the four objectives."""

    time: float
    price: float
    comfort: float
    reliability: float


@dataclass(frozen=True)
class Costs:
    """Additive costs of a route's parts; all must be non-negative."""

    edge: Callable[[Attributes], float]
    station: Callable[[Station, bool], float]
    """The flag says that the station is the destination."""
    change: Callable[[Station], float]


def stop_costs() -> Costs:
    """Unweighted: every hop costs one, so the cheapest route has the fewest stations."""
    return Costs(edge=lambda _: 1.0, station=lambda _, __: 0.0, change=lambda _: 0.0)


def metro_costs(weights: Weights) -> Costs:
    """Costs of the weighted metro variants: the destination's own attributes are not counted."""

    def phi(at: Attributes) -> float:
        comfort = weights.comfort * (1 - at.comfort) if at.comfort else 0.0
        reliability = weights.reliability * (1 - at.reliability) if at.reliability else 0.0
        return weights.time * at.time / 3 + weights.price * at.price / 1.5 + comfort + reliability

    return Costs(
        edge=phi,
        station=lambda station, is_goal: 0.0 if is_goal else phi(station.attributes),
        change=lambda station: weights.time * station.transfer_time / 3,
    )


def travel_costs(weights: Weights) -> Costs:
    """Costs of the weighted travel variants: every vertex counts; Time 0 on the way means Price 0."""

    def phi(at: Attributes, price: float) -> float:
        comfort = weights.comfort * (1 - at.comfort / 5) if at.comfort else 0.0
        reliability = weights.reliability * (1 - at.reliability) if at.reliability else 0.0
        return weights.time * at.time / 180 + weights.price * price / 200 + comfort + reliability

    def station_cost(station: Station, is_goal: bool) -> float:
        at = station.attributes
        return phi(at, 0.0 if at.time == 0 and not is_goal else at.price)

    return Costs(edge=lambda at: phi(at, at.price), station=station_cost, change=lambda _: 0.0)


def vertex_only_costs(weights: Weights, hop_count: int, *, domain: Domain = "metro") -> Costs:
    """Costs of ``only_vertex2`` routes of ``hop_count`` hops, whose score holds means.

    Score = w1*T + w2*Pr + w3*Co + w4*Re. Metro: T = summed times/3 + transfers/3, Pr = summed prices/1.5,
    Co and Re one minus the means over start and intermediate stations. Travel: the same with the scales
    of the travel maps (180, 200, comfort/5) over all vertices, Price 0 where Time is 0 on the way.
    """
    is_travel = domain == "travel"
    count = max(hop_count + 1 if is_travel else hop_count, 1)
    time_scale, price_scale, comfort_scale = (180, 200, 5) if is_travel else (3, 1.5, 1)

    def station_cost(station: Station, is_goal: bool) -> float:
        at = station.attributes
        if is_goal and not is_travel:
            return 0.0
        price = 0.0 if is_travel and at.time == 0 and not is_goal else at.price
        means = weights.comfort * (1 - at.comfort / comfort_scale) + weights.reliability * (1 - at.reliability)
        return weights.time * at.time / time_scale + weights.price * price / price_scale + means / count

    return Costs(
        edge=lambda _: 0.0,
        station=station_cost,
        change=lambda station: weights.time * station.transfer_time / 3,
    )
