"""A role on a language model behind a socket: the same graph, typed failures, and no key anywhere."""

import json
import os

import pytest
from servers.loopback import running

KEY = "zQ9vTmPl3x7RkW2yB8"


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


@pytest.fixture
def secrets(monkeypatch):
    """Keys in the environment of every process; the second one's variable has a plain name."""
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", f"sk-{KEY}")
    monkeypatch.setitem(os.environ, "TEAM_LOGIN", KEY)


def proposer(server, **more):
    settings = {"model": "openai/x", "api_base": f"{server.root}/v1", **more}
    return [part for name, value in settings.items() for part in ("--set", f"roles.proposer.{name}={value}")]


def leaks(bench, home, done):
    files = [file for file in (bench.folder / home).rglob("*") if file.is_file()]
    assert files
    held = [str(file) for file in files if KEY.encode() in file.read_bytes()]
    return held + [name for name in ("stdout", "stderr") if KEY in getattr(done, name)]


def test_a_model_proposes_in_the_same_graph_and_gets_no_key_that_was_not_named(bench, unbroken, server, secrets):
    server.plan({"do": "reply", "text": json.dumps({"rationale": "The harness is good as it is."})})
    done = bench.run("model-role", *proposer(server))
    assert done.returncode == 0, done.stderr
    shown = json.loads(bench.cohelix("trace", "r", "--json", home="model-role").stdout)
    assert [step["node"] for step in shown["steps"]] == unbroken["nodes"]
    calls = [call for step in shown["steps"] for call in step["calls"] if call["method"] == "propose"]
    assert [call["backend"] for call in calls] == ["openai/x", "openai/x"]
    assert json.loads(done.stdout)["decisions"] == []  # an empty proposal commits nothing
    assert {request["key"] for request in server.requests} == {"Bearer no-key"}
    assert leaks(bench, "model-role", done) == []


def test_a_rejected_key_is_a_typed_failure_that_a_resume_outlives_and_no_file_keeps_it(bench, server, secrets):
    server.plan({"do": "status", "code": 401, "message": f"Incorrect API key provided: {KEY}"})
    done = bench.run("rejected", *proposer(server, api_key_env="TEAM_LOGIN"))
    assert done.returncode == 1 and done.stdout == ""
    assert "model_call: openai/x for proposer/propose" in done.stderr and "authentication" in done.stderr
    assert "Traceback" not in done.stderr
    assert leaks(bench, "rejected", done) == []
    assert [request["key"] for request in server.requests] == [f"Bearer {KEY}"]
    server.plan({"do": "reply", "text": json.dumps({"rationale": "Nothing to change."})})
    done = bench.resume("rejected")
    assert done.returncode == 0, done.stderr
    assert leaks(bench, "rejected", done) == []


def test_a_hard_limit_stops_the_run_and_raising_it_at_the_resume_lets_it_end(bench, server):
    server.plan({"do": "reply", "text": json.dumps({"rationale": "Nothing to change."})})
    price = "{prompt_usd_per_million: 100, completion_usd_per_million: 100}"
    done = bench.run("limited", *proposer(server, price=price), "--set", "budget.max_cost_usd=0.001")
    assert done.returncode == 1 and "cohelix resume RUN --set budget.max_cost_usd=" in done.stderr
    assert server.requests == []  # it is refused before it is sent
    done = bench.resume("limited", "--set", "budget.max_cost_usd=10")
    assert done.returncode == 0, done.stderr
    (amendment,) = json.loads(done.stdout)["amendments"]
    assert (amendment["before"], amendment["after"]) == (0.001, 10.0)
