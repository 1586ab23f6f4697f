"""Why a route answer is wrong, in machine-readable terms.

Fault kinds, in the order in which they are reported (the first is the main one): ``truncation``,
``format_fault``, ``reversed_route``, ``wrong_endpoint``, ``missing_edge``, ``wrong_transfer_mark``,
``diverging_station``. An attempt without any has the one diagnosis ``none``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import JsonValue

from evals.suites.route import (
    Parsed,
    normalise,
    prefix_length,
    score_route,
    split_route,
    without_mark,
)
from harness.records import Diagnosis, FinishReason

FAULTS = (
    "truncation", "format_fault", "reversed_route", "wrong_endpoint", "missing_edge", "wrong_transfer_mark",
    "diverging_station",
)  # fmt: skip

Links = Callable[[str, str], bool]
"""Whether two normalised station names are neighbours."""


def _closest(pred: Sequence[str], golds: Sequence[str]) -> tuple[str, ...]:
    """The gold route that shares the longest prefix with the answer; the first of equals."""
    routes = [split_route(gold) for gold in golds]
    return max(routes, key=lambda gold: prefix_length(pred, gold, str.__eq__))


def _endpoint(bare: Sequence[str], gold: Sequence[str]) -> list[Diagnosis]:
    wrong: dict[str, JsonValue] = {}
    for name, index in (("origin", 0), ("destination", -1)):
        if bare[index] != gold[index]:
            wrong[name] = {"got": bare[index], "expected": gold[index]}
    return [Diagnosis(fault="wrong_endpoint", detail=wrong)] if wrong else []


def _missing_edge(bare: Sequence[str], is_link: Links) -> list[Diagnosis]:
    gaps: list[JsonValue] = [
        {"position": index, "from": one, "to": two}
        for index, (one, two) in enumerate(zip(bare, bare[1:], strict=False))
        if not is_link(one, two)
    ]
    return [Diagnosis(fault="missing_edge", detail={"edges": gaps})] if gaps else []


def _marks(pred: Sequence[str], gold: Sequence[str]) -> list[Diagnosis]:
    """Compare marks at the stations that both routes hold."""
    marked = {station for station in map(without_mark, gold) if station + "(transfer)" in gold}
    shared = set(map(without_mark, pred)) & set(map(without_mark, gold))
    got = {without_mark(station) for station in pred if station != without_mark(station)}
    forgotten: list[JsonValue] = [*sorted((marked - got) & shared)]
    extra: list[JsonValue] = [*sorted(got - marked)]
    if not forgotten and not extra:
        return []
    return [Diagnosis(fault="wrong_transfer_mark", detail={"forgotten": forgotten, "extra": extra})]


def _diverging(pred: Sequence[str], gold: Sequence[str]) -> Diagnosis:
    position = prefix_length(pred, gold, str.__eq__)
    detail: dict[str, JsonValue] = {
        "position": position,
        "got": pred[position] if position < len(pred) else None,
        "expected": gold[position] if position < len(gold) else None,
        "matched": position,
        "gold_stations": len(gold),
    }
    return Diagnosis(fault="diverging_station", detail=detail)


def _route_faults(answer: str, golds: Sequence[str], is_link: Links | None) -> list[Diagnosis]:
    pred = split_route(answer)
    gold = _closest(pred, golds)
    bare = [without_mark(station) for station in pred]
    bare_gold = [without_mark(station) for station in gold]
    faults: list[Diagnosis] = []
    if len(bare_gold) > 1 and bare == bare_gold[::-1]:
        faults.append(Diagnosis(fault="reversed_route"))
    else:
        faults += _endpoint(bare, bare_gold)
    if is_link is not None:
        faults += _missing_edge(bare, is_link)
    return [*faults, *_marks(pred, gold), _diverging(pred, gold)]


def diagnose_route(
    parsed: Parsed, golds: Sequence[str], *, finish_reason: FinishReason, is_link: Links | None = None
) -> tuple[Diagnosis, ...]:
    """Name every fault of an attempt, the main one first.

    Args:
        parsed: the completion, taken apart.
        golds: all gold routes.
        finish_reason: ``length`` means that generation was cut off.
        is_link: adjacency over normalised names; None where the map is only an image.

    Returns:
        At least one diagnosis; ``none`` when nothing is wrong.
    """
    faults: list[Diagnosis] = []
    if finish_reason == "length":
        faults.append(Diagnosis(fault="truncation"))
    if not parsed.is_strict:
        detail: dict[str, JsonValue] = {"reason": parsed.reason, "has_answer": parsed.answer is not None}
        faults.append(Diagnosis(fault="format_fault", detail=detail))
    if parsed.answer is not None and not score_route(parsed.answer, list(golds)).exact:
        faults += _route_faults(parsed.answer, golds, is_link)
    return tuple(faults) or (Diagnosis(fault="none"),)


def normalised_links(links: Callable[[str, str], bool], stations: Sequence[str]) -> Links:
    """Adjacency over normalised names, from adjacency over the map's own names.

    Raises:
        ValueError: two stations of the map have the same normalised name.
    """
    names = {normalise(station): station for station in stations}
    if len(names) != len(set(stations)):
        raise ValueError(
            f"indexing a map failed; got {len(set(stations))} stations but {len(names)} distinct names after "
            "trim, lower-case and removal of spaces and underscores; expected them to stay distinct; rename one"
        )
    return lambda one, two: one in names and two in names and links(names[one], names[two])
