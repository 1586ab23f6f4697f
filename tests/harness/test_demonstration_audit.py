"""A rewritten demonstration may change markers and wording; each other mutation is caught."""

import pytest
from harness_strategies import harnesses
from hypothesis import given
from hypothesis import strategies as st

from harness.audit import audit_demonstrations
from harness.demonstration_audit import final_answer
from harness.model import Demonstration, Skill, SkillBank

BANK = SkillBank(skills=tuple(Skill(skill_id=f"s{n}", title=f"T{n}", trigger="t", action=f"a{n}") for n in range(1, 4)))
BEFORE = Demonstration(
    demonstration_id="d1",
    task_id="t1",
    inputs={"question": "From K07 to K12.", "map": "Red: K07 K09 K12; time 3.5"},
    completion=(
        "<reasoning>Relevant Strategy Selection:\nSkill 1, Skill 2\nCandidate Routes:\n"
        "[Using Skill 1] ride Red K07 K09 K12\nScore Calculation:\n[Using Skill 2] the time is 3.5 + 2"
        "</reasoning><response>K07-K09-K12</response>"
    ),
)


def rewritten(old: str, new: str) -> Demonstration:
    assert BEFORE.completion.count(old) >= 1
    return BEFORE.model_copy(update={"completion": BEFORE.completion.replace(old, new)})


def codes(after: Demonstration, bank: SkillBank = BANK) -> list[str]:
    return [finding.code for finding in audit_demonstrations([BEFORE], [after], bank)]


def test_the_source_itself_passes():
    assert codes(BEFORE) == []


def test_new_markers_selection_and_wording_pass():
    text = BEFORE.completion.replace("Skill 2", "Skill 3").replace("ride Red", "go by Red")
    assert codes(BEFORE.model_copy(update={"completion": text})) == []


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("<response>K07-K09-K12", "<response>K07-K12", "demonstration_answer_changed"),
        ("3.5 + 2", "3.5 + 4", "demonstration_numbers_changed"),
        ("3.5 + 2", "2 + 3.5", "demonstration_numbers_changed"),
        ("ride Red", "ride", "demonstration_facts_changed"),
        ("Score Calculation:\n", "", "demonstration_sections_changed"),
        ("[Using Skill 2] the", "[Using Skill 1] the", "marker_repeated"),
        ("[Using Skill 2] the", "the", "selected_skill_not_used"),
        ("Skill 1, Skill 2\n", "Skill 1\n", "used_skill_not_selected"),
        ("Skill 2", "Skill 4", "unknown_skill_number"),
    ],
)
def test_each_mutation_is_named(old, new, code):
    assert code in codes(rewritten(old, new))


def test_inputs_ids_and_count_may_not_change():
    assert codes(BEFORE.model_copy(update={"task_id": "t2"})) == ["demonstration_id_changed"]
    assert codes(BEFORE.model_copy(update={"demonstration_id": "d2"})) == ["demonstration_id_changed"]
    other = {**BEFORE.inputs, "question": "From K07 to K12!"}
    assert codes(BEFORE.model_copy(update={"inputs": other})) == ["demonstration_facts_changed"]
    found = audit_demonstrations([BEFORE], [], BANK)
    assert [finding.code for finding in found] == ["demonstration_count_changed"]


def test_the_message_names_the_missing_fact():
    found = audit_demonstrations([BEFORE], [rewritten("ride Red K07", "ride K07")], BANK)
    assert "missing ['Red'], added []" in found[0].message


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<response>A</response> then <response> B </response>", "B"),
        ("working\n\nA-B \n", "A-B"),
        ("", ""),
    ],
)
def test_final_answer_is_the_last_response_or_the_last_line(text, answer):
    assert final_answer(text) == answer


@given(harness=harnesses(min_demonstrations=1), data=st.data())
def test_every_dropped_input_name_is_caught(harness, data):
    shown = harness.demonstrations[0]
    spoken = shown.completion.replace("</reasoning>", " K07 新宿</reasoning>")
    inputs = {**shown.inputs, "map": f"{shown.inputs['map']} K07 新宿"}
    before = shown.model_copy(update={"completion": spoken, "inputs": inputs})
    dropped = data.draw(st.sampled_from([" K07 新宿</", " 新宿</"]))
    after = before.model_copy(update={"completion": spoken.replace(dropped, "</", 1)})
    found = {finding.code for finding in audit_demonstrations([before], [after], harness.bank)}
    assert "demonstration_facts_changed" in found
