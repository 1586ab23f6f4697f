"""Files are whole or absent, and damage is named."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memory.errors import DiskFull, RunBusy, StoreError, TornFile
from memory.files import (
    discard_abandoned,
    folder_faults,
    hash_folder,
    hold_lock,
    publish_folder,
    read_json,
    temporary_name,
    write_atomic,
    write_json,
)  # fmt: skip


def test_an_atomic_write_replaces_the_content_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"b": 1})
    write_json(path, {"b": 2})
    assert read_json(path) == {"b": 2}
    assert [item.name for item in path.parent.iterdir()] == ["a.json"]


def test_a_failed_write_keeps_the_old_content_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"old")
    script = (
        "import resource, sys; from pathlib import Path; from memory.files import write_atomic\n"
        "from memory.errors import DiskFull\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"  # bytes; a full disk for this process
        "try: write_atomic(Path(sys.argv[1]), b'x' * 5000)\n"
        "except DiskFull as error: print('full:', error); sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "free disk space" in done.stdout
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.bin"]


def test_a_kill_in_the_middle_of_a_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"old")
    script = (
        "import os, signal, sys; from pathlib import Path; from memory import files\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_atomic(Path(sys.argv[1]), b'new' * 100)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    left = [item.name for item in tmp_path.iterdir() if item.name != "a.bin"]
    assert len(left) == 1 and left[0].startswith(".tmp-")
    assert discard_abandoned(tmp_path) == 0  # young: it could belong to a living process
    os.utime(tmp_path / left[0], (time.time() - 7200, time.time() - 7200))
    assert discard_abandoned(tmp_path) == 1
    assert [item.name for item in tmp_path.iterdir()] == ["a.bin"]


def test_a_torn_json_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"a": 1, "b"')
    with pytest.raises(TornFile, match=r"state\.json is not whole JSON"):
        read_json(path)
    with pytest.raises(TornFile, match=r"absent\.json is missing"):
        read_json(tmp_path / "absent.json")


def test_folder_faults_tell_missing_torn_and_unexpected_files_apart(tmp_path: Path) -> None:
    for name in ("a", "b", "sub/c"):
        write_atomic(tmp_path / name, name.encode())
    expected = hash_folder(tmp_path)
    # SHA-256 of the one byte "a", a published test value.
    assert expected["a"] == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert set(expected) == {"a", "b", "sub/c"}
    assert folder_faults(tmp_path, expected) == ()
    (tmp_path / "a").unlink()
    (tmp_path / "sub/c").write_bytes(b"sub/")
    (tmp_path / "d").write_bytes(b"")
    assert [(fault.name, fault.kind) for fault in folder_faults(tmp_path, expected)] == [
        ("a", "missing"), ("d", "unexpected"), ("sub/c", "torn"),
    ]  # fmt: skip
    assert [fault.kind for fault in folder_faults(tmp_path / "absent", {"a": "0"})] == ["missing"]


def test_publishing_moves_keeps_an_equal_folder_and_replaces_a_torn_one(tmp_path: Path) -> None:
    def make(content: bytes) -> Path:
        source = tmp_path / temporary_name("x")
        write_atomic(source / "w", content)
        return source

    final = tmp_path / "final"
    publish_folder(make(b"whole"), final)
    inode = (final / "w").stat().st_ino
    publish_folder(make(b"whole"), final)
    assert (final / "w").stat().st_ino == inode
    (final / "w").write_bytes(b"who")
    publish_folder(make(b"whole"), final)
    assert (final / "w").read_bytes() == b"whole"
    assert [item.name for item in tmp_path.iterdir()] == ["final"]


def test_a_lock_excludes_another_process_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import sys; from pathlib import Path; from memory.files import hold_lock; from memory.errors import RunBusy\n"
        "try:\n"
        "    with hold_lock(Path(sys.argv[1]), what='run r1'): print('got it')\n"
        "except RunBusy as error: print(error)\n"
    )
    with hold_lock(path, what="run r1"):
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
        assert f"run r1 is being executed by another process (pid {os.getpid()})" in done.stdout
        with pytest.raises(RunBusy), hold_lock(path, what="run r1"):
            pass
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "got it"


def test_the_kernel_releases_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import sys, time; from pathlib import Path; from memory.files import hold_lock\n"
        "with hold_lock(Path(sys.argv[1]), what='run r1'):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline().strip() == "held"
    with pytest.raises(RunBusy), hold_lock(path, what="run r1"):
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    with hold_lock(path, what="run r1"):
        assert path.read_text() == str(os.getpid())


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match="writing .*file/a failed"):
        write_atomic(tmp_path / "file" / "a", b"")


def test_python_turns_the_file_size_signal_into_an_error() -> None:
    # The full-disk tests rest on this: with the default action the process would die instead.
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
    assert issubclass(DiskFull, StoreError)
