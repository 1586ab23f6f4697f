"""One model call from key to record: ledger, budget, gate, request, retries, accounts.

The order is what makes a restart cheap and honest: a recorded reply is found before anything is reserved or sent, and a
paid one is counted before it is recorded, so a kill between the two repeats the call but never hides its cost.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from pydantic import JsonValue

from agents.llm.accounting import Accounts, SpendEntry
from agents.llm.config import RoleModelConfig
from agents.llm.failure import Fault, ModelCallFailed
from agents.llm.provider import RawReply, check_model, classify, estimate_tokens, price_usd, send
from agents.llm.record import CallRecord, CallSink, ModelReply, discard
from agents.llm.throttle import Throttle, backoff_s
from harness.errors import UserError
from harness.protocols import WorkLedger
from harness.records import Usage, content_id


class ModelServices:
    """What all clients of one run share."""

    def __init__(
        self,
        ledger: WorkLedger | None = None,
        *,
        sink: CallSink = discard,
        accounts: Accounts | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        """Open the services of a run; its accounts read back what earlier sittings have paid.

        Args:
            ledger: recorded replies; None records nothing.
            sink: receives the record of every call and every structured answer.
            accounts: tokens and money per role; None opens those of ``ledger``.
            throttle: gates and waits; None makes one.
        """
        self.ledger = ledger
        self.sink = sink
        self.accounts = Accounts(ledger) if accounts is None else accounts
        self.throttle = throttle or Throttle()
        self.rungs: dict[str, str] = {}
        """The rung of the structured-output ladder that works, by model and server."""
        self.flights: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One lock per call in flight: two equal calls at once pay once."""


@dataclass(frozen=True)
class CallRequest:
    """A call before it is made; equal requests have equal ids."""

    call_id: str
    purpose: str
    replicate: int
    messages: tuple[dict[str, JsonValue], ...]
    parameters: dict[str, JsonValue]
    max_attempts: int


def request_of(
    config: RoleModelConfig,
    messages: Sequence[dict[str, JsonValue]],
    *,
    purpose: str,
    replicate: int = 0,
    response_format: Mapping[str, JsonValue] | None = None,
    stop: Sequence[str] | None = None,
    max_attempts: int | None = None,
) -> CallRequest:
    """Resolve the parameters of a call and hash everything that decides its answer.

    ``max_attempts`` is left out of the hash: how often one asks does not change what is asked.
    """
    wanted: dict[str, JsonValue] = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "max_tokens": config.max_tokens,
        "seed": None if config.seed is None else config.seed + replicate,
        "stop": list(stop) if stop else None,
        "response_format": None if response_format is None else dict(response_format),
    }
    parameters = {name: value for name, value in wanted.items() if value is not None} | config.extra
    identity: dict[str, JsonValue] = {
        "model": config.model,
        "api_base": config.api_base,
        "messages": list(messages),
        "parameters": parameters,
        "purpose": purpose,
        "replicate": replicate,
    }
    return CallRequest(
        call_id=content_id(identity, prefix="call", length=32),
        purpose=purpose,
        replicate=replicate,
        messages=tuple(messages),
        parameters=parameters,
        max_attempts=max_attempts or config.retry.max_attempts,
    )


