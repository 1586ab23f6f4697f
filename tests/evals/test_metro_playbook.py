"""The playbook: usable edits for every fault, and nothing that tells the good ones."""

import pytest

from evals.suites.base import Play
from evals.suites.metro import MetroSuite
from evals.suites.metro_playbook import PLAYS
from evals.suites.metro_text import STYLES
from evals.suites.route_diagnosis import FAULTS
from harness.edit import apply_edits


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.play_id)
def test_every_play_changes_the_seed_harness(play):
    seed = MetroSuite("pocket").seed_harness()
    edited = apply_edits(seed, play.edits)
    assert edited.harness_id != seed.harness_id
    assert (edited.input_template, edited.output_contract) == (seed.input_template, seed.output_contract)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_brings_up_several_plays(fault):
    assert sum(fault in play.faults for play in PLAYS) >= 4


def test_plays_are_distinct_and_in_the_order_of_their_ids():
    ids = [play.play_id for play in PLAYS]
    assert ids == sorted(set(ids))
    assert len(ids) >= 20
    assert len({str(play.edits) for play in PLAYS}) == len(ids)


def test_a_play_has_no_field_for_an_effect():
    assert set(Play.model_fields) == {"play_id", "faults", "summary", "edits", "demonstration_style"}


def test_faults_and_styles_are_known():
    for play in PLAYS:
        assert set(play.faults) <= set(FAULTS)
        assert play.demonstration_style in ("", *STYLES)
