"""How many requests a provider sees at once, and how long a caller waits after it said no."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from agents.llm.config import RetryConfig

_Gates = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]]


def backoff_s(retry: RetryConfig, failures: int, draw: random.Random) -> float:
    """Seconds to wait after the ``failures``-th failure: full jitter below an exponential ceiling.

    Args:
        retry: base and cap in seconds.
        failures: failures so far, from 1.
        draw: source of the jitter.
    """
    ceiling = min(retry.backoff_cap_s, retry.backoff_base_s * 2.0 ** (failures - 1))
    return draw.uniform(0.0, ceiling)


@dataclass
class Throttle:
    """Shared by all roles: one gate per provider."""

    draw: random.Random = field(default_factory=random.Random)
    """Jitter only decides when, never what; it is not part of a run's identity."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    _limits: dict[str, int] = field(default_factory=dict, init=False)
    _open_at: dict[str, float] = field(default_factory=dict, init=False)
    _gates: _Gates = field(default_factory=WeakKeyDictionary, init=False)

    def limit(self, provider: str, concurrency: int) -> None:
        """Let at most ``concurrency`` requests through; of several values the smallest holds."""
        known = self._limits.get(provider)
        self._limits[provider] = concurrency if known is None else min(known, concurrency)

    def pause(self, provider: str, seconds: float) -> None:
        """Send the provider nothing for so many seconds: it asked for it (Retry-After)."""
        self._open_at[provider] = max(self._open_at.get(provider, 0.0), self.clock() + seconds)

    @asynccontextmanager
    async def turn(self, provider: str) -> AsyncIterator[None]:
        """Wait for a free place and for the end of a pause, and hold the place."""
        async with self._gate(provider):
            while (left := self._open_at.get(provider, 0.0) - self.clock()) > 0:
                await self.sleep(left)
            yield

    def _gate(self, provider: str) -> asyncio.Semaphore:
        # A semaphore belongs to one event loop; graphs may run several, one after the other.
        gates = self._gates.setdefault(asyncio.get_running_loop(), {})
        places = self._limits[provider]
        return gates.setdefault((provider, places), asyncio.Semaphore(places))
