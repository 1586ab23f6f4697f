"""Strict route score, output contract, public scorer."""

import pytest

from evals.suites.route import parse_completion, score_route, score_route_publicly


def test_partial_is_the_matching_prefix_over_hops():
    # prefix A, B = 2 of M = 4: (2 - 1) / (4 - 1) = 1/3
    score = score_route("A-B-X-D", "A-B-C-D")
    assert (score.partial, score.exact) == (pytest.approx(1 / 3), 0.0)


def test_a_wrong_origin_earns_nothing_even_if_the_rest_is_right():
    score = score_route("X-B-C-D", "A-B-C-D")
    assert (score.partial, score.exact) == (0.0, 0.0)


def test_the_right_origin_alone_earns_nothing():
    # (1 - 1) / 3 = 0
    assert score_route("A", "A-B-C-D").partial == 0.0


def test_a_route_with_stations_added_behind_the_goal_is_not_exact():
    # all 3 of M = 3 match: (3 - 1) / 2 = 1, but the lengths differ
    score = score_route("A-B-C-D", "A-B-C")
    assert (score.partial, score.exact) == (1.0, 0.0)


@pytest.mark.parametrize(("pred", "value"), [("A", 1.0), ("B", 0.0), ("A-B", 0.0)])
def test_with_one_gold_station_partial_equals_exact(pred, value):
    score = score_route(pred, "A")
    assert (score.partial, score.exact) == (value, value)


def test_several_golds_give_any_exact_and_the_largest_partial():
    golds = ["A-B-C-D", "A-X-C-D"]
    assert score_route("A-X-C-D", golds).exact == 1.0
    # against the second gold: prefix A, X, C = 3, (3 - 1) / 3 = 2/3; against the first 0
    score = score_route("A-X-C-Y", golds)
    assert (score.partial, score.exact) == (pytest.approx(2 / 3), 0.0)


def test_names_match_after_trim_case_spaces_and_underscores():
    assert score_route(" west 25th ohio city - TRISKETT", "West 25th_Ohio City-Triskett").exact == 1.0


@pytest.mark.parametrize("pred", ["A-B-C", "A(transfer)-B-C", "A-B(transfer)-C(transfer)"])
def test_the_transfer_mark_is_part_of_the_station(pred):
    assert score_route(pred, "A-B(transfer)-C").exact == 0.0
    assert score_route("A-B (Transfer)-C", "A-B(transfer)-C").exact == 1.0


def test_similar_names_are_different_stations_unless_the_published_option_is_on():
    # one letter of ten differs: ratio 0.9
    assert score_route("Stadtmitta-B", "Stadtmitte-B").exact == 0.0
    assert score_route("Stadtmitta-B", "Stadtmitte-B", fuzzy_threshold=0.9).exact == 1.0


def test_no_gold_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match="at least one route"):
        score_route("A-B", [])
    with pytest.raises(ValueError, match="none blank"):
        score_route("A-B", " ")


def test_public_scorer_calls_similar_stations_the_same():
    # "west park" and "west side" share "west " and one more letter: ratio >= 0.5
    public = score_route_publicly("West Park-B", "West Side-B")
    assert (public.partial, public.exact) == (1.0, 1.0)
    assert score_route("West Park-B", "West Side-B").exact == 0.0


def test_public_partial_is_prefix_over_stations():
    # prefix 1 of M = 4
    assert score_route_publicly("A-X-Y-Z", "A-B-C-D").partial == 0.25


def test_public_scorer_wants_the_very_string_once_a_transfer_is_marked():
    assert score_route_publicly("a-b(transfer)-c", "A-B(transfer)-C").exact == 0.0
    assert score_route_publicly("A-B(transfer)-C", "A-B(transfer)-C").exact == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "<reasoning>r</reasoning><response>A-B</response>",
        "<reasoning>r\nr</reasoning> \n <response> A-B </response>",
    ],
)
def test_the_contract_allows_white_space_between_the_sections(text):
    parsed = parse_completion(text)
    assert (parsed.is_strict, parsed.answer) == (True, "A-B")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So: <reasoning>r</reasoning><response>A-B</response>", "A-B"),
        ("<reasoning>r</reasoning><response>A-B</response> done", "A-B"),
        ("<reasoning>r</reasoning>and<response>A-B</response>", "A-B"),
        ("<reasoning> </reasoning><response>A-B</response>", "A-B"),
        ("<reasoning>r</reasoning><response> </response>", None),
        ("<think>t</think><reasoning>r</reasoning><response>A-B</response>", "A-B"),
        ("<reasoning>r<think></think></reasoning><response>A-B</response>", "A-B"),
        ("<reasoning>r</reasoning><response>X</response><response>A-B</response>", "A-B"),
        ("<reasoning>r</reasoning>A-B</response>", "A-B"),
        ("<reasoning>r<response>A-B</response>", "A-B"),
        ("r</reasoning><response>A-B</response>", "A-B"),
        ("<reasoning>r</reasoning><response>A-B", "A-B"),
        ("<response>A-B</response><reasoning>r</reasoning>", "A-B"),
        ("A-B", None),
        ("", None),
    ],
)
def test_anything_else_breaks_the_contract_but_may_still_hold_an_answer(text, answer):
    parsed = parse_completion(text)
    assert (parsed.is_strict, parsed.answer) == (False, answer)
    assert parsed.reason
