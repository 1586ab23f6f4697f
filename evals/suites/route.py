"""Route answers: strict scoring, parsing of the output contract, and the public scorer's columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from harness.records import Record

TRANSFER_MARK = "(transfer)"
PUBLIC_SIMILARITY = 0.5
PUBLISHED_FUZZY_THRESHOLD = 0.90
"""Station similarity of the published preset; nothing else uses a fuzzy match."""

_TAG = re.compile(r"</?(?:reasoning|response|think)>")
_STRICT = re.compile(r"<reasoning>(.*?)</reasoning>\s*<response>(.*?)</response>", re.DOTALL)


class RouteScore(Record):
    """How much of a route is right."""

    partial: float
    """Matching prefix from the origin, as a share of the gold's hops, 0..1."""
    exact: float
    """1.0 when every station and the length agree, else 0.0."""


@dataclass(frozen=True)
class Parsed:
    """A completion taken apart."""

    reasoning: str
    answer: str | None
    """The route text; None when no answer can be found at all."""
    is_strict: bool
    """The completion meets the output contract to the letter."""
    reason: str = ""
    """Why it does not."""


def normalise(station: str) -> str:
    """Form in which two station names are compared: trimmed, lower-case, no spaces or underscores."""
    return station.strip().lower().replace(" ", "").replace("_", "")


def split_route(route: str) -> tuple[str, ...]:
    """Normalised stations of a route; a transfer mark stays part of its station."""
    return tuple(normalise(part) for part in route.split("-"))


def without_mark(station: str) -> str:
    """A normalised station without its transfer mark."""
    return station.replace(TRANSFER_MARK, "")


def prefix_length(pred: Sequence[str], gold: Sequence[str], same: Callable[[str, str], bool]) -> int:
    """Number of leading positions at which ``same`` holds."""
    count = 0
    for one, two in zip(pred, gold, strict=False):
        if not same(one, two):
            break
        count += 1
    return count


def _golds(gold: str | Sequence[str]) -> list[str]:
    golds = [gold] if isinstance(gold, str) else list(gold)
    if not golds or not all(route.strip() for route in golds):
        raise ValueError(f"scoring a route failed; got gold {golds!r}; expected at least one route, none blank")
    return golds


def _score_one(pred: Sequence[str], gold: Sequence[str], same: Callable[[str, str], bool]) -> RouteScore:
    matched = prefix_length(pred, gold, same)
    exact = matched == len(gold) == len(pred)
    if exact:
        return RouteScore(partial=1.0, exact=1.0)
    if len(gold) == 1:
        return RouteScore(partial=0.0, exact=0.0)
    return RouteScore(partial=max(matched - 1, 0) / (len(gold) - 1), exact=0.0)


def score_route(pred: str, gold: str | list[str], *, fuzzy_threshold: float | None = None) -> RouteScore:
    """Score a route against one gold route or several equally good ones.

    Args:
        pred: stations joined by ``-``.
        gold: one route or several; exact is any, partial is the largest.
        fuzzy_threshold: None for the strict match; a similarity ratio makes station names match
            loosely (an option of the published preset alone).

    Raises:
        ValueError: there is no gold route.

    Source: METHODS §2, Reward, route tasks; differs: nothing.
    """

    def same(one: str, two: str) -> bool:
        if fuzzy_threshold is None or one == two:
            return one == two
        return SequenceMatcher(None, one, two).ratio() >= fuzzy_threshold

    stations = split_route(pred)
    scores = [_score_one(stations, split_route(route), same) for route in _golds(gold)]
    return RouteScore(partial=max(s.partial for s in scores), exact=max(s.exact for s in scores))


def _public_one(pred: str, gold: str) -> RouteScore:
    def same(one: str, two: str) -> bool:
        return SequenceMatcher(None, one.strip().lower(), two.strip().lower()).ratio() >= PUBLIC_SIMILARITY

    stations, reference = pred.split("-"), gold.split("-")
    matched = prefix_length(stations, reference, same)
    if TRANSFER_MARK in pred or TRANSFER_MARK in gold:
        exact = pred == gold
    else:
        exact = matched == len(reference) == len(stations)
    return RouteScore(partial=matched / len(reference), exact=float(exact))


def score_route_publicly(pred: str, gold: str | list[str]) -> RouteScore:
    """Score as the benchmark's public scorer does; for comparison columns, never for reward.

    Two names are the same from a similarity ratio of 0.5; with a transfer mark on either side the
    whole strings must be equal; the partial score is prefix/M.

    Source: METHODS §5, last paragraphs.
    """
    scores = [_public_one(pred, route) for route in _golds(gold)]
    return RouteScore(partial=max(s.partial for s in scores), exact=max(s.exact for s in scores))


def _lenient_answer(text: str) -> str | None:
    """The last response, with a tag of the contract missing at one side at most."""
    body = text.rsplit("</think>", 1)[-1]
    if "<response>" in body:
        answer = body.rsplit("<response>", 1)[1].split("</response>", 1)[0]
    elif "</reasoning>" in body:
        answer = body.rsplit("</reasoning>", 1)[1].split("</response>", 1)[0]
    else:
        return None
    answer = _TAG.split(answer, maxsplit=1)[0].strip()
    return answer or None


def _format_reason(text: str) -> str:
    """The first rule of the output contract that ``text`` breaks, in words."""
    if "<think>" in text or "</think>" in text:
        return "a think tag"
    for tag in ("<reasoning>", "</reasoning>", "<response>", "</response>"):
        if text.count(tag) != 1:
            return f"{text.count(tag)} times {tag}"
    return "text outside the tags, tags out of order, or an empty section"


def parse_completion(text: str) -> Parsed:
    """Take a completion apart: strict contract first, then whatever answer can still be found.

    The strict form is exactly ``<reasoning>…</reasoning><response>…</response>``, both non-blank,
    white space between them at most, nothing outside, none of the tags inside, no think tag.
    """
    match = _STRICT.fullmatch(text)
    if match:
        reasoning, answer = match.groups()
        if reasoning.strip() and answer.strip() and not _TAG.search(reasoning) and not _TAG.search(answer):
            return Parsed(reasoning=reasoning, answer=answer.strip(), is_strict=True)
    head = text.split("</reasoning>", 1)[0].rsplit("<reasoning>", 1)[-1] if "reasoning>" in text else ""
    return Parsed(reasoning=head, answer=_lenient_answer(text), is_strict=False, reason=_format_reason(text))
