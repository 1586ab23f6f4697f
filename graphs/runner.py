"""Start and resume runs: identity, lock, checkpointer, status; the graph does the rest."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import ERROR
from langgraph.checkpoint.sqlite import SqliteSaver
from pydantic import JsonValue

from evals.suites.registry import build_suite
from graphs.assembly import assemble, check_keys, run_identity, work_ledger
from graphs.config import RunConfig
from graphs.events import Listener, ignore
from graphs.identity import SHARED_SCOPE
from graphs.limits import changed_limits, named_limits, with_limits
from graphs.loading import load_config, parse_config
from graphs.plan import refuse_too_few_tasks
from graphs.recorder import Recorder
from graphs.registry import load_build
from graphs.report import closing_report
from graphs.single import CLI_PURPOSE
from graphs.state import NOTHING_SPENT
from graphs.work import Work
from harness.errors import UserError
from harness.records import Record
from memory.files import write_atomic
from memory.records import RunRecord, RunStatus, check_id
from memory.redaction import redact
from memory.store import DATABASE_NAME, Store
from policy.source import refuse_missing_weights

CONFIG_NAME = "config.yaml"
GRAPH_NAME = "graph.db"
LABEL_CHARACTERS = 40
"""Of a configuration's file name in a made-up run id."""


class RunResult(Record):
    """How a sitting ended."""

    run_id: str
    status: RunStatus
    state: dict[str, JsonValue]
    """The graph's final state: ids, counters, decisions."""


def start(
    config: RunConfig, *, home: Path, run_id: str = "", label: str = "run", listener: Listener = ignore
) -> RunResult:
    """Create a run and execute it to its end.

    Args:
        config: the resolved configuration.
        home: folder of all state.
        run_id: name of the new run; empty makes one from the time and ``label``.
        label: words for the made-up name.
        listener: takes progress events.

    Raises:
        Conflict: a run with this id exists.
    """
    _check_name(run_id)
    check_keys(config)
    refuse_missing_weights(config.policy)
    suite = build_suite(config.suite)
    refuse_too_few_tasks(config, suite)
    identity = run_identity(config)
    with Store.open(home) as store:
        record = store.runs.create(
            RunRecord(
                run_id=run_id or _fresh_id(label),
                strategy=config.strategy.type,
                suite=suite.name,
                config=config.model_dump(mode="json"),
                identity=identity.model_dump(mode="json"),
            )
        )
        write_atomic(config_file(store, record.run_id), _as_yaml(record.config))
        return _execute(store, record, config, listener)


def resume(
    run_id: str,
    *,
    home: Path,
    listener: Listener = ignore,
    expected: RunConfig | None = None,
    overrides: Sequence[str] = (),
) -> RunResult:
    """Go on with a run from its last finished piece of work.

    Args:
        run_id: the run.
        home: folder of all state.
        listener: takes progress events.
        expected: refuse unless the run's own configuration is this one.
        overrides: new values of the limits (:data:`graphs.limits.LIMITS`), which are recorded; refuse unless all
            others change nothing.

    Raises:
        IdentityMismatch: config, suite, weights or code differ from the recorded ones; names the keys.
        RunBusy: another process executes the run.
        UserError: the run's configuration file is torn, or limits of a finished run would change.
    """
    if not (home / DATABASE_NAME).exists():  # a wrong --home must not become a home
        raise UserError(f"no run {run_id!r}", got=f"no store in {home}", do="name the run's --home")
    with Store.open(home) as store:
        record = store.runs.get(run_id)
        config = expected or _own_config(store, record, overrides)
        check_keys(config)
        same = with_limits(config, record.config, named_limits(overrides))
        store.runs.check_identity(run_id, run_identity(same).model_dump(mode="json"))
        record = _amended(store, record, config)
        is_over = record.status == "finished"
        return _read_again(store, record, config) if is_over else _execute(store, record, config, listener)


def _check_name(run_id: str) -> None:
    if not run_id:
        return  # a name is made up
    if run_id == CLI_PURPOSE or run_id.startswith(SHARED_SCOPE):
        raise UserError(
            "cannot name a run so",
            got=repr(run_id),
            expected=f"neither {CLI_PURPOSE!r} nor a name that begins {SHARED_SCOPE!r}, which are scopes of other work",
        )
    check_id(run_id)


def config_file(store: Store, run_id: str) -> Path:
    """The readable copy of a run's configuration; editing it makes a resume refuse."""
    return store.runs.folder(run_id) / CONFIG_NAME


def _own_config(store: Store, record: RunRecord, overrides: Sequence[str]) -> RunConfig:
    file = config_file(store, record.run_id)
    if not file.exists():  # a kill fell between the run's row and the file
        write_atomic(file, _as_yaml(record.config))
    try:
        return load_config(file, overrides)
    except UserError as error:
        if overrides:
            raise
        raise UserError(f"{error}", do=f"restore {file}, or remove it to resume from the recorded copy") from None


