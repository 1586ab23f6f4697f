"""Files that are either whole or absent: atomic writes, folder hashes, torn-file detection, locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import JsonValue

from harness.records import Record, canonical_json
from memory.errors import DiskFull, RunBusy, StoreError, TornFile

_TEMPORARY = ".tmp-"
_CHUNK_BYTES = 1 << 20


class FileFault(Record):
    """One difference between a folder and its recorded hashes."""

    name: str
    kind: Literal["missing", "torn", "unexpected"]


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part.

    Args:
        path: destination; its folder is created.
        data: the whole content.

    Raises:
        DiskFull: no room; the destination is untouched and the temporary file removed.
        StoreError: any other failure of the file system.
    """
    temporary = path.with_name(temporary_name(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # nothing was created when the folder itself could not be
            temporary.unlink()
        raise file_error(f"writing {path}", error) from error


def write_json(path: Path, value: JsonValue) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, canonical_json(value).encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        TornFile: the file is missing or is not whole JSON; the message names it.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise TornFile(f"{path} is missing; restore it or start the run again") from error
    except ValueError as error:
        raise TornFile(f"{path} is not whole JSON ({error}); it was cut or edited; restore or remove it") from error


def temporary_name(name: str) -> str:
    """A sibling name for content that is not whole yet; carries the writer's process id."""
    return f"{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}-{name}"


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def hash_folder(folder: Path) -> dict[str, str]:
    """SHA-256 of every file under ``folder`` by relative POSIX path; temporary files are left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = ((path.relative_to(folder).as_posix(), path) for path in files)
    return {name: hash_file(path) for name, path in names if not name.startswith(_TEMPORARY)}


def folder_faults(folder: Path, expected: Mapping[str, str]) -> tuple[FileFault, ...]:
    """Compare a folder with recorded hashes.

    Args:
        folder: what is on disk now; may be absent.
        expected: SHA-256 by relative POSIX path.

    Returns:
        One fault per missing, altered or unexpected file, by name; empty when all is whole.
    """
    actual = hash_folder(folder) if folder.is_dir() else {}
    faults = []
    for name in sorted(set(expected) | set(actual)):
        if name not in actual:
            faults.append(FileFault(name=name, kind="missing"))
        elif name not in expected:
            faults.append(FileFault(name=name, kind="unexpected"))
        elif actual[name] != expected[name]:
            faults.append(FileFault(name=name, kind="torn"))
    return tuple(faults)


def publish_folder(source: Path, destination: Path) -> None:
    """Move a finished folder to its final name in one rename, after everything in it is on disk.

    Args:
        source: a folder on the same file system, for example one named by :func:`temporary_name`.
        destination: the final place. When it exists with the same files it is kept and ``source`` removed;
            when it differs (an earlier torn write) it is replaced.

    Raises:
        DiskFull: no room to make the data durable.
        StoreError: any other failure of the file system.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        for path in source.rglob("*"):
            _sync(path)
        _sync(source)
        if destination.exists():
            if hash_folder(destination) == hash_folder(source):
                shutil.rmtree(source)
                return
            aside = destination.with_name(temporary_name(destination.name))
            os.replace(destination, aside)
            os.replace(source, destination)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.replace(source, destination)
        _sync_folder(destination.parent)
    except OSError as error:
        raise file_error(f"publishing {destination}", error) from error


def discard_abandoned(folder: Path, *, older_than_s: float = 3600.0) -> int:
    """Remove temporary files and folders that a killed process left behind.

    Args:
        folder: where to look, not recursively.
        older_than_s: younger ones may belong to a running process and stay.

    Returns:
        How many were removed.
    """
    limit = time.time() - older_than_s
    removed = 0
    for path in folder.glob(f"{_TEMPORARY}*"):
        try:
            if path.stat().st_mtime > limit:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            removed += 1
        except OSError:
            continue  # another process cleaned it first, or it is not ours to remove
    return removed


@contextmanager
def hold_lock(path: Path, *, what: str) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel releases it when the process dies, however it dies.

    Args:
        path: the lock file; created, never removed (removing it would let two holders in).
        what: named in the error, for example ``run abc``.

    Raises:
        RunBusy: another process (or another holder in this one) has it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+")
    except OSError as error:
        raise file_error(f"opening lock {path}", error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise file_error(f"locking {path}", error) from error
            raise RunBusy(_busy_message(handle, what)) from error
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _busy_message(handle: IO[str], what: str) -> str:
    handle.seek(0)
    holder = handle.read().strip() or "unknown"
    return f"{what} is being executed by another process (pid {holder}); wait for it or stop it, then try again"


def file_error(action: str, error: OSError) -> StoreError:
    """The typed error for a failed file operation."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"{action} failed; got {error}; nothing was left behind; free disk space and resume")
    return StoreError(f"{action} failed; got {error}; check the path and its permissions")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    _sync(folder)
