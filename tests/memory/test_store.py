"""Opening: new, newer, corrupt, foreign and full homes."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from memory.errors import CorruptStore, DiskFull, SchemaTooNew, StoreError
from memory.store import DATABASE_NAME, Store


def test_a_new_home_is_created_and_uses_wal_with_full_fsync(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "home"
    with Store.open(home) as store, store._database.read("looking") as connection:
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                  for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")]  # fmt: skip
    assert values == ["wal", 2, 1, 30000]  # synchronous 2 is FULL
    assert sorted(path.name for path in home.iterdir() if path.is_dir()) == ["checkpoints", "runs"]


def test_a_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        connection.execute("UPDATE meta SET value = '999'")
    with pytest.raises(SchemaTooNew, match="schema version 999; this program reads up to 1; update cohelix"):
        Store.open(tmp_path)


def test_an_older_schema_without_migration_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        connection.execute("UPDATE meta SET value = '0'")
    with pytest.raises(StoreError, match="older than 1"):
        Store.open(tmp_path)


@pytest.mark.parametrize("damage", ["header", "middle", "cut"])
def test_a_damaged_database_is_a_typed_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    with Store.open(tmp_path) as store:
        for number in range(300):
            store.ledger("r").record(f"k{number}", kind="call", result="x" * 200)
    path = tmp_path / DATABASE_NAME
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[:16] = b"not a database!!"
    elif damage == "middle":
        data[8192:24576] = os.urandom(16384)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=DATABASE_NAME):
        Store.open(tmp_path)


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(CorruptStore, match="songs.*another program"):
        Store.open(tmp_path)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master")] == ["songs"]


def test_a_home_that_is_a_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(StoreError, match="creating the home folder"):
        Store.open(tmp_path / "home")


def test_unusable_urls_are_store_errors_without_passwords(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected sqlite or postgresql"):
        Store.open(tmp_path, "mysql://u:p@h/d")
    with pytest.raises(StoreError, match="cannot be read"):
        Store.open(tmp_path, "not a url")


def test_several_processes_can_open_a_new_home_at_once(tmp_path: Path) -> None:
    script = (
        "import sys; from memory.store import Store\n"
        "with Store.open(sys.argv[1]) as store: store.ledger('r').record(sys.argv[2], kind='call', result=1)\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), f"k{n}"]) for n in range(4)]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0, 0]
    with Store.open(tmp_path) as store:
        assert store.ledger("r").counts() == {"call": 4}


_FILL = """
import resource, sys
from memory.errors import DiskFull
from memory.store import Store
store = Store.open(sys.argv[1])
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
for number in range(1000):
    try:
        store.ledger("r").record(f"k{number}", kind="call", result="x" * 5000)
    except DiskFull as error:
        print(error)
        sys.exit(7)
    print("ok", number, flush=True)
"""


def _fill(home: Path, mode: str) -> tuple[int, str]:
    """Write until the disk is full; return how many writes were acknowledged, and the error's text."""
    done = subprocess.run([sys.executable, "-c", _FILL, str(home), mode], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr[-2000:]
    lines = done.stdout.strip().splitlines()
    return sum(line.startswith("ok") for line in lines), lines[-1]


def test_a_file_size_limit_is_a_disk_full_error_and_nothing_half_written_stays(tmp_path: Path) -> None:
    count, message = _fill(tmp_path, "limit")
    assert 10 < count < 1000 and "free disk space" in message
    with Store.open(tmp_path) as store:
        assert store.ledger("r").counts() == {"call": count}
        assert {len(str(entry.result)) for entry in store.ledger("r").entries()} == {5000}


def test_a_really_full_disk_is_a_disk_full_error_and_the_run_continues_after(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = [shutil.which("mount") or "false", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here; the file-size test covers the error")
    try:
        (disk / "ballast").write_bytes(b"x" * 200_000)
        count, message = _fill(disk, "disk")
        assert count > 5 and "nothing of it was stored" in message
        (disk / "ballast").unlink()
        with Store.open(disk) as store:
            assert store.ledger("r").counts() == {"call": count}
            store.ledger("r").record("after", kind="call", result=1)
    finally:
        subprocess.run(["umount", disk], check=True)
    assert issubclass(DiskFull, StoreError)
