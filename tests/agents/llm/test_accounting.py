import pytest
from pydantic import JsonValue

from agents.llm.accounting import Accounts, SpendEntry
from agents.llm.config import SpendLimit
from agents.llm.failure import BudgetExhausted
from harness.protocols import WorkLedger
from harness.records import Usage
from memory.store import Store

from .conftest import MESSAGES, ChatMaker, Server, reply


def entry(role: str, prompt: int, completion: int, cost: float, call: str = "call-1") -> SpendEntry:
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cost_usd=cost)
    return SpendEntry(role=role, model="openai/tiny", call_id=call, usage=usage)


def test_totals_are_kept_per_role_and_for_the_run_across_sittings(store: Store):
    accounts = Accounts(store.ledger("run-1"))
    accounts.pay(entry("teacher", 10, 5, 0.25))
    accounts.pay(entry("proposer", 20, 1, 0.5))
    accounts.pay(entry("teacher", 1, 1, 0.25))
    reopened = Accounts(store.ledger("run-1"))
    assert reopened.totals("teacher").tokens == 17 and reopened.totals("teacher").cost_usd == 0.5
    assert reopened.totals().tokens == 38 and reopened.totals().calls == 3  # 17 + 21
    assert list(reopened.by_role()) == ["proposer", "teacher"]
    assert Accounts(store.ledger("run-2")).totals().calls == 0


def test_two_equal_payments_are_two_payments(store: Store):
    accounts = Accounts(store.ledger("run-1"))
    accounts.pay(entry("teacher", 10, 5, 0.0))
    accounts.pay(entry("teacher", 10, 5, 0.0))
    assert Accounts(store.ledger("run-1")).totals("teacher").tokens == 30


def test_an_entry_written_meanwhile_by_another_writer_is_not_overwritten(store: Store):
    first, second = Accounts(store.ledger("run-1")), Accounts(store.ledger("run-1"))
    first.pay(entry("teacher", 10, 0, 0.0, call="call-1"))
    second.pay(entry("teacher", 7, 0, 0.0, call="call-2"))
    assert Accounts(store.ledger("run-1")).totals("teacher").tokens == 17


def test_the_run_s_limit_binds_all_roles_together():
    accounts = Accounts(limits={"run": SpendLimit(max_tokens=100)})
    accounts.pay(entry("teacher", 60, 0, 0.0))
    with (
        pytest.raises(BudgetExhausted, match="budget of run") as caught,
        accounts.reserve("proposer", tokens=41, cost_usd=0),
    ):
        pass
    assert (caught.value.owner, caught.value.unit) == ("run", "tokens")
    with accounts.reserve("proposer", tokens=40, cost_usd=0):  # 60 + 40 = 100 is allowed
        pass


def test_a_reservation_ends_with_its_call_also_when_the_call_fails():
    accounts = Accounts(limits={"teacher": SpendLimit(max_tokens=10)})
    with pytest.raises(RuntimeError), accounts.reserve("teacher", tokens=10, cost_usd=0):
        raise RuntimeError
    with accounts.reserve("teacher", tokens=10, cost_usd=0):
        pass


class KilledBeforeTheReply:
    """The run's real ledger, in a process that dies when it is about to record a reply."""

    def __init__(self, ledger: WorkLedger) -> None:
        self.ledger = ledger

    def find(self, key: str) -> JsonValue | None:
        return self.ledger.find(key)

    def record(self, key: str, *, kind: str, result: JsonValue) -> JsonValue:
        if kind == "model_call":
            raise KeyboardInterrupt
        return self.ledger.record(key, kind=kind, result=result)


def test_a_kill_between_payment_and_reply_repeats_the_call_and_counts_both(
    server: Server, make_chat: ChatMaker, store: Store
):
    from agents.llm.call import ModelServices

    server.plan(reply("hello"))
    chat = make_chat(services=ModelServices(KilledBeforeTheReply(store.ledger("run-1"))))
    with pytest.raises(KeyboardInterrupt):
        chat.invoke([("user", MESSAGES[1].content)], purpose="greet")
    services = ModelServices(store.ledger("run-1"))
    assert services.accounts.totals("proposer").tokens == 18  # 11 + 7: paid before the kill
    make_chat(services=services).invoke([("user", MESSAGES[1].content)], purpose="greet")
    assert services.accounts.totals("proposer").tokens == 36 and len(server.requests) == 2
