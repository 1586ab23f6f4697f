"""Training measurements are kept per step of a block, once, and old homes get their table."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from memory.errors import StoreError
from memory.records import RunRecord
from memory.store import DATABASE_NAME, Store


def test_steps_come_back_block_after_block_in_order_and_other_runs_stay_apart(store: Store) -> None:
    store.metrics.add("r", "block-b", 5, {"loss": 0.5})
    store.metrics.add("r", "block-b", 4, {"loss": 0.4})
    store.metrics.add("r", "block-a", 6, {"loss": 0.6})
    store.metrics.add("other", "block-b", 4, {"loss": 9.0})
    found = store.metrics.find("r")
    # block-b began first, whatever its name
    assert [(row.block_key, row.step, row.metrics) for row in found] == [
        ("block-b", 4, {"loss": 0.4}),
        ("block-b", 5, {"loss": 0.5}),
        ("block-a", 6, {"loss": 0.6}),
    ]
    assert [row.step for row in store.metrics.find("r", block_key="block-a")] == [6]
    assert store.metrics.find("nobody") == ()


def test_a_step_told_again_after_a_restart_keeps_its_first_report(store: Store) -> None:
    store.metrics.add("r", "block", 0, {"loss": 0.1, "update_s": 1.0})
    store.metrics.add("r", "block", 0, {"loss": 0.1, "update_s": 7.0})
    (kept,) = store.metrics.find("r")
    assert kept.metrics == {"loss": 0.1, "update_s": 1.0}


def test_a_number_that_is_none_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="not JSON"):
        store.metrics.add("r", "block", 0, {"loss": float("nan")})
    assert store.metrics.find("r") == ()


def test_another_reader_sees_a_step_while_the_run_goes_on(tmp_path: Path) -> None:
    with Store.open(tmp_path) as writer, Store.open(tmp_path) as reader:
        writer.metrics.add("r", "block", 0, {"loss": 0.1})
        assert [row.step for row in reader.metrics.find("r")] == [0]


def test_a_home_from_before_the_table_opens_and_keeps_what_it_has(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.runs.create(RunRecord(run_id="run-1", strategy="vace", suite="s", config={}, identity={}))
    engine = sa.create_engine(f"sqlite:///{tmp_path / DATABASE_NAME}")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE metrics")
    engine.dispose()
    with Store.open(tmp_path) as store:
        assert [run.run_id for run in store.runs.list()] == ["run-1"]
        store.metrics.add("run-1", "block", 0, {"loss": 0.1})
        assert len(store.metrics.find("run-1")) == 1
