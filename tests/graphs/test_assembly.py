"""Whose finished work a run may find."""

import pytest

from graphs import assembly
from graphs.config import RunConfig
from graphs.runner import start
from harness.errors import UserError
from memory.store import Store


def config(*, share_work):
    return RunConfig.model_validate({"suite": {"type": "metro"}, "strategy": {"share_work": share_work}})


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path) as opened:
        yield opened


def test_runs_of_one_code_version_share_work_and_another_version_finds_none_of_it(store, monkeypatch):
    shared = config(share_work=True)
    monkeypatch.setattr(assembly, "code_version", lambda: "0.1.0+one")
    assembly.work_ledger(shared, store, "a").record("k", kind="evaluation", result=0.0)
    assert assembly.work_ledger(shared, store, "b").find("k") == 0.0
    monkeypatch.setattr(assembly, "code_version", lambda: "0.1.0+two")
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