def _amended(store: Store, record: RunRecord, config: RunConfig) -> RunRecord:
    """Record the limits that this resume changes."""
    changes = changed_limits(config, record.config)
    if not changes:
        return record
    if record.status == "finished":
        raise UserError(
            f"run {record.run_id} is finished; its limits cannot change",
            got=", ".join(f"{key}={value}" for key, value in changes.items()),
            do="start a new run with them",
        )
    file = config_file(store, record.run_id)
    with store.runs.hold(record.run_id):
        file.unlink(missing_ok=True)  # a kill before the last line leaves no file, and a resume writes it again
        amended = store.runs.amend(record.run_id, changes)
        write_atomic(file, _as_yaml(amended.config))
    return amended


def _read_again(store: Store, record: RunRecord, config: RunConfig) -> RunResult:
    """A finished run as it is; its report files are written again, and nothing else is touched."""
    summary: dict[str, Any] = record.summary or {}
    with store.runs.hold(record.run_id):
        ledger = work_ledger(config, store, record.run_id)
        result = Work(ledger, Recorder(store.steps, record.run_id)).result(summary["state"]["report_key"])
        closing_report(store, record.run_id, config, ledger, result)
    return RunResult(run_id=record.run_id, status="finished", state=summary["state"])


def _execute(store: Store, record: RunRecord, config: RunConfig, listener: Listener) -> RunResult:
    with store.runs.hold(record.run_id):
        recorder = Recorder(store.steps, record.run_id, listener)
        recorder.tell("run_started", _opening(record, config))
        has_failed = "error" in (record.summary or {})  # the error of an earlier sitting is not this one's
        store.runs.set_status(record.run_id, "running", {} if has_failed else None)
        try:
            with assemble(config, store, record.run_id, recorder) as context:
                state = _drive(store, record.run_id, config, context)
                result = context.crew.result(str(state["report_key"]))
        except BaseException as error:
            status: RunStatus = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            _note_end(store, record.run_id, status, error)
            raise
        report = closing_report(store, record.run_id, config, work_ledger(config, store, record.run_id), result)
        store.runs.set_status(record.run_id, "finished", {"state": state, "report": report})
        recorder.tell("run_finished", f"run {record.run_id} finished: {state.get('stop_reason', '')}")
    return RunResult(run_id=record.run_id, status="finished", state=state)


def _opening(record: RunRecord, config: RunConfig) -> str:
    changes = "".join(f"; {was.key} {json.dumps(was.before)} -> {json.dumps(was.after)}" for was in record.amendments)
    return f"run {record.run_id} ({config.strategy.condition}), seed {config.seed}{changes}"


def _drive(store: Store, run_id: str, config: RunConfig, context: Any) -> dict[str, JsonValue]:
    """Run the graph from its last checkpoint to its end and return the final state."""
    with _checkpointer(store.runs.folder(run_id) / GRAPH_NAME) as saver:
        graph = load_build(config.strategy.type)(config).compile(checkpointer=saver)
        limit = 20 * (config.strategy.measured_units + 2)
        settings: Any = {"configurable": {"thread_id": run_id}, "recursion_limit": limit}
        has_begun = graph.get_state(settings).created_at is not None
        for _ in graph.stream(
            None if has_begun else {"spent": NOTHING_SPENT}, settings, context=context, durability="sync"
        ):
            pass
        return dict(graph.get_state(settings).values)


class _Saver(SqliteSaver):
    """LangGraph keeps the text of a node's error; this keeps it without secrets, as the store does."""

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        clean = [(channel, redact(repr(value)) if channel == ERROR else value) for channel, value in writes]
        super().put_writes(config, clean, task_id, task_path)


@contextmanager
def _checkpointer(path: Path) -> Iterator[SqliteSaver]:
    try:
        with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            yield _Saver(connection)
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"the graph's checkpoints in {path} cannot be used",
            got=f"{type(error).__name__}: {error}",
            do=f"free disk space if it is full; otherwise remove {path} and resume: finished work is in the ledger",
        ) from error


def _note_end(store: Store, run_id: str, status: RunStatus, error: BaseException) -> None:
    """Record how a sitting ended; a store that cannot be written must not hide the first error."""
    try:
        store.runs.set_status(run_id, status, {"error": f"{type(error).__name__}: {error}"})
    except Exception as second:  # the store boundary, on the way out of another failure
        error.add_note(f"the run's status could not be written either: {second}")


def _fresh_id(label: str) -> str:
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in label[:LABEL_CHARACTERS])
    safe = "".join(letters).strip("-") or "run"
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{safe}-{secrets.token_hex(2)}"


def _as_yaml(config: dict[str, JsonValue]) -> bytes:
    parse_config(config, source="the resolved configuration")  # what is written can be read back
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode()
