"""Interfaces between packages: engines, models, judges, ledgers, trainers.

Lower rows define what they need here; higher rows inject it. Nothing in this file does work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import JsonValue

from harness.records import FinishReason, Generation, Message, Record, Sampling, Usage


class Prompt(Record):
    """A rendered prompt and the seed offset that makes its sample reproducible."""

    messages: tuple[Message, ...]
    seed: int = 0
    """Combined with ``Sampling.seed``; the same pair gives the same sample on the same engine."""


class RolloutEngine(Protocol):
    """Runs a policy on prompts."""

    @property
    def policy_id(self) -> str:
        """Content id of the weights that will answer."""
        ...

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order; an engine failure is a Generation with an error."""
        ...


class ChatReply(Record):
    """One model reply as the ledger keeps it."""

    text: str
    model: str
    usage: Usage = Usage()
    finish_reason: FinishReason = "stop"
    """``length``: cut at the token limit."""
    latency_s: float = 0.0
    retries: int = 0
    faults: tuple[str, ...] = ()
    """Failure kinds met on the way, in order (``rate_limited``, ``schema_echo``…)."""


class ChatModel(Protocol):
    """A language model behind one string."""

    async def complete(self, messages: Sequence[Message], *, purpose: str, replicate: int = 0) -> ChatReply:
        """Answer one conversation; ``purpose`` and ``replicate`` keep equal calls apart in the ledger."""
        ...


class Judge(Protocol):
    """Scores one response on named criteria."""

    async def grade(self, response: str, criteria: Sequence[str], *, purpose: str, replicate: int) -> list[int]:
        """One 0 or 1 per criterion, in order."""
        ...


RequestT = TypeVar("RequestT", contravariant=True)
ResultT = TypeVar("ResultT", covariant=True)


class PolicyTrainer(Protocol[RequestT, ResultT]):
    """Trains a policy between two checkpoints; equal requests give equal weights, however often interrupted."""

    def train(self, request: RequestT, ledger: WorkLedger, progress: Callable[[Any], None] | None = None) -> ResultT:
        """Train a block, or finish or return one begun before; ``progress`` gets a record per rollout step."""
        ...


class WorkLedger(Protocol):
    """The record of paid or costly work by key; see :func:`harness.records.content_id`."""

    def find(self, key: str) -> JsonValue | None:
        """The recorded result, or None when this work was never finished."""
        ...

    def record(self, key: str, *, kind: str, result: JsonValue) -> JsonValue:
        """Store a result once; a second call with the same key returns the first result."""
        ...
