import asyncio
import time
from typing import Any, TypedDict

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.globals import set_llm_cache
from langgraph.graph import END, START, StateGraph

from agents.llm.accounting import Accounts
from agents.llm.call import ModelServices
from agents.llm.client import LiteLlmChat
from agents.llm.config import RoleModelConfig
from agents.llm.failure import BudgetExhausted, MissingApiKey, ModelCallFailed
from harness.errors import UserError
from memory.store import Store

from .conftest import MESSAGES, ChatMaker, Server, reply, status


async def test_a_reply_carries_text_tokens_and_the_sampling_that_was_asked(server: Server, make_chat: ChatMaker):
    server.plan(reply("hello"))
    answer = await make_chat(temperature=0.5, seed=40).complete(MESSAGES, purpose="greet", replicate=2)
    assert (answer.text, answer.finish_reason, answer.retries, answer.faults) == ("hello", "stop", 0, ())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)  # what the server reports
    body = server.requests[0]["body"]
    assert body["model"] == "tiny" and body["temperature"] == 0.5 and body["max_tokens"] == 50
    assert body["seed"] == 42  # seed 40 + replicate 2
    assert body["messages"][1] == {"role": "user", "content": "Say hello."}


async def test_retry_after_is_honoured_and_the_fault_is_kept(server: Server, make_chat: ChatMaker, records):
    server.plan(status(429, Retry_After="1"), reply("hello"))
    answer = await make_chat().complete(MESSAGES, purpose="greet")
    first, second = (request["at"] for request in server.requests)
    assert 1.0 <= second - first < 1.8
    assert (answer.retries, answer.faults) == (1, ("rate_limited",))
    assert records[0].faults[0].status_code == 429 and records[0].latency_s >= 1.0


async def test_retry_after_holds_back_the_other_calls_to_that_provider(server: Server, make_chat: ChatMaker):
    server.plan(status(429, Retry_After="1"), reply("hello"))
    chat = make_chat(concurrency=1)
    await asyncio.gather(*(chat.complete(MESSAGES, purpose="greet", replicate=n) for n in range(3)))
    times = [request["at"] for request in server.requests]
    assert len(times) == 4 and times[1] - times[0] >= 0.98


async def test_a_wait_longer_than_the_cap_fails_instead_of_blocking(server: Server, make_chat: ChatMaker):
    server.plan(status(429, Retry_After="3600"), reply("never"))
    with pytest.raises(ModelCallFailed, match="asks to wait 3600 s") as caught:
        await make_chat().complete(MESSAGES, purpose="greet")
    assert caught.value.fault.kind == "rate_limited" and len(server.requests) == 1


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (status(500), "server_error"),
        (status(503), "server_error"),
        (status(409), "server_error"),
        (status(408), "timeout"),
        ({"do": "garbage"}, "malformed_response"),
        ({"do": "hollow"}, "malformed_response"),
        ({"do": "hang_up"}, "connection_failed"),
    ],
)
async def test_a_transient_fault_is_named_and_retried(server: Server, make_chat: ChatMaker, step, kind):
    server.plan(step, reply("hello"))
    answer = await make_chat().complete(MESSAGES, purpose="greet")
    assert (answer.text, answer.faults) == ("hello", (kind,))
    assert len(server.requests) == 2  # one per attempt: the SDK's own retries are off


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, "bad_request"), (401, "authentication"), (403, "authentication"), (404, "not_found"), (422, "bad_request")],
)
async def test_a_permanent_answer_fails_at_once(server: Server, make_chat: ChatMaker, records, code, kind):
    server.plan(status(code), reply("never"))
    with pytest.raises(ModelCallFailed) as caught:
        await make_chat().complete(MESSAGES, purpose="greet")
    assert (caught.value.fault.kind, caught.value.fault.status_code, caught.value.attempts) == (kind, code, 1)
    assert caught.value.boundary == "model_call" and len(server.requests) == 1
    assert (records[0].finish_reason, records[0].faults[0].kind) == ("error", kind)


