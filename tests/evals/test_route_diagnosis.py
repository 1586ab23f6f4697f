"""Every fault kind is named, with the facts that show it."""

import pytest

from evals.suites.route import parse_completion
from evals.suites.route_diagnosis import FAULTS, diagnose_route, normalised_links

LINE = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]


def is_link(one, two):
    return (one, two) in LINE or (two, one) in LINE


def diagnose(answer, golds=("A-B-C(transfer)-D",), finish_reason="stop", text=None):
    completion = text or f"<reasoning>r</reasoning><response>{answer}</response>"
    return diagnose_route(parse_completion(completion), golds, finish_reason=finish_reason, is_link=is_link)


def kinds(*args, **kwargs):
    return [diagnosis.fault for diagnosis in diagnose(*args, **kwargs)]


def test_a_right_answer_has_the_one_diagnosis_none():
    assert kinds("A-B-C(transfer)-D") == ["none"]


def test_a_forgotten_mark():
    found = diagnose("A-B-C-D")
    assert [d.fault for d in found] == ["wrong_transfer_mark", "diverging_station"]
    assert found[0].detail == {"forgotten": ["c"], "extra": []}
    assert found[1].detail == {"position": 2, "got": "c", "expected": "c(transfer)", "matched": 2, "gold_stations": 4}


def test_an_extra_mark():
    assert diagnose("A-B(transfer)-C(transfer)-D")[0].detail == {"forgotten": [], "extra": ["b"]}


def test_a_skipped_station_is_a_missing_edge():
    found = diagnose("A-C(transfer)-D")
    assert [d.fault for d in found] == ["missing_edge", "diverging_station"]
    assert found[0].detail == {"edges": [{"position": 0, "from": "a", "to": "c"}]}


def test_a_missing_end_is_a_wrong_endpoint():
    found = diagnose("A-B-C(transfer)")
    assert [d.fault for d in found] == ["wrong_endpoint", "diverging_station"]
    assert found[0].detail == {"destination": {"got": "c", "expected": "d"}}


def test_a_route_written_backwards_is_reversed_and_not_a_wrong_endpoint():
    assert kinds("D-C(transfer)-B-A") == ["reversed_route", "diverging_station"]


def test_a_real_ride_that_is_not_optimal_diverges_only():
    # golds A-B-C; the answer runs on existing edges, between the right ends, with another way round
    assert kinds("A-B-C-D-C", golds=("A-B-C",)) == ["diverging_station"]


def test_a_format_fault_is_reported_beside_a_right_answer():
    found = diagnose("", text="<reasoning>r<response>A-B-C(transfer)-D</response>")
    assert [d.fault for d in found] == ["format_fault"]
    assert found[0].detail == {"reason": "0 times </reasoning>", "has_answer": True}


def test_a_truncated_attempt_without_an_answer():
    assert kinds("", text="<reasoning>going on", finish_reason="length") == ["truncation", "format_fault"]


def test_the_closest_of_several_golds_is_the_reference():
    found = diagnose("A-B-X", golds=("A-C-D", "A-B-D"))
    assert found[-1].detail["expected"] == "d"


def test_every_fault_kind_can_occur():
    seen = {
        *kinds("A-B-C-D"),
        *kinds("A-C(transfer)-D"),
        *kinds("A-B"),
        *kinds("D-C-B-A"),
        *kinds("", text="<reasoning>", finish_reason="length"),
    }
    assert set(FAULTS) == seen


def test_names_that_normalise_to_the_same_text_are_refused():
    with pytest.raises(ValueError, match="distinct"):
        normalised_links(lambda one, two: True, ["Oak Park", "oak_park"])
