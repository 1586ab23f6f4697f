"""The best val pair is picked; a model decides among equals only, and its words are checked."""

import json

import pytest
from scripted_model import scripted

from agents.records import Contender
from agents.selector import Selector


def pair(name: str, val_score: float, round_number: int = 0) -> Contender:
    return Contender(
        pair_id=name, checkpoint_id="c", harness_id=f"h-{name}", val_score=val_score, round_number=round_number
    )


PAIRS = [pair("p0", 0.40), pair("p1", 0.55, 1), pair("p2", 0.55, 2), pair("p3", 0.50, 3)]


def choice(pair_id: str, val_score: float) -> str:
    return json.dumps({"pair_id": pair_id, "val_score": val_score, "reason": "It was measured best."})


async def test_the_rule_picks_the_earliest_of_the_best():
    selection = await Selector().select(PAIRS)
    assert (selection.pair_id, selection.index, selection.val_score) == ("p1", 1, 0.55)


async def test_a_score_of_zero_is_a_score():
    assert (await Selector().select([pair("p0", 0.0)])).pair_id == "p0"


async def test_no_pair_is_refused():
    with pytest.raises(ValueError, match="got no pair"):
        await Selector().select([])


async def test_a_model_may_choose_among_equals():
    selection = await Selector(model=scripted("selector", ("pair p2", choice("p2", 0.55)))).select(PAIRS)
    assert (selection.pair_id, selection.index, selection.reason) == ("p2", 2, "It was measured best.")


async def test_a_model_cannot_pick_a_stranger_a_worse_pair_or_misquote_a_score():
    model = scripted(
        "selector",
        ("pair p0", choice("p9", 0.99)),
        ("'p9' is not in the list", choice("p3", 0.50)),
        ("the best is 0.5500", choice("p1", 0.56)),
    )
    selection = await Selector(model=model).select(PAIRS)
    assert selection.pair_id == "p1"
    assert selection.reason.endswith("the model gave no valid choice, so the rule decided")
    assert "p1 has val score 0.5500; got 0.5600" in selection.record.refusals[2].errors[0]


async def test_answers_that_were_paid_and_not_usable_are_counted():
    model = scripted("selector", *[("", "no JSON at all")] * 4)
    record = (await Selector(model=model).select(PAIRS)).record
    # one answer and three repairs, 100 prompt tokens, 10 completion tokens and 0.001 USD each
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (400, 40)
    assert record.usage.cost_usd == pytest.approx(0.004)
