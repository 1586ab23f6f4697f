"""The metro suite: frozen, map-disjoint, uniquely solvable, and verified by its own gold."""

import itertools

import pytest

from evals.suites.metro import SPLITS, MetroSuite, suite_fingerprints
from evals.suites.metro_preset import PRESETS, SUITE_SEED_RANGE, map_split, stream_seed
from evals.suites.metro_text import CONTRACT, INSTRUCTIONS, STYLES
from evals.suites.route_verdict import RewardConfig
from harness.records import Task
from harness.render import render

SMALL = {"train": 24, "val": 12, "test": 18}


def suite(preset="pocket", seed=3, **options):
    return MetroSuite(preset, seed, counts=SMALL, **options)


@pytest.mark.parametrize("preset", PRESETS)
def test_verifier_accepts_all_gold_refuses_all_corruptions_and_the_solver_confirms(preset):
    report = suite(preset).validate()
    assert report.tasks == report.gold_accepted == report.solver_confirmed == 54
    assert report.corruptions_refused == report.corruptions > 54 * 5
    assert report.is_valid and report.problems == ()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_style_of_worked_solution_is_exact_and_in_the_contract(preset):
    small = suite(preset)
    for task, style in itertools.product(small.tasks(split="val"), STYLES):
        verdict = small.verify(task, small.solve(task, style=style), finish_reason="stop")
        assert verdict.parts["format"] == verdict.parts["exact"] == verdict.reward == 1.0
        assert verdict.diagnoses[0].fault == "none"


def test_solve_reads_the_map_and_never_the_gold():
    small = suite()
    task = small.tasks(split="train")[0]
    forged = Task.model_validate({**task.model_dump(), "gold": ["K00-K01"]})
    assert small.solve(forged, style="plan") == small.solve(task, style="plan")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_seed_gives_the_same_suite_and_another_seed_another_one(preset):
    assert suite(preset).fingerprint == suite(preset).fingerprint
    assert suite(preset).fingerprint != suite(preset, seed=4).fingerprint


def test_the_reward_is_part_of_the_fingerprint():
    assert suite().fingerprint != suite(reward=RewardConfig(kind="partial")).fingerprint


def test_a_larger_split_starts_with_the_smaller_one():
    larger = MetroSuite("pocket", 3, counts={**SMALL, "val": 40})
    assert larger.tasks(split="val")[:12] == suite().tasks(split="val")


def test_no_map_is_in_two_splits_under_any_two_seeds():
    suites = [MetroSuite("pocket", seed, counts={"train": 60, "val": 60, "test": 60}) for seed in (0, 1, 2)]
    by_split = {split: set().union(*(s.map_fingerprints(split=split) for s in suites)) for split in SPLITS}
    assert {len(prints) for prints in by_split.values()} == {180}
    for one, two in itertools.combinations(SPLITS, 2):
        assert not by_split[one] & by_split[two]


def test_the_split_of_a_map_is_a_function_of_the_map():
    for split in SPLITS:
        assert {map_split(print_) for print_ in suite().map_fingerprints(split=split)} == {split}


def test_suite_fingerprints_cover_every_map_of_every_seed():
    prints = suite_fingerprints("pocket", [3, 4], counts=SMALL)
    assert len(prints) == 2 * 54
    assert suite(seed=4).map_fingerprints(split="test") <= prints


def test_random_streams_are_distinct_and_lie_in_the_named_range():
    seeds = [stream_seed(p, s, split=split) for p in PRESETS.values() for s in range(50) for split in SPLITS]
    assert len(set(seeds)) == len(seeds)
    assert set(seeds) <= set(SUITE_SEED_RANGE[:10_000])
    with pytest.raises(ValueError, match="expected 0"):
        stream_seed(PRESETS["pocket"], len(SUITE_SEED_RANGE), split="train")


def test_pocket_training_draws_from_another_seed_range():
    training = pytest.importorskip("policy.pocket.pretrain").TRAINING_SEED_RANGE
    assert max(training.start, SUITE_SEED_RANGE.start) >= min(training.stop, SUITE_SEED_RANGE.stop)


@pytest.mark.parametrize("preset", PRESETS)
def test_strata_are_balanced_in_every_full_cycle(preset):
    strata = [tuple(task.strata.values()) for task in suite(preset).tasks(split="train")]
    cycle = len(PRESETS[preset].strata)
    assert {strata[:cycle].count(cell) for cell in PRESETS[preset].strata} == {1}


def test_query_difficulty_is_the_number_of_line_changes():
    for preset in PRESETS:
        for task in suite(preset).tasks(split="test"):
            changes = PRESETS[preset].queries[task.strata["query"]]
            assert task.gold[0].count("(transfer)") == changes


def test_pocket_prompts_are_short_and_hold_no_gold():
    small = suite()
    harness = small.seed_harness()
    assert (harness.instructions, harness.output_contract) == (INSTRUCTIONS, CONTRACT)
    for task in small.tasks(split="train"):
        text = "\n".join(message.content for message in render(harness, task.inputs))
        assert len(text.split()) < 140
        assert task.gold[0] not in text


def test_the_rewards_of_one_partly_right_answer():
    small = suite()
    task = next(task for task in small.tasks(split="train") if task.gold[0].count("-") >= 3)
    stations = task.gold[0].split("-")
    answer = "-".join(stations[:-1])
    completion = f"<reasoning>r</reasoning><response>{answer}</response>"
    # all but the last of M stations match: partial = (M - 2) / (M - 1)
    partial = (len(stations) - 2) / (len(stations) - 1)
    for kind, length, reward in (
        ("exact", 5, 0.0),
        ("partial", 5, partial),
        ("shaped", 5, 0.05 + 0.25 * partial),
        ("shaped", 96, 0.05 + 0.25 * partial - 0.1),
    ):
        config = RewardConfig(kind=kind, max_length_tokens=96, length_buffer_tokens=16)
        verdict = suite(reward=config).verify(task, completion, finish_reason="stop", token_count=length)
        assert verdict.reward == pytest.approx(reward)
        assert verdict.parts["exact"] == 0.0


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="pocket.*mini.*standard"):
        MetroSuite("large")
    with pytest.raises(ValueError, match="direct.*plan.*expand.*hops"):
        suite().solve(suite().tasks(split="val")[0], style="rhyme")


def test_a_task_of_another_suite_is_refused():
    with pytest.raises(ValueError, match="expected 'metro-pocket-3'"):
        suite().verify(suite(seed=4).tasks(split="val")[0], "x", finish_reason="stop")