@dataclass(frozen=True)
class Caller:
    """Makes the calls of one role with one model."""

    config: RoleModelConfig
    role: str
    services: ModelServices

    async def answer(self, request: CallRequest) -> ModelReply:
        """Find the recorded reply or pay for one; equal calls in flight share it.

        Raises:
            ModelCallFailed: no reply within the allowed attempts, or a permanent refusal.
            BudgetExhausted: the call could pass a hard limit; nothing was sent.
            UserError: a key is missing, or a limit cannot bind this model.
        """
        ledger = self.services.ledger
        lock = self.services.flights.setdefault(request.call_id, asyncio.Lock())
        async with lock:
            stored = ledger.find(request.call_id) if ledger is not None else None
            if stored is not None:
                reply = ModelReply.model_validate(stored)
                self._keep(request, reply, is_replayed=True)
                return reply
            try:
                reply = await self._pay(request)
            except ModelCallFailed as failure:
                self._keep_failure(request, failure)
                raise
            self._keep(request, reply, is_replayed=False)
            return reply

    async def _pay(self, request: CallRequest) -> ModelReply:
        services = self.services
        check_model(self.config)
        prompt_tokens = estimate_tokens(request.messages)
        cost_usd = price_usd(self.config, prompt_tokens, self.config.max_tokens)
        if services.accounts.has_money_limit(self.role):
            check_price(self.config)
        tokens = prompt_tokens + self.config.max_tokens
        with services.accounts.reserve(self.role, tokens=tokens, cost_usd=cost_usd or 0.0):
            reply = await self._attempt(request)
            services.accounts.pay(
                SpendEntry(
                    role=self.role,
                    model=self.config.model,
                    call_id=request.call_id,
                    usage=reply.usage,
                    is_unpriced=reply.is_unpriced,
                )
            )
        if services.ledger is None:
            return reply
        # The ledger's copy, not ours: an unbroken run and a resumed one must see the same reply.
        kept = services.ledger.record(request.call_id, kind="model_call", result=reply.model_dump(mode="json"))
        return ModelReply.model_validate(kept)

    async def _attempt(self, request: CallRequest) -> ModelReply:
        """Send until a reply comes, a permanent fault does, or the attempts are used up."""
        throttle, retry = self.services.throttle, self.config.retry
        faults: list[Fault] = []
        started = throttle.clock()
        while True:
            try:
                async with throttle.turn(self.config.server), asyncio.timeout(self.config.timeout_s):
                    raw = await send(self.config, request.messages, request.parameters)
                return self._reply(request, raw, faults, throttle.clock() - started)
            except UserError:
                raise
            except Exception as error:  # the model_call boundary: every provider raises its own kinds
                failed = classify(error, self.config)
            faults.append(failed.fault)
            asked_s = failed.retry_after_s or 0.0
            if failed.is_permanent or len(faults) >= request.max_attempts or asked_s > retry.retry_after_cap_s:
                raise self._failure(request, faults, asked_s)
            throttle.pause(self.config.server, asked_s)
            await throttle.sleep(asked_s + backoff_s(retry, len(faults), throttle.draw))

    def _reply(self, request: CallRequest, raw: RawReply, faults: Sequence[Fault], latency_s: float) -> ModelReply:
        return ModelReply(
            text=raw.text,
            model=self.config.model,
            usage=raw.usage,
            latency_s=latency_s,
            retries=len(faults),
            faults=tuple(fault.kind for fault in faults),
            fault_details=tuple(faults),
            finish_reason=raw.finish_reason,
            refusal=raw.refusal,
            is_unpriced=raw.is_unpriced,
            is_usage_estimated=raw.is_usage_estimated,
            call_id=request.call_id,
        )

    def _failure(self, request: CallRequest, faults: Sequence[Fault], asked_s: float) -> ModelCallFailed:
        last = faults[-1]
        waits = f"; the provider asks to wait {asked_s:g} s" if asked_s else ""
        return ModelCallFailed(
            f"{self.config.model} for {self.role}/{request.purpose} gave no reply after {len(faults)} request(s): "
            f"{last.kind}: {last.detail}{waits}",
            faults,
            attempts=len(faults),
        )

    def _keep(self, request: CallRequest, reply: ModelReply, *, is_replayed: bool) -> None:
        self._sink(
            request,
            reply=reply.text,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            is_unpriced=reply.is_unpriced,
            latency_s=0.0 if is_replayed else reply.latency_s,
            retries=reply.retries,
            faults=reply.fault_details,
            is_replayed=is_replayed,
        )

    def _keep_failure(self, request: CallRequest, failure: ModelCallFailed) -> None:
        self._sink(
            request,
            reply="",
            finish_reason="error",
            usage=Usage(),
            latency_s=0.0,
            retries=max(0, failure.attempts - 1),
            faults=failure.faults,
            error=str(failure),
        )

    def _sink(self, request: CallRequest, **outcome: Any) -> None:
        self.services.sink(
            CallRecord(
                call_id=request.call_id,
                role=self.role,
                model=self.config.model,
                purpose=request.purpose,
                replicate=request.replicate,
                messages=request.messages,
                parameters=request.parameters,
                **outcome,
            )
        )


def check_price(config: RoleModelConfig) -> None:
    """Refuse a limit in USD over a model whose calls would all count 0.

    Raises:
        UserError: the model has no price and its server is not on this machine or its network.
    """
    if price_usd(config, 1, 1) is None and not is_local(config.api_base):
        raise UserError(
            f"a limit in USD cannot bind model {config.model!r}",
            got="no price in the config or in LiteLLM's table",
            do="set the role's price, or limit tokens instead",
        )


def is_local(api_base: str | None) -> bool:
    """Whether a server is on this machine or its private network, hence costs no money by the token."""
    host = urlsplit(api_base or "").hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_private
