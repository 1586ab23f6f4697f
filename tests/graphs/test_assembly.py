"""Whose finished work a run may find."""

import pytest

from graphs import assembly, identity
from graphs.config import RunConfig
from graphs.runner import _fresh_id, start
from harness.errors import UserError
from memory.records import is_safe_id
from memory.store import Store


def config(*, share_work):
    return RunConfig.model_validate({"suite": {"type": "metro"}, "strategy": {"share_work": share_work}})


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path) as opened:
        yield opened


def test_runs_of_one_code_version_share_work_and_another_version_finds_none_of_it(store, monkeypatch):
    shared = config(share_work=True)
    monkeypatch.setattr(identity, "code_version", lambda: "0.1.0+one")
    assembly.work_ledger(shared, store, "a").record("k", kind="evaluation", result=0.0)
    assert assembly.work_ledger(shared, store, "b").find("k") == 0.0
    monkeypatch.setattr(identity, "code_version", lambda: "0.1.0+two")
    assert assembly.work_ledger(shared, store, "a").find("k") is None


def test_without_sharing_a_run_finds_its_own_work_alone(store):
    alone = config(share_work=False)
    assembly.work_ledger(alone, store, "a").record("k", kind="evaluation", result=1.0)
    assert assembly.work_ledger(alone, store, "a").find("k") == 1.0
    assert assembly.work_ledger(alone, store, "b").find("k") is None


def test_no_run_takes_the_name_of_the_shared_work(tmp_path):
    for name in ("shared", "shared-0.1.0+one"):
        with pytest.raises(UserError, match="begins? 'shared'"):
            start(config(share_work=False), home=tmp_path, run_id=name)


@pytest.mark.parametrize(
    ("role", "budget", "words"),
    [
        ({"model": "nonsense"}, {}, "no provider is known"),
        ({"model": "openai/x", "api_base": "http://llm.example.org/v1"}, {"max_cost_usd": 1}, "limit in USD"),
        (
            {"model": "openai/x", "api_base": "http://llm.example.org/v1", "budget": {"max_cost_usd": 1}},
            {},
            "limit in USD",
        ),
    ],
)
def test_a_model_that_could_not_be_called_is_refused_before_any_work(tmp_path, role, budget, words):
    raw = {"suite": {"type": "metro"}, "roles": {"proposer": role}, "budget": budget}
    with pytest.raises(UserError, match=words):
        start(RunConfig.model_validate(raw), home=tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_limit_in_usd_binds_a_model_with_a_price_and_leaves_a_local_one_alone():
    priced = {"model": "openai/x", "api_base": "http://llm.example.org/v1",
              "price": {"prompt_usd_per_million": 1, "completion_usd_per_million": 1}}  # fmt: skip
    for role in (priced, {"model": "openai/x", "api_base": "http://127.0.0.1:1/v1"}):
        raw = {"suite": {"type": "metro"}, "roles": {"proposer": role}, "budget": {"max_cost_usd": 1}}
        assembly.check_keys(RunConfig.model_validate(raw))


@pytest.mark.parametrize("label", ["plan", "é…", "shared", "a b/../c", "x" * 300, ""])
def test_a_made_up_name_is_one_that_a_run_may_have(label):
    assert is_safe_id(_fresh_id(label))
