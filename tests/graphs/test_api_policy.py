"""A policy behind a socket: the same graph, nothing trained, its calls counted and limited with the roles' calls."""

import json

import pytest
from servers.loopback import Server, running

from evals.evaluation import EmptyMean
from evals.suites.registry import build_suite
from graphs.loading import parse_config
from graphs.plan import make_plan
from graphs.runner import resume, start
from graphs.single import PairChoice, evaluate_pair
from harness.errors import SpendLimitReached, UserError
from memory.store import Store

PRICE = {"prompt_usd_per_million": 100.0, "completion_usd_per_million": 100.0}
"""11 and 7 tokens a reply, 100 USD a million: 0.0018 USD."""


@pytest.fixture(scope="module")
def server():
    with running() as made:
        yield made


def settings(server, condition="static", *, limit=None, **policy):
    return parse_config(
        {
            "strategy": {"type": "vace", "condition": condition, "rounds": 1, "explore_tasks": 4},
            "suite": {"type": "metro", "preset": "mini"},
            "policy": {"type": "api", "model": "openai/x", "api_base": f"{server.root}/v1", **policy},
            "budget": {"tasks": {"train": 8, "val": 4, "test": 4}, "replicates": {"test": 1}, "max_cost_usd": limit},
        },
        source="test",
    )


# static: val, then test of the first pair. harness-only: 4 train tasks more, and a candidate on val if there is one.
@pytest.mark.parametrize(("condition", "counts"), [("static", {8}), ("harness-only", {12, 16, 20})])
def test_a_run_measures_an_api_policy_and_trains_nothing(server, tmp_path, condition, counts):
    server.plan({"do": "reply", "text": "<response>K01-K02</response>"})
    result = start(settings(server, condition, **PRICE), home=tmp_path, run_id="r")
    asked = server.requests
    assert result.status == "finished" and len(asked) in counts
    assert {request["body"]["model"] for request in asked} == {"x"}
    # Every task has its own stream; a candidate harness meets the incumbent's, so that the two can be compared.
    rows = {(request["body"]["seed"], json.dumps(request["body"]["messages"])) for request in asked}
    assert len(rows) == len(asked)
    assert len({seed for seed, _ in rows}) == (8 if condition == "static" else 12)
    with Store.open(tmp_path) as store:
        steps = store.steps.list("r")
        assert "train" not in [step.node for step in steps]
        # equal evaluations of one pair are asked for once and counted each time they are used
        assert sum(step.cost_usd for step in steps) >= 0.0018 * len(asked) * 0.999
        (trace, *_) = store.traces.find("r", purpose="gate")
        assert (trace.completion, trace.usage.prompt_tokens, trace.token_count) == (
            "<response>K01-K02</response>",
            11,
            7,
        )


def test_a_broken_answer_is_asked_for_again_and_one_that_never_comes_is_no_zero(server, tmp_path):
    server.plan({"do": "garbage"}, {"do": "reply", "text": "abc"})
    assert start(settings(server), home=tmp_path, run_id="broken").status == "finished"
    assert len(server.requests) == 9
    server.plan({"do": "status", "code": 401, "message": "no"})
    with pytest.raises(EmptyMean, match="none of 4 attempts was scored"):
        start(settings(server), home=tmp_path, run_id="refused")


def test_a_limit_in_usd_counts_the_policys_calls_and_a_resume_pays_no_call_twice(server, tmp_path):
    server.plan({"do": "reply", "text": "abc"})
    # A call reserves its prompt and 128 tokens of answer, about 0.05 USD; one in flight at a time.
    config = settings(server, limit=0.055, max_concurrency=1, **PRICE)
    with pytest.raises(SpendLimitReached, match="budget of run is used up"):
        start(config, home=tmp_path, run_id="r")
    paid = len(server.requests)
    assert 0 < paid < 8
    assert resume("r", home=tmp_path, overrides=["budget.max_cost_usd=10"]).status == "finished"
    assert len(server.requests) == 8


def test_one_evaluation_needs_no_run_and_obeys_the_limit_too(server, tmp_path):
    server.plan({"do": "reply", "text": "abc", "finish_reason": "length"})
    shown = evaluate_pair(settings(server), PairChoice(split="val"), home=tmp_path / "a")
    assert (shown["tasks"], shown["truncated"], shown["unscored"]) == (4, 4, 0)
    with pytest.raises(SpendLimitReached):
        evaluate_pair(settings(server, limit=0.001, **PRICE), PairChoice(split="val"), home=tmp_path / "b")


def test_a_plan_counts_the_policys_attempts_as_model_calls(server):
    config = settings(server)
    plan = make_plan(config, build_suite(config.suite))
    assert (plan.start.model_calls, plan.report.model_calls) == (4, 4)


def test_a_limit_in_usd_over_a_model_without_a_price_is_refused_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_KEY", "x")
    far = {"model": "openai/nobody-knows", "api_base": "http://models.example/v1", "api_key_env": "SOME_KEY"}
    config = settings(Server(1), limit=1.0, **far)
    with pytest.raises(UserError, match="cannot bind"):
        start(config, home=tmp_path, run_id="r")


@pytest.mark.parametrize("condition", ["vace", "rl-only", "sia", "whale"])
def test_conditions_that_train_are_refused_at_parse(condition):
    with pytest.raises(UserError, match="policy.type=api has none"):
        settings(Server(1), condition)


def test_a_server_engine_needs_adapters_where_weights_are_trained():
    engine = {"type": "vllm_server", "urls": ["http://127.0.0.1:1"]}
    raw = {"suite": {"type": "metro", "preset": "mini"}, "policy": {"type": "pocket", "engine": engine}}
    with pytest.raises(UserError, match="set policy.lora"):
        parse_config(raw, source="test")
    assert parse_config(raw | {"strategy": {"condition": "static"}}, source="test").policy.engine.type == "vllm_server"


def test_a_key_in_the_wrong_place_is_refused_and_not_repeated():
    with pytest.raises(UserError, match="NAME of an environment variable") as caught:
        settings(Server(1), api_key_env="sk-zQ9vTmPl3x7")
    assert "zQ9vTmPl3x7" not in str(caught.value)
    with pytest.raises(UserError, match="policy.model is 'rules'"):
        settings(Server(1), model="rules")
