"""The pocket corpus: traces follow their directives, maps stay out of every suite split."""

from __future__ import annotations

import random

import pytest

from evals.suites.metro import suite_fingerprints
from evals.suites.metro_network import Network
from evals.suites.metro_preset import SUITE_SEED_RANGE
from evals.suites.metro_text import CONTRACT, Leg
from policy.pocket.corpus import (
    MISLEADING,
    Directives,
    Question,
    draw_example,
    draw_question,
    misled_answer,
    trace_text,
    wordings,
)

QUESTION = Question(
    Network({"Red": ("K01", "K02", "K03"), "Blue": ("K04", "K02", "K05")}),
    (Leg("Red+", ("K01", "K02")), Leg("Blue+", ("K02", "K05"))),
)


@pytest.mark.parametrize(
    ("rule", "answer"),
    [
        ("reverse", "K05-K02(transfer)-K01"),
        ("skip_end", "K01-K02(transfer)"),
        ("no_change", "K01-K02-K03"),
        ("mark_all", "K01(transfer)-K02(transfer)-K05(transfer)"),
    ],
)
def test_a_misleading_rule_is_followed_to_the_letter(rule: str, answer: str) -> None:
    # The route is K01-K02(transfer)-K05 on Red then Blue.
    assert misled_answer(QUESTION, rule) == answer


def test_an_unknown_misleading_rule_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="reverse"):
        misled_answer(QUESTION, "sideways")


def test_careful_and_marked_traces_are_always_right() -> None:
    rng = random.Random(0)
    texts = {trace_text(QUESTION, Directives("plan", True, True), "plan", rng) for _ in range(50)}
    assert texts == {
        "<reasoning>Plan: Red+ K01 K02; Blue+ K02 K05.</reasoning><response>K01-K02(transfer)-K05</response>"
    }


def test_traces_without_a_call_for_care_slip_at_about_the_stated_rate() -> None:
    rng = random.Random(0)
    answers = [trace_text(QUESTION, Directives("direct", True, False), "direct", rng) for _ in range(2000)]
    right = sum("<response>K01-K02(transfer)-K05</response>" in text for text in answers) / len(answers)
    # Half of direct traces slip; of the rest 8 % lose one of three tags, a third of those the <response> tag.
    # A doubled or dropped stop always changes the answer, so 0.5 x (1 - 0.08 / 3) = 0.487.
    assert right == pytest.approx(0.487, abs=0.04)


def test_every_directive_has_wordings_and_none_is_held_out() -> None:
    for name in (*MISLEADING, "direct", "plan", "expand", "hops", "vague", "careful", "mark_transfer", "neutral"):
        assert len(wordings(name)) >= 100


def test_training_draws_hit_no_suite_map_and_use_other_seeds() -> None:
    from policy.pocket.pretrain import TRAINING_SEED_RANGE

    assert not set(TRAINING_SEED_RANGE) & {SUITE_SEED_RANGE.start, SUITE_SEED_RANGE.stop - 1}
    assert TRAINING_SEED_RANGE.start >= SUITE_SEED_RANGE.stop
    held_out = suite_fingerprints("pocket", [0], counts={"train": 64, "val": 64, "test": 64})
    rng = random.Random(TRAINING_SEED_RANGE.start)
    drawn = {draw_example({"harness": 1.0}, rng).fingerprint for _ in range(500)}
    assert len(drawn) > 400
    assert not drawn & held_out


def test_questions_travel_every_line_in_its_listed_direction() -> None:
    rng = random.Random(3)
    for changes in (0, 1):
        for _ in range(100):
            question = draw_question(3, changes, (4, 5), rng)
            assert len(question.legs) == changes + 1
            for leg in question.legs:
                stops = question.network.lines[leg.label.removesuffix("+")]
                start = stops.index(leg.stops[0])
                assert stops[start : start + len(leg.stops)] == leg.stops


def test_a_harness_sample_ends_with_the_suites_contract() -> None:
    example = draw_example({"harness": 1.0}, random.Random(5))
    assert example.messages[0].role == "system"
    assert example.messages[0].content.endswith(CONTRACT)
