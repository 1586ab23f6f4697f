"""Executors: the same block in this process and in a child; what happens when the child dies."""

from __future__ import annotations

from pathlib import Path

import block_script
import letters_plugin
import pytest
from letters_plugin import make_job

from memory.store import Store
from policy.config_executor import InProcessConfig, SubprocessConfig
from policy.errors import CheckpointError, NonFiniteTraining, NoSignal, TrainerDied, TrainerOutOfMemory
from policy.executor import make_executor
from policy.executor.base import with_tries

CONFIG = block_script.CONFIG


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    """The faulty suite is installed for this process and its children."""
    folder = tmp_path_factory.mktemp("plugin")
    letters_plugin.install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return block_script.policy_config(tmp_path_factory.mktemp("base"), "full")


@pytest.fixture(scope="module")
def child():
    """One warm child for the whole module."""
    with make_executor(SubprocessConfig()) as executor:
        yield executor


@pytest.fixture(scope="module")
def in_process(tmp_path_factory, policy):
    with make_executor(InProcessConfig(type="in_process")) as executor:
        return executor.run(make_job(tmp_path_factory.mktemp("home"), policy, CONFIG, steps=3))


def same(one, other):
    assert one.checkpoint_id == other.checkpoint_id, "weights, optimizer, generators and counters"
    assert [trace.trace_id for trace in one.traces] == [trace.trace_id for trace in other.traces]
    assert [step.losses for step in one.steps] == [step.losses for step in other.steps]


def test_a_block_in_a_child_equals_one_in_this_process_and_its_steps_arrive_as_they_happen(
    tmp_path, policy, child, in_process
):
    arrived = []
    job = make_job(tmp_path, policy, CONFIG, steps=3)
    result = child.run(job, lambda step: arrived.append((step, ledger_size(job))))
    same(result, in_process)
    assert tuple(step for step, _ in arrived) == result.steps
    assert arrived[0][1] < arrived[-1][1], "the first step was told while later ones were not even sampled"


def ledger_size(job):
    with Store.open(job.store.home) as store:
        return sum(store.ledger(job.store.scope).counts().values())


def test_one_child_trains_block_after_block_and_a_finished_block_needs_none(tmp_path, policy, child, in_process):
    first = child.run(make_job(tmp_path, policy, CONFIG, steps=1))
    pid = child.pid
    rest = child.run(make_job(tmp_path, policy, CONFIG, steps=2, first=1, parent=first.checkpoint))
    assert child.pid == pid
    assert rest.checkpoint_id == in_process.checkpoint_id
    with make_executor(SubprocessConfig()) as other:
        same(other.run(make_job(tmp_path, policy, CONFIG, steps=1)), first)
        assert other.pid is None


def test_what_libraries_print_does_not_reach_the_reports(tmp_path, policy, child, in_process, capfd):
    result = child.run(make_job(tmp_path, policy, CONFIG, steps=3, fault="noise", at=3, times=1, notes=str(tmp_path)))
    same(result, in_process)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [("nan", NonFiniteTraining, "reward nan"), ("solved", NoSignal, "with all rewards equal")],
)
def test_a_typed_failure_arrives_as_itself_is_not_retried_and_leaves_the_child_working(
    tmp_path, policy, child, fault, kind, words
):
    child.warm()
    pid, deaths = child.pid, []
    with pytest.raises(kind, match=words):
        child.run(make_job(tmp_path, policy, CONFIG, fault=fault), on_death=lambda *death: deaths.append(death))
    assert deaths == [] and child.pid == pid
    assert child.run(make_job(tmp_path / "other", policy, CONFIG, steps=1)).steps


def test_a_torn_parent_is_the_stores_failure_in_a_child_too(tmp_path, policy, child):
    first = child.run(make_job(tmp_path, policy, CONFIG, steps=1))
    job = make_job(tmp_path, policy, CONFIG, steps=1, first=1, parent=first.checkpoint)
    (first.checkpoint / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="weights.safetensors is torn"):
        child.run(job)


def test_a_killed_child_is_replaced_and_goes_on_from_the_last_checkpoint(tmp_path, policy, in_process):
    # 12 tasks and G = 4: a step samples at least 16 rollouts, so the 40th verdict falls after the first checkpoint
    job = make_job(tmp_path, policy, CONFIG, steps=3, fault="kill", at=40, times=1, notes=str(tmp_path))
    deaths, arrived = [], []
    with make_executor(SubprocessConfig(tries=2)) as executor:
        result = executor.run(job, arrived.append, on_death=lambda *death: deaths.append(death))
    same(result, in_process)
    ((death, number),) = deaths
    assert isinstance(death, TrainerDied) and number == 2
    assert all(word in str(death) for word in ("SIGKILL", "lower micro_batch_size", "resume"))
    assert [step.step for step in arrived] == [0, 1, 2], "no finished step was made again"


def test_the_tries_are_counted_and_the_last_death_is_raised():
    made, told = [], []

    def attempt():
        made.append(len(made))
        raise TrainerDied(f"death {len(made)}")

    with pytest.raises(TrainerDied, match="death 3"):
        with_tries(3, attempt, lambda death, number: told.append((str(death), number)))
    assert len(made) == 3 and told == [("death 1", 2), ("death 2", 3)]


def test_a_silent_child_is_ended(tmp_path, policy):
    job = make_job(tmp_path, policy, CONFIG, fault="hang", notes=str(tmp_path))
    with make_executor(SubprocessConfig(tries=1, silence_timeout_s=3)) as executor:
        with pytest.raises(TrainerDied, match="reported nothing for 3.0 s.*silence_timeout_s"):
            executor.run(job)
    (pid,) = (tmp_path / "struck").read_text().split()
    assert not Path(f"/proc/{pid}").exists()


def test_a_child_that_meets_its_memory_limit_is_replaced_and_the_message_says_what_to_lower(tmp_path, policy):
    job = make_job(tmp_path, policy, CONFIG, fault="memory", notes=str(tmp_path))
    deaths = []
    with make_executor(SubprocessConfig(tries=1, memory_limit_mb=16_000)) as executor:
        with pytest.raises(TrainerOutOfMemory, match="micro_batch_size.*memory_limit_mb"):
            executor.run(job, on_death=lambda *death: deaths.append(death))
        assert executor.pid is None, "its memory is free again"


def test_a_child_goes_when_its_executor_is_closed_in_the_middle_of_its_imports():
    executor = make_executor(SubprocessConfig())
    executor.warm()
    pid = executor.pid
    executor.close()
    assert not Path(f"/proc/{pid}").exists()
