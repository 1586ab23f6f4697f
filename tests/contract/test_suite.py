"""What every suite promises, checked on every built-in suite: metro in all sizes, MapTab in both domains."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "evals"))
from maptab_files import write_layout

from evals.config import MapTabConfig, MetroConfig
from evals.suites.metro_preset import PRESETS
from evals.suites.registry import SUITES, build_suite
from harness.audit import audit_candidate
from harness.edit import apply_edits
from harness.records import Scored, Task
from harness.render import placeholders, render

SPLITS = ("train", "val", "test")
CASES = [*(f"metro-{preset}" for preset in PRESETS), "maptab-metro", "maptab-travel"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maptab")
    write_layout(folder)
    for file in sorted(folder.rglob("*_test_set.json")):  # the layout's files hold one split each
        for split in ("train", "val"):
            copy = file.parents[1] / f"{split}_set" / file.name.replace("_test_set", f"_{split}_set")
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(file.read_bytes())
    return folder


@pytest.fixture(params=CASES)
def build(request, root):
    """Builds the same suite anew at every call."""
    kind, _, name = request.param.partition("-")
    if kind == "metro":
        return lambda: build_suite(MetroConfig(preset=name, train=9, val=9, test=9))
    return lambda: build_suite(MapTabConfig(root=str(root), domain=name))


@pytest.fixture
def suite(build):
    return build()


def every_task(suite):
    return [task for split in SPLITS for task in suite.tasks(split=split)]


def test_every_builtin_suite_is_among_the_cases():
    assert {case.partition("-")[0] for case in CASES} == set(SUITES)


def test_tasks_are_frozen_and_of_their_split(build):
    first, second = build(), build()
    assert first.fingerprint == second.fingerprint
    for split in SPLITS:
        assert first.tasks(split=split) == second.tasks(split=split)
        assert {task.split for task in first.tasks(split=split)} <= {split}
    ids = [task.task_id for task in every_task(first)]
    assert ids and len(set(ids)) == len(ids)


def test_split_must_be_named(suite):
    with pytest.raises(TypeError):
        suite.tasks()
    with pytest.raises(TypeError):
        suite.tasks("val")


def test_the_seed_harness_takes_the_inputs_of_every_task_and_shows_no_gold(suite):
    harness = suite.seed_harness()
    assert harness.family == suite.family
    for task in every_task(suite):
        assert set(placeholders(harness.input_template)) <= set(task.inputs)
        shown = "\n".join(message.content for message in render(harness, task.inputs))
        # a gold of two stations is an edge of the map, which a table shows
        assert not any(gold in shown for gold in task.gold if gold.count("-") > 1)


def test_a_solved_task_is_exact_and_verifying_twice_says_the_same(suite):
    styles = sorted({play.demonstration_style for play in suite.playbook()} - {""})
    assert styles
    for task in every_task(suite):
        for style in styles:
            text = suite.solve(task, style=style)
            verdict = suite.verify(task, text, finish_reason="stop", token_count=10)
            assert isinstance(verdict, Scored) and verdict.parts["exact"] == 1.0, (task.task_id, style)
            assert suite.verify(task, text, finish_reason="stop", token_count=10) == verdict


def test_solving_reads_no_gold(suite):
    task = every_task(suite)[0]
    forged = Task.model_validate({**task.model_dump(), "gold": ["nowhere-else"]})
    style = next(play.demonstration_style for play in suite.playbook() if play.demonstration_style)
    assert suite.solve(forged, style=style) == suite.solve(task, style=style)


@pytest.mark.parametrize(("text", "finish"), [("", "stop"), ("no idea", "stop"), ("<reasoning>on and on", "length")])
def test_a_wrong_completion_is_a_scored_zero_with_a_named_fault(suite, text, finish):
    verdict = suite.verify(every_task(suite)[0], text, finish_reason=finish)
    assert isinstance(verdict, Scored)
    assert verdict.parts["exact"] == 0.0
    assert verdict.diagnoses and verdict.diagnoses[0].fault != "none"


def test_every_play_is_a_legal_effective_edit_filed_under_a_fault(suite):
    harness = suite.seed_harness()
    plays = suite.playbook()
    assert len({play.play_id for play in plays}) == len(plays)
    for play in plays:
        assert play.faults and (play.edits or play.demonstration_style)
        if play.edits:
            assert audit_candidate(harness, apply_edits(harness, play.edits)) == [], play.play_id


def test_its_own_proof_holds(suite):
    report = suite.validate()
    assert report.is_valid, report.problems
    assert report.tasks == len(every_task(suite))
