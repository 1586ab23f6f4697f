"""Reducers and small typed values that graph states are made of; all JSON."""

from __future__ import annotations

from typing import TypedDict, TypeVar

T = TypeVar("T")


class PairScore(TypedDict):
    """A deployed pair and its val score."""

    pair_id: str
    checkpoint_id: str
    harness_id: str
    val_score: float
    phase: str
    round: int
    """Finished rounds when it was deployed; 0 is the first pair."""


class Trial(TypedDict):
    """A proposal and the gate's word on it, by their ledger keys."""

    round: int
    proposal_key: str
    decision_key: str


class Spent(TypedDict):
    """What the run's work costs, counting reused work as if it ran here."""

    tokens: int
    cost_usd: float
    evaluations: int
    """Attempts scored on val and test."""


NOTHING_SPENT: Spent = {"tokens": 0, "cost_usd": 0.0, "evaluations": 0}


def latest(old: T, new: T) -> T:
    """The newest write wins."""
    return new


def add_spent(old: Spent | None, new: Spent | None) -> Spent:
    """Sums; a missing side counts nothing."""
    a, b = old or NOTHING_SPENT, new or NOTHING_SPENT
    return {
        "tokens": a["tokens"] + b["tokens"],
        "cost_usd": a["cost_usd"] + b["cost_usd"],
        "evaluations": a["evaluations"] + b["evaluations"],
    }


def merge_pairs(old: list[PairScore] | None, new: list[PairScore] | None) -> list[PairScore]:
    """Append pairs that are not there yet; a pair keeps its first score and place."""
    pairs = list(old or [])
    known = {pair["pair_id"] for pair in pairs}
    for pair in new or []:
        if pair["pair_id"] not in known:
            pairs.append(pair)
            known.add(pair["pair_id"])
    return pairs


def merge_trials(old: list[Trial] | None, new: list[Trial] | None) -> list[Trial]:
    """Append; the same trial twice is kept once."""
    trials = list(old or [])
    return trials + [trial for trial in new or [] if trial not in trials]