async def test_a_used_up_quota_is_permanent_though_it_is_a_429(server: Server, make_chat: ChatMaker):
    server.plan(status(429, message="You exceeded your quota: insufficient_quota"), reply("never"))
    with pytest.raises(ModelCallFailed):
        await make_chat().complete(MESSAGES, purpose="greet")
    assert len(server.requests) == 1


async def test_attempts_are_bounded(server: Server, make_chat: ChatMaker):
    server.plan(status(500))
    with pytest.raises(ModelCallFailed, match=r"after 4 request\(s\): server_error") as caught:
        await make_chat().complete(MESSAGES, purpose="greet")
    assert len(server.requests) == 4 and [fault.kind for fault in caught.value.faults] == ["server_error"] * 4


@pytest.mark.parametrize("step", [{"do": "stall", "seconds": 2}, {"do": "drip", "seconds": 2}])
async def test_a_stall_ends_at_the_whole_call_timeout_even_when_bytes_trickle(server: Server, make_chat, step):
    server.plan(step)
    started = time.monotonic()
    with pytest.raises(ModelCallFailed) as caught:
        await make_chat(timeout_s=0.4, retry={"max_attempts": 1}).complete(MESSAGES, purpose="greet")
    assert caught.value.fault.kind == "timeout" and 0.3 < time.monotonic() - started < 1.2


async def test_a_closed_port_is_a_connection_fault(make_chat: ChatMaker):
    chat = make_chat(api_base="http://127.0.0.1:9/v1", retry={"max_attempts": 2, "backoff_base_s": 0})
    with pytest.raises(ModelCallFailed) as caught:
        await chat.complete(MESSAGES, purpose="greet")
    assert [fault.kind for fault in caught.value.faults] == ["connection_failed"] * 2


async def test_the_provider_never_sees_more_requests_than_its_smallest_concurrency(server: Server, make_chat):
    server.plan(reply("hello", after=0.05))
    wide, narrow = make_chat(role="teacher", concurrency=8), make_chat(role="proposer", concurrency=2)
    calls = [(chat, n) for n in range(5) for chat in (wide, narrow)]
    await asyncio.gather(*(chat.complete(MESSAGES, purpose=chat.role, replicate=n) for chat, n in calls))
    assert server.peak == 2 and len(server.requests) == 10


async def test_a_recorded_reply_is_never_paid_again(server: Server, make_chat: ChatMaker, store: Store, records):
    server.plan(reply("first"), reply("second"))
    for _ in range(2):  # a second sitting opens the same ledger anew
        services = ModelServices(store.ledger("run-1"), sink=records.append)
        answer = await make_chat(services=services).complete(MESSAGES, purpose="greet")
        assert answer.text == "first"
        assert services.accounts.totals("proposer").tokens == 18  # 11 + 7, once
    assert len(server.requests) == 1
    assert [record.is_replayed for record in records] == [False, True]


async def test_purpose_replicate_sampling_and_format_each_make_another_call(server: Server, make_chat, store: Store):
    server.plan(reply("hello"))
    services = ModelServices(store.ledger("run-1"))
    chat, hot = make_chat(services=services), make_chat(services=services, temperature=1.0)
    await chat.complete(MESSAGES, purpose="a")
    await chat.complete(MESSAGES, purpose="b")
    await chat.complete(MESSAGES, purpose="a", replicate=1)
    await chat.complete(MESSAGES, purpose="a", response_format={"type": "json_object"})
    await hot.complete(MESSAGES, purpose="a")
    await chat.complete(MESSAGES, purpose="a")  # the only repetition
    assert len(server.requests) == 5


async def test_equal_calls_in_flight_pay_once(server: Server, make_chat: ChatMaker, store: Store):
    server.plan(reply("hello", after=0.1))
    chat = make_chat(services=ModelServices(store.ledger("run-1")))
    await asyncio.gather(*(chat.complete(MESSAGES, purpose="greet") for _ in range(4)))
    assert len(server.requests) == 1


