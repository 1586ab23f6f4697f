"""The same statements compile for Postgres; a blocked writer gets a typed error."""

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from memory import database as database_module
from memory import tables
from memory.database import connect, insert_once, read_record
from memory.errors import CorruptStore, StoreBusy, StoreError
from memory.records import Amendment
from memory.store import DATABASE_NAME, Store


@pytest.mark.parametrize("table", list(tables.metadata.tables.values()), ids=str)
def test_every_table_and_its_insert_compile_for_postgres(table: sa.Table) -> None:
    dialect = postgresql.dialect()
    created = str(sa.schema.CreateTable(table).compile(dialect=dialect))
    assert "BIGSERIAL" in created or table is tables.meta
    inserted = str(insert_once("postgresql", table).values({c.name: "1" for c in table.c}).compile(dialect=dialect))
    assert inserted.endswith("ON CONFLICT DO NOTHING")


def test_a_missing_driver_says_what_to_install() -> None:
    pytest.importorskip("sqlalchemy")
    try:
        import psycopg  # type: ignore[import-not-found] # noqa: F401
    except ImportError:
        with pytest.raises(StoreError, match="pip install psycopg"):
            connect("postgresql+psycopg://ada@localhost/x")
    else:
        pytest.skip("the driver is installed")


def test_a_writer_blocked_past_the_timeout_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.1)
    with Store.open(tmp_path) as store:
        other = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="another process wrote"):
            store.ledger("r").record("k", kind="call", result=1)
        other.execute("ROLLBACK")
        other.close()
        assert store.ledger("r").record("k", kind="call", result=2) == 2


def test_readers_do_not_wait_for_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.1)
    with Store.open(tmp_path) as store:
        store.ledger("r").record("k", kind="call", result=1)
        other = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert store.ledger("r").find("k") == 1
        other.close()


def test_a_record_of_another_shape_is_corruption_with_the_field_named_and_no_value_shown() -> None:
    text = '{"key": "k", "before": null, "after": 1, "changed_at": 7, "more": "s3cret"}'
    with pytest.raises(CorruptStore, match="a stored Amendment cannot be read; got changed_at") as caught:
        read_record(Amendment, text)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(CorruptStore, match="not JSON"):
        read_record(Amendment, text[:20])
