"""The same store on a real Postgres server, where its programs and the driver are installed."""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.model import Harness, Protocol
from harness.records import Scored, Trace
from memory.errors import Conflict, StoreError
from memory.records import CheckpointRecord, DecisionRecord, PairRecord, RunRecord, StepRecord
from memory.store import Store

pytest.importorskip("psycopg")
if not (shutil.which("initdb") and shutil.which("pg_ctl")):
    pytest.skip("Postgres' initdb and pg_ctl are not on the path", allow_module_level=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of its own on a Unix socket, without TCP."""
    user = "postgres" if os.getuid() == 0 else None  # the server refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # socket paths must be short
    try:
        if user:
            shutil.chown(folder, user)
        data = str(folder / "data")

        def run(*command: str) -> None:
            done = subprocess.run(command, user=user, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"Postgres does not run here: {done.stderr[-300:]}")

        run("initdb", "-D", data, "-A", "trust", "-U", "ada", "-E", "UTF8", "--no-locale", "--no-sync")
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", f"-k {folder} -c listen_addresses=''", "start")
        try:
            yield f"postgresql+psycopg://ada@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def trace(number: int) -> Trace:
    return Trace(
        trace_id=f"t{number}", task_id="k", split="train", policy_id="p", harness_id="h", purpose="rollout",
        completion=f"a\x00b {number}", finish_reason="stop", verdict=Scored(parts={"exact": 0.0}, reward=0.0),
    )  # fmt: skip


def test_every_kind_of_record_round_trips(url: str, tmp_path: Path) -> None:
    first = Harness(family="metro", input_template="{question}", output_contract="Answer.")
    second = first.model_copy(update={"protocol": Protocol(execution="Go hop by hop.")})
    with Store.open(tmp_path, url) as store:
        run = store.runs.create(RunRecord(run_id="r", strategy="vace", suite="metro", config={}, identity={"seed": 1}))
        assert store.runs.get("r") == run
        ledger = store.ledger("r")
        assert ledger.record("k", kind="call", result=None) is None and ledger.entry("k") is not None
        assert ledger.record("z", kind="call", result=0.0) == 0.0 == ledger.record("z", kind="call", result=1.0)
        assert store.traces.add("r", (trace(n) for n in range(700))) == 700
        assert store.traces.add("r", [trace(1)]) == 0
        assert store.traces.find("r", limit=1, after="t0") == (trace(1),)
        step = store.steps.record(StepRecord(run_id="r", number=0, node="gate"))
        assert store.steps.list("r") == (step,)
        (store.home / "checkpoints" / "c1").mkdir()
        (store.home / "checkpoints" / "c1" / "w").write_bytes(b"w")
        store.lineage.save_checkpoint(CheckpointRecord(checkpoint_id="c1"))
        store.lineage.save_harness(first, run_id="r")
        decision = DecisionRecord(
            run_id="r", round_number=0, outcome="accept", checkpoint_id="c1", incumbent_id=first.harness_id,
            candidate_id=second.harness_id,
        )  # fmt: skip
        pair = PairRecord(run_id="r", checkpoint_id="c1", harness_id=second.harness_id)
        for _ in range(2):
            store.lineage.commit(decision, second, pair)
        with pytest.raises(Conflict):
            store.lineage.commit(decision.model_copy(update={"reason": "other"}), second, pair)
    with Store.open(tmp_path, url) as store:
        assert store.lineage.decisions("r") == (decision,) and store.lineage.pairs("r") == (pair,)


def test_racing_writers_all_get_the_first_result(url: str, tmp_path: Path) -> None:
    with Store.open(tmp_path, url) as store:
        results: list[object] = []
        ledger = store.ledger("race")
        threads = [
            threading.Thread(target=lambda n=n: results.append(ledger.record("k", kind="call", result=n)))
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 6 and set(results) == {ledger.find("k")}


def test_a_server_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="reading the store's version failed"):
        Store.open(tmp_path, f"postgresql+psycopg://ada@/postgres?host={tmp_path}")
