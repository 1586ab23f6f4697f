"""Lineage: content-addressed versions, whole checkpoints, decisions committed together."""

from pathlib import Path

import pytest

from harness.model import Harness, Protocol
from memory.errors import Conflict, NotFound, StoreError, TornFile
from memory.files import temporary_name, write_atomic
from memory.records import CheckpointRecord, DecisionRecord, Outcome, PairRecord
from memory.store import Store


def save_checkpoint(store: Store, checkpoint_id: str = "c1") -> CheckpointRecord:
    source = store.home / "checkpoints" / temporary_name(checkpoint_id)
    write_atomic(source / "weights.bin", checkpoint_id.encode() * 100)
    write_atomic(source / "config.json", b"{}")
    return store.lineage.save_checkpoint(CheckpointRecord(checkpoint_id=checkpoint_id), source=source)


def decision(outcome: Outcome, incumbent: Harness, candidate: Harness, round_number: int = 0) -> DecisionRecord:
    return DecisionRecord(
        run_id="r", round_number=round_number, outcome=outcome, checkpoint_id="c1", incumbent_id=incumbent.harness_id,
        candidate_id=candidate.harness_id, incumbent_score=0.5, candidate_score=0.0,
    )  # fmt: skip


def test_a_harness_is_stored_once_under_its_content_id(store: Store, harness: Harness, candidate: Harness) -> None:
    assert store.lineage.save_harness(harness, note="seed", run_id="r") == harness.harness_id
    store.lineage.save_harness(candidate, (harness.harness_id,), "edit", run_id="r")
    store.lineage.save_harness(harness, note="again", run_id="other")
    assert store.lineage.harness(candidate.harness_id) == candidate
    versions = store.lineage.harnesses()
    assert [(version.note, version.parents) for version in versions] == [("seed", ()), ("edit", (harness.harness_id,))]
    assert [version.note for version in store.lineage.harnesses("other")] == ["seed"]
    assert [version.note for version in store.lineage.harnesses("r")] == ["seed", "edit"]


def test_unknown_harnesses_and_parents_are_named(store: Store, harness: Harness) -> None:
    with pytest.raises(NotFound, match="no harness 'harness-x'"):
        store.lineage.harness("harness-x")
    with pytest.raises(NotFound, match="parent harness 'harness-x'"):
        store.lineage.save_harness(harness, ("harness-x",))
    assert store.lineage.harnesses() == ()


def test_a_harness_with_a_credential_is_refused(store: Store, harness: Harness) -> None:
    leaky = harness.model_copy(update={"protocol": Protocol(execution="use sk-abcdefghijklmnop1234")})
    with pytest.raises(StoreError, match="looks like a credential"):
        store.lineage.save_harness(leaky)


def test_a_checkpoint_is_recorded_with_the_hash_of_each_file(store: Store) -> None:
    record = save_checkpoint(store)
    assert set(record.files) == {"weights.bin", "config.json"}
    assert store.lineage.checkpoint("c1") == record == store.lineage.checkpoints()[0]
    assert store.verify_checkpoint("c1") == store.home / "checkpoints" / "c1"
    assert save_checkpoint(store) == record  # the same training again


def test_a_checkpoint_without_files_is_refused(store: Store) -> None:
    with pytest.raises(TornFile, match="no files at all"):
        store.lineage.save_checkpoint(CheckpointRecord(checkpoint_id="c1"))
    with pytest.raises(NotFound):
        store.lineage.checkpoint("c1")


def test_torn_and_missing_files_of_a_checkpoint_are_named(store: Store) -> None:
    save_checkpoint(store)
    folder = store.home / "checkpoints" / "c1"
    weights = folder / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])  # one byte short
    (folder / "config.json").unlink()
    with pytest.raises(TornFile, match=r"config\.json \(missing\), weights\.bin \(torn\)"):
        store.verify_checkpoint("c1")
    assert len(store.lineage.checkpoint_faults("c1")) == 2


