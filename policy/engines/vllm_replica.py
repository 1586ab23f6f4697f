"""Spread requests over replicas of one server: by outstanding work, away from those that fail.

One dispatcher per call starts requests and reads results; a replica is opened anew with every call. Faults:

* no answer in time: the replica gets no more work in this call;
* 429 and 5xx: it pauses, as long as ``Retry-After`` says; a longer pause than the time limit closes it;
* connection lost, a broken answer, 5xx: three in a row, each begun after the one before, close it;
* 404 and 401: it does not serve these weights, or not to us, and is closed;
* any other 4xx: the request itself is wrong, so it is not sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from harness.records import Generation
from policy.config_engine import VllmServerConfig
from policy.engines.vllm_wire import BadAnswer, Dialect, Question

if TYPE_CHECKING:
    import httpx

MAX_FAULTS_IN_A_ROW = 3
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0


class RequestRefused(Exception):  # noqa: N818 - caught one frame up and named there
    """The request is wrong in itself; no replica would take it."""


class ReplicaFault(Exception):  # noqa: N818 - caught one frame up and named there
    """A replica did not answer; another may."""

    def __init__(self, said: str, *, closes: bool = False, pause_s: float | None = None) -> None:
        super().__init__(said)
        self.closes = closes
        self.pause_s = pause_s


@dataclass
class Replica:
    """One server, as this call has come to know it."""

    url: str
    outstanding: int = 0
    closed: str = ""
    """Why it gets no more work; empty while it is open."""
    free_at: float = 0.0
    faults_in_row: int = 0
    fault_at: float = 0.0

    def note_fault(self, fault: ReplicaFault, *, started: float, timeout_s: float) -> None:
        """Pause or close the replica."""
        now = time.monotonic()
        if started >= self.fault_at:  # of many requests that one break has cost, the first counts
            self.faults_in_row += 1
            self.fault_at = now
        asked_s = fault.pause_s
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self.faults_in_row - 1)) if asked_s is None else asked_s
        self.free_at = max(self.free_at, now + pause_s)
        is_worn_out = asked_s is None and self.faults_in_row >= MAX_FAULTS_IN_A_ROW
        if fault.closes or is_worn_out or pause_s > timeout_s:
            self.closed = self.closed or str(fault)


@dataclass
class _Job:
    question: Question
    faults: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)


@dataclass
class Dispatcher:
    """Answers the questions of one call."""

    client: httpx.AsyncClient
    config: VllmServerConfig
    replicas: list[Replica]
    dialect: Dialect
    progress: Callable[[int], None]
    """Called with the rows that have their final answer."""
    answers: dict[int, Generation] = field(default_factory=dict)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, questions: Iterable[Question]) -> dict[int, Generation]:
        """One generation per question, by row; a failure is one with an error."""
        waiting = deque(_Job(question) for question in questions)
        try:
            while waiting or self._running:
                pause_s = self._start(waiting)
                if self._running:
                    done, self._running = await asyncio.wait(
                        self._running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        task.result()
                elif pause_s is not None:
                    await asyncio.sleep(pause_s)
        finally:
            for task in self._running:
                task.cancel()
        return self.answers

    def _start(self, waiting: deque[_Job]) -> float | None:
        """Start what has a place; returns seconds until a pause ends, or None when only a result can help."""
        pause_s: float | None = None
        for _ in range(len(waiting)):
            opened = [replica for replica in self.replicas if not replica.closed]
            job = waiting.popleft()
            if not opened:
                self._fail(job)
                continue
            wanted = [replica for replica in opened if replica.url not in job.tried] or opened
            now = time.monotonic()
            ready = [replica for replica in wanted if replica.free_at <= now and self._has_place(replica)]
            if ready:
                replica = min(ready, key=lambda replica: replica.outstanding)
                replica.outstanding += 1
                self._running.add(asyncio.create_task(self._try(job, replica, waiting)))
                continue
            waiting.append(job)
            pauses = [replica.free_at - now for replica in wanted if replica.free_at > now]
            pause_s = min([*pauses, *([] if pause_s is None else [pause_s])], default=None)
            if not any(replica.free_at <= now and self._has_place(replica) for replica in opened):
                break
        return pause_s

    def _has_place(self, replica: Replica) -> bool:
        return replica.outstanding < self.config.max_concurrency

    async def _try(self, job: _Job, replica: Replica, waiting: deque[_Job]) -> None:
        started = time.monotonic()
        job.tried.add(replica.url)
        try:
            answer = await post(self.client, replica.url, "/v1/completions", self.dialect.body(job.question),
                                timeout_s=self.config.timeout_s)  # fmt: skip
            self._keep(job, self.dialect.read(job.question, answer))
            replica.faults_in_row = 0
        except RequestRefused as error:
            job.faults.append(f"{replica.url}: {error}")
            self._keep(job, self._failure(job))
        except (ReplicaFault, BadAnswer) as error:
            fault = error if isinstance(error, ReplicaFault) else ReplicaFault(f"bad answer: {error}")
            replica.note_fault(fault, started=started, timeout_s=self.config.timeout_s)
            job.faults.append(f"{replica.url}: {fault}")
            if len(job.faults) < self.config.tries:
                waiting.appendleft(job)
            else:
                self._fail(job)
        finally:
            replica.outstanding -= 1

    def _fail(self, job: _Job) -> None:
        self._keep(job, self._failure(job))

    def _failure(self, job: _Job) -> Generation:
        said = job.faults or [f"{replica.url}: {replica.closed}" for replica in self.replicas]
        tries = f"after {len(job.faults)} tries" if job.faults else "no replica is left"
        return Generation(text="", finish_reason="error", error=f"no answer, {tries}: {'; '.join(said)}")

    def _keep(self, job: _Job, generation: Generation) -> None:
        self.answers[job.question.row] = generation
        self.progress(len(self.answers))


async def post(client: httpx.AsyncClient, url: str, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Any:
    """The JSON that a server answers to one POST.

    Raises:
        ReplicaFault: no answer; another replica may have one.
        RequestRefused: a 4xx that says the request is wrong.
    """
    return await _request(client, "POST", url, path, body, timeout_s)


async def get(client: httpx.AsyncClient, url: str, path: str, *, timeout_s: float) -> Any:
    """The JSON that a server answers to one GET; raises as :func:`post`."""
    return await _request(client, "GET", url, path, None, timeout_s)


async def _request(
    client: httpx.AsyncClient, method: str, url: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
) -> Any:
    import httpx

    try:
        async with asyncio.timeout(timeout_s):  # a client's own limits bind single reads, not a slow drip of bytes
            response = await client.request(method, url.rstrip("/") + path, json=body)
    except TimeoutError:
        raise ReplicaFault(f"no whole answer within {timeout_s:g} s", closes=True) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ReplicaFault(f"{type(error).__name__}: {error}") from None
    if response.status_code >= 400:
        raise _refusal(response)
    try:
        return response.json() if response.content.strip() else None
    except ValueError:  # of vLLM's answers that are plain text, only the status matters
        return response.text


def _refusal(response: httpx.Response) -> Exception:
    status, said = response.status_code, f"{response.status_code} {response.text.strip()[:300]}"
    if status in (408, 409, 425, 429) or status >= 500:
        return ReplicaFault(said, pause_s=_retry_after_s(response.headers.get("retry-after")))
    if status in (401, 403, 404):
        return ReplicaFault(said, closes=True)
    return RequestRefused(said)


def _retry_after_s(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