async def test_a_hard_token_limit_stops_before_sending_and_survives_a_restart(server: Server, make_chat, store: Store):
    # A call reserves 50 (max_tokens) + 8 + 3 ("Be brief." is 9 bytes) + 8 + 4 ("Say hello.", 10) = 73 and uses 18.
    server.plan(reply("hello"))
    budget = {"max_tokens": 100}
    services = ModelServices(store.ledger("run-1"))
    chat = make_chat(services=services, budget=budget)
    await chat.complete(MESSAGES, purpose="one")
    await chat.complete(MESSAGES, purpose="two")  # 18 + 73 = 91 <= 100
    with pytest.raises(BudgetExhausted, match="budget of proposer"):  # 36 + 73 = 109 > 100
        await chat.complete(MESSAGES, purpose="three")
    reopened = ModelServices(store.ledger("run-1"))
    with pytest.raises(BudgetExhausted):
        await make_chat(services=reopened, budget=budget).complete(MESSAGES, purpose="three")
    assert reopened.accounts.totals("proposer").calls == 2 and len(server.requests) == 2


async def test_calls_in_flight_cannot_pass_a_limit_together(server: Server, make_chat: ChatMaker):
    server.plan(reply("hello", after=0.1))
    chat = make_chat(budget={"max_tokens": 150})  # 73 each: two fit, the third would reach 219
    calls = (chat.complete(MESSAGES, purpose="greet", replicate=n) for n in range(3))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, BudgetExhausted) for outcome in outcomes] == [False, False, True]


async def test_money_is_counted_at_the_configured_price_and_stops_the_run(server: Server, make_chat, services):
    # 11 prompt tokens at 1,000 USD and 7 completion tokens at 2,000 USD per million: 0.011 + 0.014 = 0.025 USD.
    server.plan(reply("hello"))
    price = {"prompt_usd_per_million": 1000, "completion_usd_per_million": 2000}
    chat = make_chat(price=price, budget={"max_cost_usd": 0.14})
    answer = await chat.complete(MESSAGES, purpose="one")
    assert answer.usage.cost_usd == pytest.approx(0.025) and not answer.is_unpriced
    with pytest.raises(BudgetExhausted, match="USD"):  # reserves 23 prompt + 50 completion = 0.123; 0.148 > 0.14
        await chat.complete(MESSAGES, purpose="two")
    assert services.accounts.totals().cost_usd == pytest.approx(0.025)


async def test_an_unknown_local_model_costs_nothing_and_is_marked(server: Server, make_chat: ChatMaker, services):
    server.plan(reply("hello"))
    answer = await make_chat(budget={"max_cost_usd": 1.0}).complete(MESSAGES, purpose="greet")
    assert answer.is_unpriced and answer.usage.cost_usd == 0.0
    assert services.accounts.totals("proposer").unpriced_calls == 1


async def test_a_money_limit_that_cannot_bind_is_refused(make_chat: ChatMaker):
    chat = make_chat(api_base="https://models.example.org/v1", budget={"max_cost_usd": 1.0})
    with pytest.raises(UserError, match="limit in USD cannot bind model 'openai/tiny'"):
        await chat.complete(MESSAGES, purpose="greet")


def test_a_missing_key_names_its_variable(make_chat: ChatMaker, monkeypatch):
    monkeypatch.delenv("MY_PROVIDER_KEY", raising=False)
    with pytest.raises(MissingApiKey, match="MY_PROVIDER_KEY"):
        make_chat(api_key_env="MY_PROVIDER_KEY")


async def test_a_hosted_provider_without_its_key_names_the_provider_s_variable(monkeypatch, services):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    config = RoleModelConfig(model="anthropic/claude-3-5-sonnet-20241022")
    with pytest.raises(MissingApiKey, match="ANTHROPIC_API_KEY"):
        await LiteLlmChat(config=config, role="teacher", services=services).complete(MESSAGES, purpose="greet")


