"""What a crew works with, and the short answers it gives to nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agents.diagnoser import Diagnoser
from agents.explorer import Explorer
from agents.gate import Gate
from agents.proposer import Proposer
from agents.selector import Selector
from agents.teacher import Teacher
from graphs.lab import Lab
from graphs.scout import Scout
from graphs.work import Work


@dataclass(frozen=True)
class Roles:
    """One object per role (METHODS §0)."""

    explorer: Explorer
    teacher: Teacher
    diagnoser: Diagnoser
    proposer: Proposer
    gate: Gate
    selector: Selector


@dataclass(frozen=True)
class Desk:
    """What a crew works with."""

    roles: Roles
    lab: Lab
    scout: Scout
    work: Work


class Proposed(NamedTuple):
    """Ledger key of a proposal, and its candidate's id or an empty text."""

    key: str
    candidate_id: str


class Judged(NamedTuple):
    """Ledger key of a decision, and its outcome."""

    key: str
    outcome: str


class Committed(NamedTuple):
    """The pair in force after a round."""

    pair_id: str
    harness_id: str
    score: float
