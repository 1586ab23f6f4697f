"""Traces: idempotent, filtered, paged, indexed."""

from typing import Any

import pytest
import sqlalchemy as sa

from harness.records import Scored, Trace, Unscored
from memory import tables
from memory.errors import Conflict, NotFound
from memory.redaction import REDACTED
from memory.store import Store


def trace(number: int, **changes: Any) -> Trace:
    fields: dict[str, Any] = {
        "trace_id": f"t{number}", "task_id": f"k{number % 3}", "split": "train", "policy_id": "p1", "harness_id": "h1",
        "purpose": "rollout", "completion": f"answer {number}", "finish_reason": "stop",
        "verdict": Scored(parts={"exact": 0.0, "format": 1.0}, reward=0.05),
    }  # fmt: skip
    return Trace(**(fields | changes))


def test_traces_read_back_in_order_and_equal(store: Store) -> None:
    given = [trace(n) for n in (2, 0, 1)]
    assert store.traces.add("r", given) == 3
    assert store.traces.find("r") == tuple(given)


def test_adding_again_adds_only_what_is_new(store: Store) -> None:
    store.traces.add("r", [trace(0), trace(1)])
    assert store.traces.add("r", [trace(1), trace(2), trace(2)]) == 1
    assert [item.trace_id for item in store.traces.find("r")] == ["t0", "t1", "t2"]


def test_the_same_id_with_other_content_is_refused_and_nothing_is_stored(store: Store) -> None:
    store.traces.add("r", [trace(0)])
    with pytest.raises(Conflict, match="trace t0 is already stored with other content"):
        store.traces.add("r", [trace(5), trace(0, completion="another")])
    with pytest.raises(Conflict, match="t7"):
        store.traces.add("r", [trace(7), trace(7, completion="another")])
    assert store.traces.count("r") == 1


def test_every_filter_narrows(store: Store) -> None:
    store.traces.add(
        "r",
        [
            trace(0),
            trace(1, purpose="gate"),
            trace(2, split="val"),
            trace(3, policy_id="p2"),
            trace(4, harness_id="h2"),
            trace(5, verdict=Unscored(boundary="engine", error="lost")),
        ],
    )

    def ids(**filters: Any) -> list[str]:
        return [item.trace_id for item in store.traces.find("r", **filters)]

    assert ids(purpose="gate") == ["t1"]
    assert ids(split="val") == ["t2"]
    assert ids(policy_id="p2") == ["t3"]
    assert ids(harness_id="h2") == ["t4"]
    assert ids(status="unscored") == ["t5"]
    assert ids(task_id="k0") == ["t0", "t3"]
    assert ids(task_id="k0", policy_id="p1") == ["t0"]
    assert store.traces.find("other") == ()
    assert store.traces.count("r", status="scored") == 5


def test_pages_join_to_the_whole(store: Store) -> None:
    store.traces.add("r", (trace(n) for n in range(7)))
    first = store.traces.find("r", limit=3)
    second = store.traces.find("r", limit=3, after=first[-1].trace_id)
    third = store.traces.find("r", limit=3, after=second[-1].trace_id)
    assert [len(page) for page in (first, second, third)] == [3, 3, 1]
    assert first + second + third == store.traces.find("r") == tuple(store.traces.iterate("r", page=2))
    with pytest.raises(NotFound, match="no trace 'gone'"):
        store.traces.find("r", after="gone")


def test_traces_are_found_by_id_in_the_order_asked(store: Store) -> None:
    store.traces.add("r1", [trace(0)])
    store.traces.add("r2", [trace(1)])
    assert [item.trace_id for item in store.traces.by_ids(["t1", "t0"])] == ["t1", "t0"]
    with pytest.raises(NotFound, match="1 of 2 traces are not stored, first 't9'"):
        store.traces.by_ids(["t0", "t9"])


def test_secrets_in_completions_are_removed(store: Store) -> None:
    store.traces.add("r", [trace(0, completion="my key is sk-abcdefghijklmnop1234 ok")])
    assert store.traces.find("r")[0].completion == f"my key is {REDACTED} ok"


def test_several_batches_go_in_at_once(store: Store) -> None:
    assert store.traces.add("r", (trace(n) for n in range(1234))) == 1234
    assert store.traces.add("r", (trace(n) for n in range(1234))) == 0
    assert len(store.traces.by_ids([f"t{n}" for n in range(1234)])) == 1234


@pytest.mark.parametrize("name", ["purpose", "task_id", "harness_id", "policy_id"])
def test_filters_use_an_index(store: Store, name: str) -> None:
    store.traces.add("r", (trace(n) for n in range(10)))
    columns = tables.traces.c
    query = sa.select(columns.body).where(columns.run_id == "r", columns[name] == "x").order_by(columns.row_id)
    text = str(query.compile(compile_kwargs={"literal_binds": True}))
    with store._database.read("explaining") as connection:
        plan = " ".join(row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))
    assert "USING INDEX traces_by" in plan and f"{name}=?" in plan
