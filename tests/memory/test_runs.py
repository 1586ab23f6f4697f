"""Runs are created once, identified, and executed by one process."""

from typing import Any

import pytest

from memory.errors import BadId, Conflict, IdentityMismatch, NotFound, RunBusy, StoreError
from memory.records import RunRecord
from memory.redaction import REDACTED
from memory.store import Store

IDENTITY: dict[str, Any] = {
    "config": {"policy": {"type": "pocket", "learning_rate": 0.001}, "roles": {}},
    "seed": 1,
    "suite_fingerprint": "suite-1",
    "code_version": "0.1.0",
}


def run_record(run_id: str = "r1", **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {"run_id": run_id, "strategy": "vace", "suite": "metro", "config": {"seed": 1},
                              "identity": IDENTITY}  # fmt: skip
    return RunRecord(**(fields | changes))


def test_a_created_run_reads_back_with_times(store: Store) -> None:
    created = store.runs.create(run_record())
    assert store.runs.get("r1") == created
    assert created.created_at.endswith("+00:00") and created.identity == IDENTITY


def test_runs_are_listed_oldest_first(store: Store) -> None:
    for run_id in ("b", "a"):
        store.runs.create(run_record(run_id))
    assert [run.run_id for run in store.runs.list()] == ["b", "a"]


def test_a_second_run_with_the_same_id_is_refused(store: Store) -> None:
    store.runs.create(run_record())
    with pytest.raises(Conflict, match="r1 exists already"):
        store.runs.create(run_record(strategy="static"))
    assert store.runs.get("r1").strategy == "vace"


def test_an_unknown_run_names_the_known_ones(store: Store) -> None:
    store.runs.create(run_record())
    with pytest.raises(NotFound, match="no run 'r2'.*known: r1"):
        store.runs.get("r2")


def test_status_keeps_the_summary_until_a_new_one_comes(store: Store) -> None:
    store.runs.create(run_record())
    store.runs.set_status("r1", "finished", {"test": 0.0})
    assert store.runs.set_status("r1", "failed").summary == {"test": 0.0}
    assert store.runs.get("r1").status == "failed"


def test_a_run_id_that_leaves_its_folder_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="not a folder name"):
        run_record("../evil")
    with pytest.raises(ValueError, match="not a folder name"):
        store.runs.hold("../evil")


def test_secrets_in_a_config_are_not_stored(store: Store) -> None:
    store.runs.create(run_record(config={"roles": {"teacher": {"extra": "Bearer abcdefgh1234"}}}))
    assert store.runs.get("r1").config == {"roles": {"teacher": {"extra": f"Bearer {REDACTED}"}}}


def test_the_same_identity_is_accepted(store: Store) -> None:
    store.runs.create(run_record())
    store.runs.check_identity("r1", IDENTITY)


def test_differing_keys_are_named_dotted(store: Store) -> None:
    store.runs.create(run_record())
    changed = {
        "config": {"policy": {"type": "pocket", "learning_rate": 0.002}, "roles": {"gate": "rules"}},
        "seed": "1",
        "suite_fingerprint": "suite-1",
    }
    with pytest.raises(IdentityMismatch) as caught:
        store.runs.check_identity("r1", changed)
    # roles {} became roles.gate; seed 1 became "1"; code_version went.
    assert caught.value.keys == (
        "code_version", "config.policy.learning_rate", "config.roles", "config.roles.gate", "seed",
    )  # fmt: skip
    assert "config.policy.learning_rate: recorded 0.001, now 0.002" in str(caught.value)


def test_a_held_run_is_busy_for_the_next_holder_and_free_afterwards(store: Store) -> None:
    with store.runs.hold("r1"):
        with pytest.raises(RunBusy, match="run r1 is being executed"), store.runs.hold("r1"):
            pass
        with store.runs.hold("r2"):
            pass
    with store.runs.hold("r1"):
        pass


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "a b", "é", "-x", "x" * 121])
def test_an_id_that_cannot_name_a_folder_is_a_mistake_with_the_rule_in_its_message(store: Store, run_id: str) -> None:
    for use in (store.runs.folder, store.lineage.checkpoint_folder):
        with pytest.raises(BadId, match="at most 120 letters"):
            use(run_id)


def test_the_longest_id_names_a_folder(store: Store) -> None:
    with store.runs.hold("x" * 120):
        assert store.runs.folder("x" * 120).is_dir()


def test_an_id_in_another_encoding_is_refused_by_name(store: Store) -> None:
    with pytest.raises(StoreError, match="not Unicode"):
        store.runs.get("r\udcff")


def test_an_amendment_changes_config_and_identity_and_keeps_what_was(store: Store) -> None:
    config = {"budget": {"max_tokens": None, "max_wall_s": 5.0}, "seed": 1}
    store.runs.create(run_record(config=config, identity={"config": config, "code_version": "1"}))
    store.runs.amend("r1", {"budget.max_tokens": 7})
    store.runs.amend("r1", {"budget.max_tokens": 9})
    now = store.runs.get("r1")
    wanted = {"budget": {"max_tokens": 9, "max_wall_s": 5.0}, "seed": 1}
    assert now.config == wanted and now.identity == {"config": wanted, "code_version": "1"}
    assert [(one.key, one.before, one.after) for one in now.amendments] == [
        ("budget.max_tokens", None, 7),
        ("budget.max_tokens", 7, 9),
    ]


@pytest.mark.parametrize("key", ["budget.max_token", "sed", "a.b.c"])
def test_an_amendment_of_an_unknown_key_is_refused_and_changes_nothing(store: Store, key: str) -> None:
    config = {"budget": {"max_tokens": 3}}
    before = store.runs.create(run_record(config=config, identity={"config": config}))
    with pytest.raises(StoreError, match=key):
        store.runs.amend("r1", {"budget.max_tokens": 4, key: 1})
    assert store.runs.get("r1") == before


def test_a_run_whose_folder_is_there_tells_that_the_store_is_another(store: Store) -> None:
    store.runs.folder("r9").mkdir(parents=True)
    with pytest.raises(NotFound, match="r9 is there, so the store is not the one it ran with"):
        store.runs.get("r9")