def test_an_id_does_not_change_its_files(store: Store) -> None:
    save_checkpoint(store)
    write_atomic(store.home / "checkpoints" / "c1" / "weights.bin", b"other")
    with pytest.raises(Conflict, match="stored with other files"):
        store.lineage.save_checkpoint(CheckpointRecord(checkpoint_id="c1"))


@pytest.mark.parametrize("outcome", ["accept", "tie", "reject", "refuse"])
def test_a_commit_stores_candidate_pair_and_decision(
    store: Store, harness: Harness, candidate: Harness, outcome: Outcome
) -> None:
    save_checkpoint(store)
    store.lineage.save_harness(harness, run_id="r")
    first = PairRecord(run_id="r", checkpoint_id="c1", harness_id=harness.harness_id)
    store.lineage.save_pair(first)
    winner = candidate if outcome == "accept" else harness
    pair = PairRecord(
        run_id="r", checkpoint_id="c1", harness_id=winner.harness_id, parents=(first.pair_id,), val_score=0.0
    )
    made = decision(outcome, harness, candidate)
    for _ in range(2):  # a node that runs again after a crash commits again
        assert store.lineage.commit(made, candidate, pair) == pair.pair_id
    assert store.lineage.decisions("r") == (made,)
    assert store.lineage.harness(candidate.harness_id) == candidate
    assert store.lineage.harnesses("r")[-1].parents == (harness.harness_id,)
    assert store.lineage.pairs("r") == ((first, pair) if outcome == "accept" else (first,))


def test_a_commit_that_fails_leaves_nothing(store: Store, harness: Harness, candidate: Harness) -> None:
    store.lineage.save_harness(harness)
    pair = PairRecord(run_id="r", checkpoint_id="c1", harness_id=candidate.harness_id)
    with pytest.raises(NotFound, match="checkpoint of the pair 'c1'"):
        store.lineage.commit(decision("accept", harness, candidate), candidate, pair)
    assert store.lineage.decisions("r") == () == store.lineage.pairs("r")
    with pytest.raises(NotFound):
        store.lineage.harness(candidate.harness_id)


def test_a_round_decides_once(store: Store, harness: Harness, candidate: Harness) -> None:
    save_checkpoint(store)
    store.lineage.save_harness(harness)
    kept = PairRecord(run_id="r", checkpoint_id="c1", harness_id=harness.harness_id)
    taken = PairRecord(run_id="r", checkpoint_id="c1", harness_id=candidate.harness_id)
    store.lineage.commit(decision("reject", harness, candidate), candidate, kept)
    with pytest.raises(Conflict, match="round 0 already has another"):
        store.lineage.commit(decision("accept", harness, candidate), candidate, taken)
    assert [made.outcome for made in store.lineage.decisions("r")] == ["reject"]
    assert store.lineage.pairs("r") == (kept,)


def test_a_pair_that_contradicts_its_decision_is_refused(store: Store, harness: Harness, candidate: Harness) -> None:
    save_checkpoint(store)
    store.lineage.save_harness(harness)
    pair = PairRecord(run_id="r", checkpoint_id="c1", harness_id=candidate.harness_id)
    with pytest.raises(StoreError, match="harness of the pair should be"):
        store.lineage.commit(decision("reject", harness, candidate), candidate, pair)
    with pytest.raises(NotFound, match="parent pairs"):
        store.lineage.save_pair(
            PairRecord(run_id="r", checkpoint_id="c1", harness_id=harness.harness_id, parents=("pair-x",))
        )


def test_pair_ids_are_content_hashes() -> None:
    first = PairRecord(run_id="r1", checkpoint_id="c", harness_id="h", val_score=0.1)
    assert first.pair_id == PairRecord(run_id="r2", checkpoint_id="c", harness_id="h").pair_id
    assert first.pair_id != PairRecord(run_id="r1", checkpoint_id="c2", harness_id="h").pair_id


def test_a_checkpoint_id_cannot_leave_the_folder(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a folder name"):
        store.lineage.checkpoint_folder("../../etc")
