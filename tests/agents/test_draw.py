"""The draw depends on traces, history and seed alone."""

import random
from collections import Counter

import pytest

from agents.draw import draw_play
from agents.records import Evidence, PastProposal, RecurringError
from evals.suites.base import Play
from harness.edit import AppendExecution

PLAYBOOK = tuple(
    Play(play_id=name, faults=faults, summary=name, edits=(AppendExecution(text=name),))
    for name, faults in (("a", ("x",)), ("b", ("x", "y")), ("c", ("y",)), ("d", ("z",)))
)


def error(fault: str, weight: float) -> RecurringError:
    evidence = (Evidence(trace_id="t", task_id="k", quote="q"),)
    return RecurringError(fault=fault, count=2, share=weight, weight=weight, evidence=evidence)


def past(play_id: str, outcome: str) -> PastProposal:
    return PastProposal(round_number=0, incumbent_id="h", play_id=play_id, outcome=outcome)


def drawn(errors, history=(), *, seed=0, barred=()):
    found = draw_play(PLAYBOOK, errors, history, random.Random(seed), barred=barred)
    return found and (found.fault, found.play.play_id)


def test_the_same_seed_draws_the_same_play():
    errors = [error("x", 0.5), error("y", 0.5)]
    assert {drawn(errors, seed=7) for _ in range(5)} == {drawn(errors, seed=7)}


def test_faults_are_drawn_by_weight_and_plays_uniformly():
    errors = [error("x", 0.75), error("y", 0.25)]
    counts = Counter(drawn(errors, seed=seed) for seed in range(4000))
    # x: 0.75 over a and b; y: 0.25 over b and c; each cell has sd <= 31.
    expected = {("x", "a"): 1500, ("x", "b"): 1500, ("y", "b"): 500, ("y", "c"): 500}
    assert set(counts) == set(expected)
    for cell, number in expected.items():
        assert counts[cell] == pytest.approx(number, abs=130)


def test_plays_of_absent_faults_are_never_drawn():
    assert all(drawn([error("x", 1.0)], seed=seed)[1] in "ab" for seed in range(50))


def test_a_tried_play_waits_until_all_were_tried():
    errors = [error("x", 0.9), error("y", 0.1)]
    history = [past("a", "reject"), past("b", "tie")]
    assert {drawn(errors, history, seed=seed) for seed in range(50)} == {("y", "c")}
    history.append(past("c", "reject"))
    assert {drawn(errors, history, seed=seed)[1] for seed in range(200)} == {"a", "b", "c"}


def test_an_accepted_play_and_a_barred_play_never_come_back():
    history = [past("a", "accept")]
    assert {drawn([error("x", 1.0)], history, seed=seed) for seed in range(50)} == {("x", "b")}
    assert drawn([error("x", 1.0)], history, barred=["b"]) is None


def test_nothing_is_drawn_for_faults_without_plays():
    assert drawn([error("unheard", 1.0)]) is None
