"""Work is recorded once, and every result counts as a result."""

import threading
from pathlib import Path
from typing import Any

import pytest

from harness.protocols import WorkLedger
from memory.errors import StoreError
from memory.redaction import REDACTED
from memory.store import Store


@pytest.mark.parametrize("result", [0.0, 0, [], {}, "", False, None])
def test_an_empty_looking_result_is_a_result(store: Store, result: Any) -> None:
    ledger = store.ledger("r")
    assert ledger.entry("k") is None
    ledger.record("k", kind="evaluation", result=result)
    entry = ledger.entry("k")
    assert entry is not None and entry.result == result and type(entry.result) is type(result)
    assert ledger.find("k") == result


def test_the_first_writer_wins(store: Store) -> None:
    ledger: WorkLedger = store.ledger("r")
    assert ledger.record("k", kind="call", result=0.0) == 0.0
    assert ledger.record("k", kind="call", result=1.0) == 0.0
    assert ledger.find("k") == 0.0


def test_one_key_cannot_hold_two_kinds_of_work(store: Store) -> None:
    ledger = store.ledger("r")
    ledger.record("k", kind="call", result=1)
    with pytest.raises(StoreError, match="recorded as 'call'; got 'evaluation'"):
        ledger.record("k", kind="evaluation", result=1)


def test_runs_do_not_see_each_others_work(store: Store) -> None:
    store.ledger("a").record("k", kind="call", result=1)
    assert store.ledger("b").entry("k") is None


def test_counts_and_entries_by_kind(store: Store) -> None:
    ledger = store.ledger("r")
    for number in range(1001):  # more than two pages
        ledger_kind = "call" if number % 2 else "batch"
        if number < 3 or number > 998:
            ledger.record(f"k{number}", kind=ledger_kind, result=number)
    # kept numbers: 0 1 2 999 1000 -> odd ones 1 and 999
    assert ledger.counts() == {"batch": 3, "call": 2}
    assert [entry.result for entry in ledger.entries(kind="call")] == [1, 999]
    assert [entry.result for entry in ledger.entries()] == [0, 1, 2, 999, 1000]


def test_work_survives_reopening(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.ledger("r").record("k", kind="call", result={"a": [1.5, None]})
    with Store.open(tmp_path) as store:
        assert store.ledger("r").find("k") == {"a": [1.5, None]}


def test_the_returned_result_is_the_stored_one_without_secrets(store: Store) -> None:
    kept = store.ledger("r").record("k", kind="call", result={"error": "sk-abcdefghijklmnop1234"})
    assert kept == {"error": REDACTED} == store.ledger("r").find("k")


def test_what_is_not_json_is_refused_and_nothing_is_recorded(store: Store) -> None:
    ledger = store.ledger("r")
    for bad in (float("nan"), float("inf"), "\ud800"):
        with pytest.raises(StoreError, match="not JSON"):
            ledger.record("k", kind="call", result=bad)
    assert ledger.entry("k") is None


def test_threads_that_race_for_a_key_all_get_the_first_result(store: Store) -> None:
    ledger = store.ledger("r")
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(ledger.record("k", kind="call", result=n))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and set(results) == {ledger.find("k")}
