"""A diff names every change and nothing else, and a word diff loses no character."""

from harness_strategies import harnesses
from hypothesis import given
from hypothesis import strategies as st

from harness.diff import diff_harness, format_diff, format_words, word_diff
from harness.edit import AddSkill, DeleteSkill, RewriteSkill, SetExecution, SetSelection, apply_edits
from harness.model import Demonstration, Harness, Protocol, Skill, SkillBank

SOURCE = Harness(
    family="metro",
    input_template="{question}",
    bank=SkillBank(
        skills=tuple(Skill(skill_id=f"s{n}", title=f"T{n}", trigger="t", action=f"a{n}") for n in range(1, 4))
    ),
    protocol=Protocol(execution="Think. Answer."),
    demonstrations=(Demonstration(demonstration_id="d1", task_id="t1", inputs={"question": "q"}, completion="c"),),
    output_contract="tags",
)


def named(after: Harness) -> list[tuple[str, str]]:
    return [(change.kind, change.where) for change in diff_harness(SOURCE, after).changes]


def test_equal_versions_have_no_changes():
    assert named(SOURCE) == []


def test_texts_and_skills_are_named_by_stable_path():
    after = apply_edits(
        SOURCE,
        [SetExecution(text="Answer."), SetSelection(text="Pick."), RewriteSkill(skill_id="s2", action="x", guard="g")],
    )
    assert named(after) == [
        ("changed", "bank.skills[s2].action"),
        ("added", "bank.skills[s2].guard"),
        ("added", "protocol.selection"),
        ("changed", "protocol.execution"),
    ]


def test_insertion_and_removal_are_no_moves_of_the_others():
    after = apply_edits(SOURCE, [DeleteSkill(skill_id="s1"), AddSkill(title="New", trigger="t", action="n", number=1)])
    new_id = after.bank.skills[0].skill_id
    assert named(after) == [("removed", "bank.skills[s1]"), ("added", f"bank.skills[{new_id}]")]


def test_a_reordered_skill_is_a_move():
    skills = SOURCE.bank.skills
    after = Harness.model_validate({**SOURCE.model_dump(), "bank": {"skills": [skills[2], skills[0], skills[1]]}})
    # s1 and s2 keep their order; s3 jumped over both.
    assert named(after) == [("moved", "bank.skills[s3]")]


def test_demonstrations_are_compared_by_id():
    shown = SOURCE.demonstrations[0]
    other = shown.model_copy(update={"completion": "d"})
    assert named(Harness.model_validate({**SOURCE.model_dump(), "demonstrations": [other]})) == [
        ("changed", "demonstrations[d1]")
    ]
    assert named(Harness.model_validate({**SOURCE.model_dump(), "demonstrations": []})) == [
        ("removed", "demonstrations[d1]")
    ]


def test_frozen_parts_are_shown_too():
    assert named(Harness.model_validate({**SOURCE.model_dump(), "output_contract": "x"})) == [
        ("changed", "output_contract")
    ]


def test_words_are_marked():
    assert format_words("Think first. Answer.", "Plan first. Answer.") == "[-Think-]{+Plan+} first. Answer."


def test_the_text_form_names_both_ids_and_the_place():
    after = apply_edits(SOURCE, [RewriteSkill(skill_id="s2", action="x")])
    assert format_diff(diff_harness(SOURCE, after)).splitlines() == [
        f"{SOURCE.harness_id} -> {after.harness_id}",
        "changed skill 2 'T2' action",
        "    [-a2-]{+x+}",
    ]


@given(before=st.text(), after=st.text())
def test_a_word_diff_gives_both_texts_back(before, after):
    spans = word_diff(before, after)
    assert "".join(span.text for span in spans if span.kind != "added") == before
    assert "".join(span.text for span in spans if span.kind != "removed") == after


@given(before=harnesses(), after=harnesses())
def test_no_changes_exactly_when_the_versions_are_equal(before, after):
    assert (diff_harness(before, after).changes == ()) == (before.harness_id == after.harness_id)
