"""Edits apply exactly where they say, or raise; the source never changes."""

import pytest
from harness_strategies import harnesses, texts
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from harness.edit import (
    AddDemonstration,
    AddSkill,
    AppendExecution,
    DeleteSkill,
    EditRejected,
    HarnessEdit,
    RemoveDemonstration,
    ReplaceDemonstration,
    ReplaceText,
    RewriteSkill,
    SetExecution,
    SetHowToUse,
    SetSelection,
    apply_edits,
)
from harness.model import Demonstration, Harness, Protocol, Skill, SkillBank

DEMONSTRATION = Demonstration(demonstration_id="d1", task_id="t1", inputs={"question": "A to B"}, completion="A-B")
HARNESS = Harness(
    family="metro",
    input_template="{question}",
    bank=SkillBank(
        how_to_use="Use the skills.",
        skills=(
            Skill(skill_id="s1", title="One", trigger="always", action="ride and ride"),
            Skill(skill_id="s2", title="Two", trigger="change", action="mark it", guard="once"),
        ),
    ),
    protocol=Protocol(selection="Pick.", execution="Think first. Then answer."),
    demonstrations=(DEMONSTRATION,),
    output_contract="tags",
)


def test_no_edits_give_the_same_version():
    assert apply_edits(HARNESS, []).harness_id == HARNESS.harness_id


def test_the_source_is_not_changed_and_the_id_is_computed_afresh():
    before = HARNESS.harness_id
    after = apply_edits(HARNESS, [SetExecution(text="Answer.")])
    assert HARNESS.harness_id == before
    assert HARNESS.protocol.execution == "Think first. Then answer."
    assert after.harness_id != before


def test_each_text_edit_reaches_its_own_section():
    after = apply_edits(
        HARNESS,
        [SetHowToUse(text="H"), SetSelection(text="S"), SetExecution(text="E"), AppendExecution(text=" more. ")],
    )
    assert (after.bank.how_to_use, after.protocol.selection, after.protocol.execution) == ("H", "S", "E more.")


def test_append_to_an_empty_protocol_adds_no_space():
    after = apply_edits(HARNESS, [SetExecution(text=""), AppendExecution(text="Answer.")])
    assert after.protocol.execution == "Answer."


def test_a_new_skill_takes_the_number_asked_for():
    after = apply_edits(HARNESS, [AddSkill(title="New", trigger="t", action="a", number=2)])
    assert [skill.title for skill in after.bank.skills] == ["One", "New", "Two"]


def test_a_new_skill_goes_last_without_a_number():
    after = apply_edits(HARNESS, [AddSkill(title="New", trigger="t", action="a")])
    assert [skill.title for skill in after.bank.skills] == ["One", "Two", "New"]


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_number_outside_the_bank_is_refused(number):
    with pytest.raises(EditRejected, match=f"got skill number {number}; expected 1..3"):
        apply_edits(HARNESS, [AddSkill(title="New", trigger="t", action="a", number=number)])


def test_rewrite_changes_only_the_given_fields_and_keeps_id_and_number():
    after = apply_edits(HARNESS, [RewriteSkill(skill_id="s2", action="mark each change", guard="")])
    skill = after.bank.skills[1]
    assert (skill.skill_id, skill.title, skill.trigger) == ("s2", "Two", "change")
    assert (skill.action, skill.guard) == ("mark each change", "")


def test_rewrite_without_a_field_is_refused():
    with pytest.raises(EditRejected, match="no field is given"):
        apply_edits(HARNESS, [RewriteSkill(skill_id="s2")])


def test_delete_removes_one_skill():
    assert [s.skill_id for s in apply_edits(HARNESS, [DeleteSkill(skill_id="s1")]).bank.skills] == ["s2"]


@pytest.mark.parametrize(
    "edit",
    [RewriteSkill(skill_id="s9", action="x"), DeleteSkill(skill_id="s9"), RemoveDemonstration(demonstration_id="d9")],
)
def test_a_missing_id_is_refused_with_the_known_ids(edit):
    with pytest.raises(EditRejected, match=r"(s9|d9).*holds \['(s1|d1)'"):
        apply_edits(HARNESS, [edit])


def test_the_same_content_added_again_after_a_rewrite_gets_another_id():
    # Wound 14: the id is a function of the content, so the second skill would collide with the rewritten first.
    first = apply_edits(HARNESS, [AddSkill(title="New", trigger="t", action="a")])
    new_id = first.bank.skills[-1].skill_id
    renamed = apply_edits(first, [RewriteSkill(skill_id=new_id, title="Renamed")])
    second = apply_edits(renamed, [AddSkill(title="New", trigger="t", action="a")])
    ids = [skill.skill_id for skill in second.bank.skills]
    assert len(second.bank.skills) == 4
    assert len(set(ids)) == 4


def test_an_id_deleted_in_the_same_list_is_not_used_again():
    first = apply_edits(HARNESS, [AddSkill(title="New", trigger="t", action="a")])
    new_id = first.bank.skills[-1].skill_id
    again = apply_edits(first, [DeleteSkill(skill_id=new_id), AddSkill(title="New", trigger="t", action="a")])
    assert again.bank.skills[-1].skill_id != new_id


def test_a_duplicate_title_is_refused():
    with pytest.raises(EditRejected, match="a skill titled 'One' exists already"):
        apply_edits(HARNESS, [AddSkill(title="One", trigger="t", action="a")])
    with pytest.raises(EditRejected, match="titles must be unique"):
        apply_edits(HARNESS, [RewriteSkill(skill_id="s2", title="One")])


