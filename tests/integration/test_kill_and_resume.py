"""SIGKILL a real run at chosen writes, resume it, and compare with the run that nobody disturbed."""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from memory.store import Store

KILLED = -signal.SIGKILL
NODES = [
    "seed", "baseline", "train", "diagnose", "propose", "gate", "commit",
    "train", "diagnose", "propose", "gate", "commit", "select", "report",
]  # fmt: skip

# One death per sitting, each time before the second graph checkpoint of the sitting: the first one closes the node
# that was redone. So every node is killed after its work and before its state is saved.
EVERY_NODE = {"at": "graph", "nth": 2, "when": "before"}
# One death per sitting, in the order in which a run reaches these writes; ``nth`` counts within the sitting.
KILLS = [
    # the run exists and its configuration file does not
    {"at": "run", "nth": 1, "when": "after"},
    # training: an update is made and the in-block checkpoint not noted
    {"at": "ledger", "kind": "block_progress", "nth": 1, "when": "before"},
    # rollout: the second batch is sampled and not recorded
    {"at": "ledger", "kind": "rollout_batch", "nth": 1, "when": "before"},
    # the block ended and is not noted; it is noted and its checkpoint is not in the lineage
    {"at": "ledger", "kind": "training_block", "nth": 1, "when": "before"},
    {"at": "checkpoint", "nth": 1, "when": "before"},
    # gate: the incumbent is measured and the candidate not; the decision is made and not recorded
    {"at": "ledger", "kind": "evaluation_batch", "nth": 2, "when": "before"},
    {"at": "ledger", "kind": "gate.judge", "nth": 1, "when": "before"},
    # commit: just before and just after its transaction
    {"at": "commit", "nth": 1, "when": "before"},
    {"at": "commit", "nth": 1, "when": "after"},
    # the next block: a batch is recorded and not trained on; its traces are stored and its checkpoint is not
    {"at": "ledger", "kind": "rollout_batch", "nth": 1, "when": "after"},
    {"at": "traces", "nth": 1, "when": "after"},
    # a step's row is written and the graph's checkpoint is not
    {"at": "step", "nth": 2, "when": "after"},
]


def name_of(die):
    return "-".join(str(value) for value in die.values())


