"""Where harnesses, checkpoints and pairs come from, and the gate decisions that made them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from pydantic import JsonValue

from harness.model import Harness
from harness.records import Record
from memory import tables
from memory.database import Database, encode, now, read_record
from memory.errors import Conflict, NotFound, StoreError, TornFile
from memory.files import FileFault, folder_faults, hash_folder, publish_folder
from memory.records import CheckpointRecord, DecisionRecord, HarnessVersion, PairRecord, check_id
from memory.redaction import redact

_R = TypeVar("_R", bound=Record)


class Lineage:
    """Harness versions, checkpoints, pairs and decisions of one store."""

    def __init__(self, database: Database, checkpoints_folder: Path) -> None:
        """Use ``database``; weights are under ``checkpoints_folder/<checkpoint_id>/``."""
        self._database = database
        self._folder = checkpoints_folder

    # Harness versions

    def save_harness(
        self, harness: Harness, parents: Sequence[str] = (), note: str = "", *, run_id: str | None = None
    ) -> str:
        """Store a version once; a stored one keeps its first parents and note.

        Args:
            harness: the version.
            parents: harness ids it was made from; they must be stored.
            note: why it exists.
            run_id: also list it under this run.

        Returns:
            Its id.

        Raises:
            NotFound: a parent is not stored.
            StoreError: the text holds something that looks like a credential.
        """
        with self._database.write(f"saving harness {harness.harness_id}") as connection:
            self._insert_harness(connection, harness, parents, note, run_id)
        return harness.harness_id

    def harness(self, harness_id: str) -> Harness:
        """Read a version's content.

        Raises:
            NotFound: no such version.
        """
        with self._database.read(f"reading harness {harness_id}") as connection:
            query = sa.select(tables.harnesses.c.body).where(tables.harnesses.c.harness_id == harness_id)
            body = connection.execute(query).scalar()
        if body is None:
            raise NotFound(f"no harness {harness_id!r} in {self._database.place}; list them with `cohelix harness log`")
        return read_record(Harness, body)

    def harnesses(self, run_id: str | None = None) -> tuple[HarnessVersion, ...]:
        """Versions in the order they were stored; of one run, in the order that run met them."""
        query = sa.select(tables.harnesses.c.version).order_by(tables.harnesses.c.row_id)
        if run_id is not None:
            links = tables.run_harnesses
            query = (
                sa.select(tables.harnesses.c.version)
                .join(links, links.c.harness_id == tables.harnesses.c.harness_id)
                .where(links.c.run_id == run_id)
                .order_by(links.c.row_id)
            )
        return self._list(query, HarnessVersion, "listing harnesses")

    # Checkpoints

    def checkpoint_folder(self, checkpoint_id: str) -> Path:
        """Where a checkpoint's files are (``home/checkpoints/<checkpoint_id>``)."""
        return self._folder / check_id(checkpoint_id)

    def save_checkpoint(self, record: CheckpointRecord, *, source: Path | None = None) -> CheckpointRecord:
        """Record a checkpoint and the hash of each of its files.

        Args:
            record: what it is; ``files`` is computed from the folder when empty.
            source: a finished folder on the same file system to move into place first; without it the
                files must already be in :meth:`checkpoint_folder`.

        Returns:
            The record as stored; the first one when the id was stored before.

        Raises:
            TornFile: the files on disk are not those of the record, or there are none.
        """
        folder = self.checkpoint_folder(record.checkpoint_id)
        if source is not None:
            publish_folder(source, folder)
        files = record.files or (hash_folder(folder) if folder.is_dir() else {})
        _refuse_faults(record.checkpoint_id, folder, files)
        stamped = record.model_copy(update={"files": files, "created_at": record.created_at or now()})
        row = {"checkpoint_id": record.checkpoint_id, "body": _body(stamped)}
        with self._database.write(f"saving checkpoint {record.checkpoint_id}") as connection:
            self._database.insert_once(connection, tables.checkpoints, [row])
        stored = self.checkpoint(record.checkpoint_id)
        if stored.files != files:
            raise Conflict(f"checkpoint {record.checkpoint_id} is stored with other files; give it a content id")
        return stored

    def checkpoint(self, checkpoint_id: str) -> CheckpointRecord:
        """Read a checkpoint's record.

        Raises:
            NotFound: no such checkpoint.
        """
        with self._database.read(f"reading checkpoint {checkpoint_id}") as connection:
            query = sa.select(tables.checkpoints.c.body).where(tables.checkpoints.c.checkpoint_id == checkpoint_id)
            body = connection.execute(query).scalar()
        if body is None:
            raise NotFound(f"no checkpoint {checkpoint_id!r} in {self._database.place}")
        return read_record(CheckpointRecord, body)

    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """All checkpoints in the order they were stored."""
        query = sa.select(tables.checkpoints.c.body).order_by(tables.checkpoints.c.row_id)
        return self._list(query, CheckpointRecord, "listing checkpoints")

    def checkpoint_faults(self, checkpoint_id: str) -> tuple[FileFault, ...]:
        """Files of a checkpoint that are missing, torn or unexpected; empty when it is whole."""
        record = self.checkpoint(checkpoint_id)
        return folder_faults(self.checkpoint_folder(checkpoint_id), record.files)

    def verify_checkpoint(self, checkpoint_id: str) -> Path:
        """Return the folder of a whole checkpoint.

        Raises:
            TornFile: files are missing, torn or unexpected; all are named.
            NotFound: no such checkpoint.
        """
        folder = self.checkpoint_folder(checkpoint_id)
        _refuse_faults(checkpoint_id, folder, self.checkpoint(checkpoint_id).files)
        return folder

    # Pairs and decisions

    def save_pair(self, pair: PairRecord) -> str:
        """Store a pair outside a decision, for example the first of a run; returns its id.

        Raises:
            NotFound: its harness, checkpoint or a parent is not stored.
        """
        with self._database.write(f"saving pair {pair.pair_id}") as connection:
            self._insert_pair(connection, pair)
        return pair.pair_id

    def commit(
        self,
        decision: DecisionRecord,
        harness: Harness,
        pair: PairRecord,
        *,
        parents: Sequence[str] | None = None,
        note: str = "",
    ) -> str:
        """Store a decision, the candidate and the resulting pair in one transaction: all or nothing.

        Args:
            decision: the gate's word; one per run, round and name.
            harness: the candidate, kept whatever the outcome so that it can be shown and compared.
            pair: the pair in force after the decision (with the candidate if accepted, else the incumbent).
            parents: the candidate's parents; the decision's incumbent by default.
            note: the candidate's note.

        Returns:
            The pair's id. Committing the same decision again changes nothing.

        Raises:
            Conflict: this round already has another decision.
            NotFound: the incumbent, the checkpoint or a parent is not stored.
            StoreError: decision, harness and pair do not belong together.
        """
        _refuse_mismatch(decision, harness, pair)
        default = (decision.incumbent_id,) if decision.incumbent_id != harness.harness_id else ()
        with self._database.write(f"committing round {decision.round_number} of run {decision.run_id}") as connection:
            chosen = default if parents is None else parents
            self._insert_harness(connection, harness, chosen, note, decision.run_id)
            self._insert_pair(connection, pair)
            self._insert_decision(connection, decision)
        return pair.pair_id

    def pairs(self, run_id: str) -> tuple[PairRecord, ...]:
        """A run's pairs in the order they came into force."""
        query = sa.select(tables.pairs.c.body).where(tables.pairs.c.run_id == run_id).order_by(tables.pairs.c.row_id)
        return self._list(query, PairRecord, f"listing pairs of run {run_id}")

    def decisions(self, run_id: str) -> tuple[DecisionRecord, ...]:
        """A run's decisions in the order they were made."""
        columns = tables.decisions.c
        query = sa.select(columns.body).where(columns.run_id == run_id).order_by(columns.row_id)
        return self._list(query, DecisionRecord, f"listing decisions of run {run_id}")

    # Inside one transaction

    def _insert_harness(
        self, connection: sa.Connection, harness: Harness, parents: Sequence[str], note: str, run_id: str | None
    ) -> None:
        content: JsonValue = harness.model_dump(mode="json")
        if redact(content) != content:
            # Redacting would change the content that the id is the hash of.
            raise StoreError(
                f"harness {harness.harness_id} holds something that looks like a credential; remove it from its texts"
            )
        for parent in parents:
            _require(connection, tables.harnesses.c.harness_id, parent, "parent harness")
        version = HarnessVersion(
            harness_id=harness.harness_id, family=harness.family, parents=tuple(parents), note=note, created_at=now()
        )
        row = {"harness_id": harness.harness_id, "body": encode(content), "version": _body(version)}
        self._database.insert_once(connection, tables.harnesses, [row])
        if run_id is not None:
            link = {"run_id": run_id, "harness_id": harness.harness_id}
            self._database.insert_once(connection, tables.run_harnesses, [link])

    def _insert_pair(self, connection: sa.Connection, pair: PairRecord) -> None:
        _require(connection, tables.harnesses.c.harness_id, pair.harness_id, "harness of the pair")
        _require(connection, tables.checkpoints.c.checkpoint_id, pair.checkpoint_id, "checkpoint of the pair")
        columns = tables.pairs.c
        known = set(connection.execute(sa.select(columns.pair_id).where(columns.run_id == pair.run_id)).scalars())
        if pair.pair_id in known:
            return
        missing = [parent for parent in pair.parents if parent not in known]
        if missing:
            raise NotFound(f"parent pairs {missing} are not stored in run {pair.run_id}; store them first")
        row = {"run_id": pair.run_id, "pair_id": pair.pair_id, "checkpoint_id": pair.checkpoint_id,
               "harness_id": pair.harness_id, "body": _body(pair)}  # fmt: skip
        self._database.insert_once(connection, tables.pairs, [row])

    def _insert_decision(self, connection: sa.Connection, decision: DecisionRecord) -> None:
        columns = tables.decisions.c
        row = {"run_id": decision.run_id, "round_number": decision.round_number, "name": decision.name,
               "body": _body(decision)}  # fmt: skip
        self._database.insert_once(connection, tables.decisions, [row])
        held = connection.execute(
            sa.select(columns.body).where(
                columns.run_id == decision.run_id,
                columns.round_number == decision.round_number,
                columns.name == decision.name,
            )
        ).scalar()
        if held != row["body"]:
            raise Conflict(
                f"run {decision.run_id} round {decision.round_number} already has another {decision.name!r} decision; "
                "nothing was stored"
            )

    def _list(self, query: sa.Select[str], kind: type[_R], action: str) -> tuple[_R, ...]:
        with self._database.read(action) as connection:
            bodies = connection.execute(query).scalars().all()
        return tuple(read_record(kind, body) for body in bodies)


