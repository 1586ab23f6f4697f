"""A real process killed with SIGKILL in the middle of a write leaves all of it or none."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memory.errors import NotFound
from memory.records import PairRecord
from memory.store import Store

_COMMIT = """
import os, signal, sys
import sqlalchemy as sa
from harness.model import Harness, Protocol
from memory.files import temporary_name, write_atomic
from memory.records import CheckpointRecord, DecisionRecord, PairRecord
from memory.store import Store

home, kill_at = sys.argv[1], sys.argv[2]
store = Store.open(home)
source = store.home / "checkpoints" / temporary_name("c1")
write_atomic(source / "weights.bin", b"w" * 1000)
store.lineage.save_checkpoint(CheckpointRecord(checkpoint_id="c1"), source=source)
seed = Harness(family="metro", input_template="{question}", output_contract="Answer.")
candidate = seed.model_copy(update={"protocol": Protocol(execution="Go hop by hop.")})
store.lineage.save_harness(seed, run_id="r")

inserts = 0
def before(connection, cursor, statement, parameters, context, executemany):
    global inserts
    if statement.startswith("INSERT"):
        inserts += 1
        if kill_at == f"insert {inserts}":
            os.kill(os.getpid(), signal.SIGKILL)
sa.event.listen(store._database.engine, "before_cursor_execute", before)
if kill_at == "before commit":
    sa.event.listen(store._database.engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))

store.lineage.commit(
    DecisionRecord(run_id="r", round_number=0, outcome="accept", checkpoint_id="c1", incumbent_id=seed.harness_id,
                   candidate_id=candidate.harness_id, incumbent_score=0.25, candidate_score=0.5),
    candidate,
    PairRecord(run_id="r", checkpoint_id="c1", harness_id=candidate.harness_id),
)
os.kill(os.getpid(), signal.SIGKILL)  # after the commit returned
"""


def _contents(home: Path) -> tuple[int, int, int]:
    """Numbers of harness versions, pairs and decisions of run r."""
    with Store.open(home) as store:
        lineage = store.lineage
        assert store.verify_checkpoint("c1")
        return len(lineage.harnesses("r")), len(lineage.pairs("r")), len(lineage.decisions("r"))


@pytest.mark.parametrize("kill_at", ["insert 1", "insert 2", "insert 3", "insert 4", "before commit"])
def test_a_kill_inside_a_commit_leaves_none_of_it(tmp_path: Path, kill_at: str) -> None:
    # The four inserts are: harness, its link to the run, pair, decision.
    done = subprocess.run([sys.executable, "-c", _COMMIT, str(tmp_path), kill_at], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert _contents(tmp_path) == (1, 0, 0)  # the seed harness alone
    done = subprocess.run([sys.executable, "-c", _COMMIT, str(tmp_path), "never"], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert _contents(tmp_path) == (2, 1, 1)  # the node ran again


def test_a_kill_right_after_a_commit_leaves_all_of_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _COMMIT, str(tmp_path), "never"], capture_output=True, check=False)
    assert _contents(tmp_path) == (2, 1, 1)


_WORK = """
import sys
from memory.store import Store
store = Store.open(sys.argv[1])
ledger = store.ledger("r")
for number in range(int(sys.argv[2]), 100_000):
    ledger.record(f"k{number}", kind="call", result={"number": number, "text": str(number % 10) * 20_000})
    print(number, flush=True)
"""


def test_kills_at_random_moments_lose_no_acknowledged_work_and_leave_no_partial_entry(tmp_path: Path) -> None:
    chance = random.Random(20260917)
    acknowledged = -1
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", _WORK, str(tmp_path), str(acknowledged + 1)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(chance.uniform(0.05, 0.4))
        child.kill()
        lines = child.stdout.read().split("\n")
        child.stdout.close()
        child.wait()
        whole = [line for line in lines[:-1] if line]  # the last piece may be a cut number
        acknowledged = int(whole[-1]) if whole else acknowledged + 1
        with Store.open(tmp_path) as store:
            entries = list(store.ledger("r").entries())
        # Every acknowledged entry is there, at most one more was durable before its acknowledgement.
        assert len(entries) in (acknowledged + 1, acknowledged + 2)
        for number, entry in enumerate(entries):
            assert entry.result == {"number": number, "text": str(number % 10) * 20_000}
        acknowledged = len(entries) - 1
    assert acknowledged > 8


_PUBLISH = """
import os, signal, sys
from memory import files
from memory.records import CheckpointRecord
from memory.store import Store
store = Store.open(sys.argv[1])
source = store.home / "checkpoints" / files.temporary_name("c1")
files.write_atomic(source / "weights.bin", b"w" * 1000)
real = os.replace
def replace(a, b):
    if sys.argv[2] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(a, b)
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace
store.lineage.save_checkpoint(CheckpointRecord(checkpoint_id="c1"), source=source)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_around_the_rename_of_a_checkpoint_leaves_a_store_that_can_save_it_again(
    tmp_path: Path, moment: str
) -> None:
    done = subprocess.run([sys.executable, "-c", _PUBLISH, str(tmp_path), moment], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "checkpoints" / "c1"
    assert folder.exists() == (moment == "after")
    with Store.open(tmp_path) as store, pytest.raises(NotFound):
        store.lineage.checkpoint("c1")  # files first, then the row: a row never points at nothing
    done = subprocess.run([sys.executable, "-c", _COMMIT, str(tmp_path), "never"], capture_output=True, check=False)
    assert _contents(tmp_path) == (2, 1, 1)
    assert folder.exists()
    assert PairRecord(run_id="r", checkpoint_id="c1", harness_id="h").pair_id.startswith("pair-")