def test_a_blank_action_is_refused():
    with pytest.raises(EditRejected, match="must not be blank"):
        apply_edits(HARNESS, [RewriteSkill(skill_id="s1", action="  ")])


def test_replace_text_changes_the_single_occurrence():
    after = apply_edits(HARNESS, [ReplaceText(section="execution", anchor="Think first", text="Plan")])
    assert after.protocol.execution == "Plan. Then answer."


def test_replace_text_reaches_one_skill():
    after = apply_edits(HARNESS, [ReplaceText(section="action", skill_id="s2", anchor="it", text="the stop")])
    assert [skill.action for skill in after.bank.skills] == ["ride and ride", "mark the stop"]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (ReplaceText(section="execution", anchor="absent", text="x"), "occurs 0 times in execution"),
        (ReplaceText(section="action", skill_id="s1", anchor="ride", text="x"), "occurs 2 times in action of skill s1"),
        (ReplaceText(section="execution", anchor="", text="x"), "the anchor is empty"),
        (ReplaceText(section="action", anchor="ride", text="x"), "takes the id of one skill"),
        (ReplaceText(section="execution", skill_id="s1", anchor="Think", text="x"), "takes no skill id"),
        (ReplaceText(section="guard", skill_id="s9", anchor="x", text="y"), "no skill has id 's9'"),
    ],
)
def test_a_missing_or_ambiguous_anchor_is_refused(edit, reason):
    with pytest.raises(EditRejected, match=reason):
        apply_edits(HARNESS, [edit])


def test_overlapping_occurrences_are_ambiguous():
    harness = apply_edits(HARNESS, [SetExecution(text="aaa")])
    with pytest.raises(EditRejected, match="occurs 2 times"):  # "aa" stands at 0 and at 1
        apply_edits(harness, [ReplaceText(section="execution", anchor="aa", text="b")])


def test_demonstrations_are_added_replaced_and_removed():
    new = Demonstration(demonstration_id="d2", task_id="t2", inputs={"question": "q"}, completion="c")
    added = apply_edits(HARNESS, [AddDemonstration(demonstration=new, number=1)])
    assert [shown.demonstration_id for shown in added.demonstrations] == ["d2", "d1"]
    replaced = apply_edits(HARNESS, [ReplaceDemonstration(demonstration_id="d1", demonstration=new)])
    assert replaced.demonstrations == (new,)
    assert apply_edits(HARNESS, [RemoveDemonstration(demonstration_id="d1")]).demonstrations == ()


def test_a_taken_demonstration_id_is_refused():
    with pytest.raises(EditRejected, match="'d1' is taken"):
        apply_edits(HARNESS, [AddDemonstration(demonstration=DEMONSTRATION)])


def test_replacing_a_demonstration_under_its_own_id_is_allowed():
    new = DEMONSTRATION.model_copy(update={"completion": "other"})
    assert apply_edits(HARNESS, [ReplaceDemonstration(demonstration_id="d1", demonstration=new)]).demonstrations == (
        new,
    )


def test_the_refusal_names_the_edit_by_number_and_kind():
    with pytest.raises(EditRejected) as refusal:
        apply_edits(HARNESS, [SetExecution(text="x"), DeleteSkill(skill_id="s9")])
    assert (refusal.value.number, refusal.value.op) == (2, "delete_skill")


def test_edits_parse_by_op_and_unknown_ops_or_fields_are_refused():
    adapter = TypeAdapter(HarnessEdit)
    assert adapter.validate_python({"op": "delete_skill", "skill_id": "s1"}) == DeleteSkill(skill_id="s1")
    for bad in ({"op": "set_contract", "text": "x"}, {"op": "delete_skill", "skill_id": "s1", "extra": 1}):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)


@given(harness=harnesses(), text=texts, anchor=texts)
def test_replace_text_applies_exactly_or_raises(harness, text, anchor):
    execution = harness.protocol.execution
    starts = [index for index in range(len(execution)) if execution.startswith(anchor, index)]
    edit = ReplaceText(section="execution", anchor=anchor, text=text)
    if len(starts) == 1:
        expected = execution[: starts[0]] + text + execution[starts[0] + len(anchor) :]
        assert apply_edits(harness, [edit]).protocol.execution == expected
    else:
        with pytest.raises(EditRejected):
            apply_edits(harness, [edit])


@given(harness=harnesses(min_skills=1), rounds=st.integers(1, 4), data=st.data())
def test_ids_stay_unique_and_frozen_parts_stay_whatever_is_edited(harness, rounds, data):
    current = harness
    for index in range(rounds):
        edits = [AddSkill(title=f"New {index}", trigger="t", action="same")]
        if current.bank.skills:
            edits.append(DeleteSkill(skill_id=data.draw(st.sampled_from(current.bank.skills)).skill_id))
        current = apply_edits(current, edits)
    ids = [skill.skill_id for skill in current.bank.skills]
    assert len(set(ids)) == len(ids) == len(harness.bank.skills)
    for part in ("family", "input_template", "instructions", "output_contract"):
        assert getattr(current, part) == getattr(harness, part)


def test_a_copy_with_changes_has_its_own_id():
    # The id is cached on first use; pydantic's model_copy would carry it over.
    assert HARNESS.harness_id != HARNESS.model_copy(update={"family": "travel"}).harness_id