@pytest.fixture(scope="module")
def sittings(bench, unbroken):
    """All runs of this module, two processes at a time; tests take their futures by name."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        jobs: dict[str, Future] = {
            "every-node": pool.submit(_die_at_every_node, bench),
            "again": pool.submit(bench.run, "again"),
            "other-seed": pool.submit(bench.run, "other-seed", "--set", "seed=1"),
            "writes": pool.submit(_die_at_each_write, bench),
        }
        yield jobs


def _die_at_every_node(bench):
    """Resume until the run ends, dying again in every sitting while the write is reached; returns all sittings."""
    done = [bench.run("every-node", die=EVERY_NODE)]
    while done[-1].returncode == KILLED and len(done) < 30:
        done.append(bench.resume("every-node", die=EVERY_NODE))
    return done


def _die_at_each_write(bench):
    done = [bench.run("writes", die=KILLS[0])]
    for die in KILLS[1:]:
        done.append(bench.resume("writes", die=die))
    return [*done, bench.resume("writes")]


def test_the_unbroken_run_gates_trains_and_reports(unbroken):
    assert unbroken["nodes"] == NODES
    assert len(unbroken["decisions"]) == 2
    assert len({pair["checkpoint_id"] for pair in unbroken["state"]["pairs"]}) == 3


def test_the_same_seed_twice_gives_the_same_weights_and_state(bench, unbroken, sittings):
    assert sittings["again"].result().returncode == 0
    assert bench.outcome("again") == unbroken


def test_another_seed_gives_other_weights(bench, unbroken, sittings):
    assert sittings["other-seed"].result().returncode == 0
    assert bench.outcome("other-seed")["weights"] != unbroken["weights"]


def test_a_kill_at_every_node_before_its_state_is_saved_changes_nothing(bench, unbroken, sittings):
    done = sittings["every-node"].result()
    assert done[-1].returncode == 0, done[-1].stderr
    assert [sitting.returncode for sitting in done[:-1]] == [KILLED] * (len(done) - 1)
    assert len(done) > len(NODES)
    assert bench.outcome("every-node") == unbroken


@pytest.mark.parametrize("number", range(len(KILLS)), ids=[name_of(die) for die in KILLS])
def test_the_process_was_killed_at_this_write(sittings, number):
    sitting = sittings["writes"].result()[number]
    assert sitting.returncode == KILLED, sitting.stderr


def test_kills_during_rollout_training_gate_and_commit_change_nothing(bench, unbroken, sittings):
    last = sittings["writes"].result()[-1]
    assert last.returncode == 0, last.stderr
    assert bench.outcome("writes") == unbroken


def test_the_graphs_own_checkpoints_may_be_lost_whole(bench, unbroken):
    """Correctness rests on the work ledger: without graph.db every node runs again and finds its work."""
    die = {"at": "commit", "nth": 2, "when": "before"}
    assert bench.run("no-graph", die=die).returncode == KILLED
    for file in (bench.folder / "no-graph" / "runs" / "r").glob("graph.db*"):
        file.unlink()
    done = bench.resume("no-graph")
    assert done.returncode == 0, done.stderr
    assert bench.outcome("no-graph") == unbroken


def test_finished_work_is_not_repeated_after_a_kill(bench, unbroken):
    die = {"at": "commit", "nth": 2, "when": "after"}
    assert bench.run("repeat", die=die).returncode == KILLED
    before = _ledger_rows(bench, "repeat")
    assert bench.resume("repeat").returncode == 0
    after = _ledger_rows(bench, "repeat")
    # what was recorded stays as it was, to the time of its recording; only new keys came
    assert after[: len(before)] == before
    assert len(after) == len(_ledger_rows(bench, "unbroken"))


def test_resuming_a_finished_run_changes_nothing_and_shows_its_report(bench, unbroken):
    done = bench.resume("unbroken")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"]["status"] == "finished"
    assert bench.outcome("unbroken") == unbroken


def _ledger_rows(bench, home):
    with Store.open(bench.folder / home) as store:
        return [(entry.key, entry.created_at) for entry in store.ledger("r").entries()]


# A trainer in a process of its own: the suite pauses it in the middle of its second rollout step, which the test sees.
CHILD = ("--set", "policy.executor={type: subprocess}")


@dataclass(frozen=True)
class Paused:
    """A run whose trainer is in the middle of a block."""

    run: subprocess.Popen
    trainer: int
    folder: Path

    def go_on(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def paused(bench, tmp_path):
    """Start a run with a trainer of its own and wait until it is in the middle of its first block."""
    started = []

    def start(home: str) -> Paused:
        run = bench.start(home, *CHILD, environment={"LETTERS_PAUSE": str(tmp_path)})
        started.append(run)
        deadline = time.monotonic() + 120
        while not (found := list(tmp_path.glob("paused-*"))):
            assert run.poll() is None and time.monotonic() < deadline, run.stderr.read()
            time.sleep(0.05)
        return Paused(run, int(found[0].name.removeprefix("paused-")), tmp_path)

    yield start
    for run in started:
        run.kill()
        run.communicate()


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_trainer_killed_in_the_middle_of_a_block_is_replaced_and_the_run_ends_as_if_it_had_not_been(
    bench, unbroken, paused
):
    middle = paused("trainer-killed")
    assert middle.trainer != middle.run.pid
    os.kill(middle.trainer, signal.SIGKILL)
    middle.go_on()
    _, told = middle.run.communicate(timeout=240)
    assert middle.run.returncode == 0, told
    assert "SIGKILL" in told
    assert bench.outcome("trainer-killed") == unbroken
    blocks = trained_blocks(bench, "trainer-killed")
    assert [len(block["trainer_deaths"]) for block in blocks] == [1, 0]
    with Store.open(bench.folder / "trainer-killed") as store:
        stored = [row.metrics for row in store.metrics.find("r")]
    assert [row["losses"] for row in stored] == [step["losses"] for block in blocks for step in block["steps"]]


def trained_blocks(bench, home):
    trace = json.loads(bench.cohelix("trace", "r", "--json", home=home).stdout)
    return [call["wrote"] for step in trace["steps"] for call in step["calls"] if call["method"] == "train"]


def test_a_run_killed_in_the_middle_of_a_block_takes_its_trainer_along_and_resumes_to_equal_weights(
    bench, unbroken, paused
):
    middle = paused("run-killed")
    middle.run.kill()
    middle.run.wait()
    deadline = time.monotonic() + 60
    while is_running(middle.trainer):  # its verifier sleeps for minutes; only its owner's death can end it now
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = _ledger_rows(bench, "run-killed")
    done = bench.resume("run-killed")
    assert done.returncode == 0, done.stderr
    assert bench.outcome("run-killed") == unbroken
    assert _ledger_rows(bench, "run-killed")[: len(before)] == before
