"""Run records: creation, status, identity, and the lock that keeps a run to one process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import JsonValue

from memory import tables
from memory.database import Database, encode, now, read_record
from memory.errors import Conflict, IdentityMismatch, NotFound, StoreError
from memory.files import hold_lock
from memory.records import RunRecord, RunStatus, check_id, is_safe_id
from memory.redaction import redact

_SHOWN_CHARACTERS = 60


class Runs:
    """The runs of one store."""

    def __init__(self, database: Database, folder: Path) -> None:
        """Use ``database``; each run's own files are under ``folder/<run_id>/``."""
        self._database = database
        self._folder = folder

    def folder(self, run_id: str) -> Path:
        """The run's own folder (``home/runs/<run_id>``)."""
        return self._folder / check_id(run_id)

    def create(self, record: RunRecord) -> RunRecord:
        """Store a new run.

        Returns:
            The record as stored: secrets removed, times filled in.

        Raises:
            Conflict: a run with this id exists.
        """
        stamp = now()
        stamped = record.model_copy(update={"created_at": record.created_at or stamp, "updated_at": stamp})
        stored = RunRecord.model_validate(redact(stamped.model_dump(mode="json")))
        with self._database.write(f"creating run {record.run_id}") as connection:
            taken = connection.execute(
                sa.select(tables.runs.c.run_id).where(tables.runs.c.run_id == stored.run_id)
            ).first()
            if taken:
                raise Conflict(f"run {stored.run_id} exists already; resume it, or choose another id")
            connection.execute(
                sa.insert(tables.runs).values(
                    run_id=stored.run_id, status=stored.status, body=encode(stored.model_dump(mode="json"))
                )
            )
        return stored

    def get(self, run_id: str) -> RunRecord:
        """Read one run.

        Raises:
            NotFound: no such run; the message lists some that exist.
        """
        with self._database.read(f"reading run {run_id}") as connection:
            body = connection.execute(sa.select(tables.runs.c.body).where(tables.runs.c.run_id == run_id)).scalar()
        if body is None:
            known = [record.run_id for record in self.list()][-10:]
            lost = ""
            if is_safe_id(run_id) and self.folder(run_id).is_dir():
                lost = f"; its folder {self.folder(run_id)} is there, so the store is not the one it ran with"
            raise NotFound(f"no run {run_id!r} in {self._database.place}; known: {', '.join(known) or 'none'}{lost}")
        return read_record(RunRecord, body)

    def list(self) -> tuple[RunRecord, ...]:
        """All runs, oldest first."""
        with self._database.read("listing runs") as connection:
            bodies = connection.execute(sa.select(tables.runs.c.body).order_by(tables.runs.c.row_id)).scalars().all()
        return tuple(read_record(RunRecord, body) for body in bodies)

    def set_status(self, run_id: str, status: RunStatus, summary: Mapping[str, JsonValue] | None = None) -> RunRecord:
        """Set a run's status, and its summary when one is given.

        Raises:
            NotFound: no such run.
        """
        current = self.get(run_id).model_dump(mode="json")
        current |= {"status": status, "updated_at": now()}
        if summary is not None:
            current["summary"] = redact(dict(summary))
        stored = RunRecord.model_validate(current)
        self._update(stored)
        return stored

    def _update(self, record: RunRecord) -> None:
        body = encode(record.model_dump(mode="json"))
        with self._database.write(f"updating run {record.run_id}") as connection:
            connection.execute(
                sa.update(tables.runs)
                .where(tables.runs.c.run_id == record.run_id)
                .values(status=record.status, body=body)
            )

    def amend(self, run_id: str, changes: Mapping[str, JsonValue]) -> RunRecord:
        """Change recorded settings and keep what they were; the caller holds the run.

        Args:
            run_id: the run.
            changes: new values by dotted key of the run's configuration.

        Raises:
            StoreError: the configuration has no such key.
            NotFound: no such run.
        """
        current = self.get(run_id).model_dump(mode="json")
        stamp = now()
        for key, after in changes.items():
            before = _replace(current["config"], key, after)
            if "config" in current["identity"]:
                _replace(current["identity"]["config"], key, after)
            current["amendments"].append({"key": key, "before": before, "after": after, "changed_at": stamp})
        stored = RunRecord.model_validate(redact(current | {"updated_at": stamp}))
        self._update(stored)
        return stored

    def check_identity(self, run_id: str, identity: Mapping[str, JsonValue]) -> None:
        """Refuse to continue a run under another identity.

        Args:
            run_id: the run to be resumed.
            identity: what the caller is about to run with.

        Raises:
            IdentityMismatch: some keys differ; all are named, dotted.
            NotFound: no such run.
        """
        stored = _flat(self.get(run_id).identity)
        offered = _flat(redact(dict(identity)))
        keys = tuple(sorted(key for key in stored.keys() | offered.keys() if stored.get(key) != offered.get(key)))
        if keys:
            lines = (f"{key}: recorded {_shown(stored, key)}, now {_shown(offered, key)}" for key in keys)
            raise IdentityMismatch(
                f"run {run_id} cannot continue under another identity; {len(keys)} keys differ: "
                + "; ".join(lines)
                + "; resume it with the recorded settings, or start a new run",
                keys,
            )

    def hold(self, run_id: str) -> AbstractContextManager[None]:
        """Hold the run for this process; released at exit, and by the kernel when the process is killed.

        Raises:
            RunBusy: (on entering) another process executes this run.
        """
        return hold_lock(self.folder(run_id) / "lock", what=f"run {run_id}")


def _replace(config: dict[str, Any], key: str, value: JsonValue) -> JsonValue:
    """Set a dotted key that exists; returns what it was."""
    *path, last = key.split(".")
    for name in path:
        config = config.get(name, {})
    if last not in config:
        raise StoreError(f"cannot change {key!r} of a run; its recorded configuration has no such key")
    before: JsonValue = config[last]
    config[last] = value
    return before


def _flat(value: JsonValue, prefix: str = "") -> dict[str, str]:
    """Leaves by dotted name, as JSON text so that 1, 1.0, "1" and null stay apart; empty maps are leaves."""
    if isinstance(value, dict) and value:
        leaves: dict[str, str] = {}
        for key, item in value.items():
            leaves |= _flat(item, f"{prefix}.{key}" if prefix else key)
        return leaves
    return {prefix: encode(value)}


def _shown(leaves: Mapping[str, str], key: str) -> str:
    text = leaves.get(key, "(absent)")
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
