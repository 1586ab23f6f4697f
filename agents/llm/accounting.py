"""Tokens and money per role, hard limits, and totals that survive a restart.

Every paid reply leaves one numbered entry in the work ledger before the reply itself is recorded; opening the accounts
reads the entries back. A kill between the two writes counts the money and repeats the call, never the reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from agents.llm.config import SpendLimit
from agents.llm.failure import BudgetExhausted
from harness.protocols import WorkLedger
from harness.records import Record, Usage

RUN = "run"
"""Owner of the limit over all roles."""


class SpendEntry(Record):
    """What one paid reply cost whom."""

    role: str
    model: str
    call_id: str
    usage: Usage
    is_unpriced: bool = False


class Totals(Record):
    """Sums over the paid replies of one owner."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    """Calls whose price is unknown; they count 0 in ``cost_usd``."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, entry: SpendEntry) -> Totals:
        """The totals with one more paid reply."""
        return Totals(
            calls=self.calls + 1,
            prompt_tokens=self.prompt_tokens + entry.usage.prompt_tokens,
            completion_tokens=self.completion_tokens + entry.usage.completion_tokens,
            cost_usd=self.cost_usd + entry.usage.cost_usd,
            unpriced_calls=self.unpriced_calls + entry.is_unpriced,
        )


@dataclass
class _Held:
    """Upper estimates of the calls in flight."""

    tokens: int = 0
    cost_usd: float = 0.0


@dataclass
class Accounts:
    """The spending of one run: totals per role and for the run, checked before every call."""

    ledger: WorkLedger | None = None
    """Where entries are kept; None keeps them for this process only."""
    limits: Mapping[str, SpendLimit] = field(default_factory=dict)
    """Hard stops by role; the key ``run`` bounds all roles together."""
    _totals: dict[str, Totals] = field(default_factory=dict, init=False)
    _held: dict[str, _Held] = field(default_factory=dict, init=False)
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.limits = dict(self.limits)
        while self.ledger is not None and (stored := self.ledger.find(_entry_key(self._next))) is not None:
            self._count(SpendEntry.model_validate(stored))
            self._next += 1

    def limit(self, owner: str, limit: SpendLimit) -> None:
        """Set the hard stop of a role, or of the whole ``run``."""
        self.limits = {**self.limits, owner: limit}

    def has_money_limit(self, role: str) -> bool:
        """Whether a limit in US dollars binds this role."""
        limits = [self.limits[owner] for owner in (role, RUN) if owner in self.limits]
        return any(limit.max_cost_usd is not None for limit in limits)

    def totals(self, owner: str = RUN) -> Totals:
        """What a role, or the whole ``run``, has paid so far, earlier sittings included."""
        return self._totals.get(owner, Totals())

    def by_role(self) -> dict[str, Totals]:
        """Totals of every role that has paid something."""
        return {role: totals for role, totals in sorted(self._totals.items()) if role != RUN}

    @contextmanager
    def reserve(self, role: str, *, tokens: int, cost_usd: float) -> Iterator[None]:
        """Hold an upper estimate while a call is in flight, so that concurrent calls cannot pass a limit together.

        Args:
            role: who pays.
            tokens: most tokens that the call may use, prompt and completion.
            cost_usd: most that it may cost; 0 for a model without a price.

        Raises:
            BudgetExhausted: spent + in flight + this call is above a limit of the role or of the run.
        """
        for owner in (role, RUN):
            self._check(owner, tokens, cost_usd)
        for owner in (role, RUN):
            held = self._held.setdefault(owner, _Held())
            held.tokens += tokens
            held.cost_usd += cost_usd
        try:
            yield
        finally:
            for owner in (role, RUN):
                self._held[owner].tokens -= tokens
                self._held[owner].cost_usd -= cost_usd

    def pay(self, entry: SpendEntry) -> None:
        """Count one paid reply and keep its entry."""
        result = entry.model_dump(mode="json")
        while self.ledger is not None:
            kept = SpendEntry.model_validate(self.ledger.record(_entry_key(self._next), kind="spend", result=result))
            if (kept.call_id, kept.usage) == (entry.call_id, entry.usage):
                break
            self._next += 1  # another writer's entry: take the next number
        self._next += 1
        self._count(entry)

    def _count(self, entry: SpendEntry) -> None:
        for owner in (entry.role, RUN):
            self._totals[owner] = self.totals(owner).plus(entry)

    def _check(self, owner: str, tokens: int, cost_usd: float) -> None:
        limit, held, totals = self.limits.get(owner), self._held.get(owner, _Held()), self.totals(owner)
        if limit is None:
            return
        amounts = (
            ("tokens", totals.tokens + held.tokens, tokens, limit.max_tokens),
            ("USD", totals.cost_usd + held.cost_usd, cost_usd, limit.max_cost_usd),
        )
        for unit, spent, wanted, most in amounts:
            if most is not None and spent + wanted > most:
                raise BudgetExhausted(owner, unit, spent=spent, wanted=wanted, limit=most)


def _entry_key(number: int) -> str:
    return f"spend-{number:08d}"