def _body(record: Record) -> str:
    return encode(redact(record.model_dump(mode="json")))


def _require(connection: sa.Connection, column: sa.Column[str], value: str, what: str) -> None:
    if connection.execute(sa.select(column).where(column == value)).first() is None:
        raise NotFound(f"{what} {value!r} is not stored; store it before what depends on it")


def _refuse_faults(checkpoint_id: str, folder: Path, files: dict[str, str]) -> None:
    faults = folder_faults(folder, files)
    if faults or not files:
        named = ", ".join(f"{fault.name} ({fault.kind})" for fault in faults) or "no files at all"
        raise TornFile(f"checkpoint {checkpoint_id} in {folder} is not whole: {named}; restore it or train it again")


def _refuse_mismatch(decision: DecisionRecord, harness: Harness, pair: PairRecord) -> None:
    expected_id = decision.candidate_id if decision.outcome == "accept" else decision.incumbent_id
    faults = {
        "candidate": (decision.candidate_id, harness.harness_id),
        "run": (decision.run_id, pair.run_id),
        "checkpoint": (decision.checkpoint_id, pair.checkpoint_id),
        "harness of the pair": (expected_id, pair.harness_id),
    }
    for name, (expected, got) in faults.items():
        if expected != got:
            raise StoreError(
                f"cannot commit an {decision.outcome} decision: {name} should be {expected!r}, got {got!r}"
            )
