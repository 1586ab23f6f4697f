"""Ray: a block on a one-node cluster that is started here, an engine over actors, and what their deaths come to."""

from __future__ import annotations

import os
import signal

import block_script
import letters_plugin
import pytest
from letters_plugin import make_job
from tiny_suite import HARNESS, make_tasks

from harness.errors import UserError
from harness.protocols import Prompt
from harness.records import Sampling
from harness.render import render
from policy.config_executor import InProcessConfig, RayConfig
from policy.engines.ray_engine import RayEngine, checkpoint_engine
from policy.errors import NonFiniteTraining
from policy.executor import make_executor
from policy.training_state import open_engine

CONFIG = block_script.CONFIG
SAMPLING = Sampling(max_tokens=8, seed=3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A one-node cluster through the executor that starts it, with the faulty suite installed."""
    plugin = tmp_path_factory.mktemp("plugin")
    letters_plugin.install(plugin)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(plugin))
        with make_executor(RayConfig(type="ray", address="local", tries=2)) as executor:
            executor.warm()
            yield executor


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return block_script.policy_config(tmp_path_factory.mktemp("base"), "full")


def test_a_block_on_a_cluster_whose_worker_is_killed_equals_one_in_this_process_bit_for_bit(tmp_path, cluster, policy):
    here = make_executor(InProcessConfig(type="in_process")).run(make_job(tmp_path / "here", policy, CONFIG))
    job = make_job(tmp_path / "there", policy, CONFIG, fault="kill", at=20, times=1, notes=str(tmp_path))
    steps, deaths = [], []
    there = cluster.run(job, steps.append, on_death=lambda *death: deaths.append(death))
    assert there.checkpoint_id == here.checkpoint_id
    assert [trace.trace_id for trace in there.traces] == [trace.trace_id for trace in here.traces]
    assert [step.step for step in steps] == [0, 1]
    ((death, number),) = deaths
    assert "Ray task that trained died" in str(death) and number == 2


def test_a_typed_failure_on_a_cluster_arrives_as_itself(tmp_path, cluster, policy):
    with pytest.raises(NonFiniteTraining, match="reward nan"):
        cluster.run(make_job(tmp_path, policy, CONFIG, fault="nan"))


def prompts():
    return [Prompt(messages=render(HARNESS, task.inputs), seed=seed) for task in make_tasks(3) for seed in range(4)]


@pytest.fixture
def engine(cluster, policy):
    opened = RayEngine(checkpoint_engine(policy, None, threads=1), "policy-1", actors=2, num_cpus=0)
    yield opened
    opened.close()


def test_two_actors_answer_as_one_engine_does_and_a_dead_ones_prompts_go_to_the_other(engine, policy):
    alone = open_engine(policy, None, threads=1).generate(prompts(), SAMPLING)
    told = []
    assert [one.token_ids for one in engine.generate(prompts(), SAMPLING, progress=told.append)] == [
        one.token_ids for one in alone
    ]
    assert told == [4, 12] or told == [8, 12]  # three prompts by two actors: two for one of them, one for the other
    kill_an_actor(engine)
    assert [one.token_ids for one in engine.generate(prompts(), SAMPLING)] == [one.token_ids for one in alone]
    assert engine.actors == 1
    kill_an_actor(engine)
    lost = engine.generate(prompts(), SAMPLING)
    assert {one.finish_reason for one in lost} == {"error"} and "Ray actor" in lost[0].error


def kill_an_actor(engine):
    import ray

    actor = engine._actors[0]
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)


def test_without_the_package_the_message_has_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("policy.executor.ray.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install ray"):
        make_executor(RayConfig(type="ray"))