async def test_the_key_is_sent_and_appears_nowhere_else(server: Server, make_chat, store: Store, records, monkeypatch):
    key = "very-private-value-123"
    monkeypatch.setenv("MY_PROVIDER_VAR", key)
    server.plan(reply("hello"), status(401, message=f"Incorrect API key provided: {key}"))
    services = ModelServices(store.ledger("run-1"), sink=records.append)
    chat = make_chat(services=services, api_key_env="MY_PROVIDER_VAR")
    await chat.complete(MESSAGES, purpose="one")
    with pytest.raises(ModelCallFailed) as caught:
        await chat.complete(MESSAGES, purpose="two")
    assert server.requests[0]["key"] == f"Bearer {key}"
    kept = [str(record) for record in records] + [str(list(store.ledger("run-1").entries()))]
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert key not in "".join([*kept, *map(str, chain), repr(chat), str(chat.asdict())])


async def test_a_key_of_the_environment_never_reaches_another_server(server: Server, make_chat, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-another-provider")
    server.plan(reply("hello"))
    await make_chat().complete(MESSAGES, purpose="greet")
    assert "key-of-another-provider" not in server.requests[0]["key"]


async def test_an_unknown_provider_is_said_before_anything_is_sent(services):
    chat = LiteLlmChat(config=RoleModelConfig(model="nosuch/model"), role="teacher", services=services)
    with pytest.raises(UserError, match="no provider is known for a model string; got 'nosuch/model'"):
        await chat.complete(MESSAGES, purpose="greet")


def test_the_rules_backend_is_no_language_model():
    with pytest.raises(UserError, match="role gate has no language model"):
        LiteLlmChat(config=RoleModelConfig(), role="gate")


class Seen(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def on_chat_model_start(self, serialized, messages, *, metadata=None, **kwargs):
        self.events.append(("start", (metadata or {}).get("purpose")))

    async def on_llm_end(self, response, **kwargs):
        self.events.append(("end", response.generations[0][0].text))

    async def on_llm_error(self, error, **kwargs):
        self.events.append(("error", type(error).__name__))


class State(TypedDict):
    said: str


async def test_a_graph_s_callbacks_and_message_stream_see_every_call(server: Server, make_chat: ChatMaker):
    server.plan(reply("hello"))
    chat = make_chat()

    async def speak(state: State) -> State:
        return {"said": (await chat.complete(MESSAGES, purpose="greet")).text}

    builder = StateGraph(State)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    builder.add_edge("speak", END)
    seen = Seen()
    stream = builder.compile().astream({"said": ""}, {"callbacks": [seen]}, stream_mode="messages")
    streamed = [(message.content, metadata["langgraph_node"]) async for message, metadata in stream]
    assert streamed == [("hello", "speak")]
    assert seen.events == [("start", "greet"), ("end", "hello")]


async def test_callbacks_see_a_failed_call(server: Server, make_chat: ChatMaker):
    server.plan(status(401))
    seen = Seen()
    with pytest.raises(ModelCallFailed):
        await make_chat().ainvoke("hi", {"callbacks": [seen]}, purpose="greet")
    assert [event for event, _ in seen.events] == ["start", "error"]


async def test_langchain_s_global_cache_does_not_collapse_replicates(server: Server, make_chat: ChatMaker):
    server.plan(reply("hello"))
    set_llm_cache(InMemoryCache())
    try:
        for replicate in (0, 1):
            await make_chat().complete(MESSAGES, purpose="grade", replicate=replicate)
    finally:
        set_llm_cache(None)
    assert len(server.requests) == 2


def test_calls_from_several_event_loops_work_one_after_the_other(server: Server, make_chat: ChatMaker):
    server.plan(reply("hello"))
    chat = make_chat()
    texts = [chat.invoke("hi", purpose=f"loop {n}").content for n in range(3)]
    assert texts == ["hello"] * 3


async def test_a_server_that_reports_no_tokens_still_counts_against_limits(server: Server, make_chat: ChatMaker):
    server.plan(reply("hello", usage=None))
    answer = await make_chat().complete(MESSAGES, purpose="greet")
    # prompt: 8 + ceil(9/3) + 8 + ceil(10/3) = 23; completion: ceil(5/3) = 2
    assert answer.is_usage_estimated
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (23, 2)


def test_opening_the_accounts_reads_back_every_role(store: Store):
    assert Accounts(store.ledger("fresh")).by_role() == {}
