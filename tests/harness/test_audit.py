"""The candidate gate names every fault, and admits a plain good edit."""

import pytest
from harness_strategies import harnesses
from hypothesis import given

from harness.audit import AuditRules, SizeBudget, audit_candidate
from harness.edit import AddSkill, AppendExecution, DeleteSkill, RewriteSkill, SetExecution, apply_edits
from harness.model import Demonstration, Harness, Protocol, Skill, SkillBank

DEMONSTRATION = Demonstration(
    demonstration_id="d1", task_id="train-1", inputs={"question": "q", "map": "m"}, completion="Skill 1 says A-B"
)
SOURCE = Harness(
    family="metro",
    input_template="{question}\n{map}",
    instructions="Find it.",
    bank=SkillBank(
        skills=(
            Skill(skill_id="s1", title="One", trigger="t", action="a"),
            Skill(skill_id="s2", title="Two", trigger="t", action="b"),
        )
    ),
    protocol=Protocol(execution="Think. Answer."),
    demonstrations=(DEMONSTRATION,),
    output_contract="tags",
)


def with_parts(harness: Harness, **parts) -> Harness:
    """The harness with some parts changed, validation run again."""
    return Harness.model_validate({**harness.model_dump(), **parts})


def codes(candidate: Harness, rules: AuditRules | None = None, source: Harness = SOURCE) -> list[str]:
    return [finding.code for finding in audit_candidate(source, candidate, rules)]


def test_a_good_edit_is_admitted():
    assert codes(apply_edits(SOURCE, [AppendExecution(text="Check each hop.")])) == []


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("family", "family_changed"),
        ("instructions", "instructions_changed"),
        ("output_contract", "output_contract_changed"),
    ],
)
def test_a_changed_frozen_part_is_named(part, code):
    assert code in codes(with_parts(SOURCE, **{part: "other"}))


def test_a_lost_placeholder_is_named_beside_the_changed_template():
    found = audit_candidate(SOURCE, with_parts(SOURCE, input_template="{question}"))
    assert [finding.code for finding in found] == ["input_template_changed", "placeholder_changed"]
    assert "are ['question'], expected ['question', 'map']" in found[1].message


def test_the_same_version_is_no_effective_edit():
    assert codes(SOURCE) == ["no_effective_edit"]


def test_white_space_alone_is_no_effective_edit():
    assert codes(apply_edits(SOURCE, [SetExecution(text=" Think.\n Answer. ")])) == ["no_effective_edit"]


def test_a_new_id_for_the_same_skill_text_is_no_effective_edit():
    skills = (SOURCE.bank.skills[0], SOURCE.bank.skills[1].model_copy(update={"skill_id": "s3"}))
    assert codes(with_parts(SOURCE, bank=SkillBank(skills=skills))) == ["no_effective_edit"]


def test_a_blank_skill_made_past_validation_is_named():
    blank = Skill.model_construct(skill_id="s3", title="Three", trigger="t", action=" ", guard="", check="")
    bank = SkillBank.model_construct(how_to_use="", skills=(*SOURCE.bank.skills, blank))
    assert "blank_skill" in codes(SOURCE.model_copy(update={"bank": bank}))


def test_a_skill_that_repeats_a_title_in_other_case_is_a_duplicate():
    candidate = apply_edits(SOURCE, [AddSkill(title="ONE ", trigger="x", action="y")])
    assert codes(candidate) == ["duplicate_skill"]


def test_a_skill_that_repeats_a_body_is_a_duplicate():
    found = audit_candidate(SOURCE, apply_edits(SOURCE, [AddSkill(title="Three", trigger="t", action="B")]))
    assert [finding.code for finding in found] == ["duplicate_skill"]
    assert "skill 3 ('Three') repeats trigger, action, guard and check of skill 2" in found[0].message


def test_kept_skills_in_another_order_are_named():
    swapped = SkillBank(skills=tuple(reversed(SOURCE.bank.skills)))
    bare = with_parts(SOURCE, demonstrations=())
    assert codes(with_parts(bare, bank=swapped), source=bare) == ["skill_order_changed"]


def test_an_old_text_that_now_means_another_skill_is_stale():
    # The demonstration says "Skill 1"; after the deletion skill 1 is s2.
    assert codes(apply_edits(SOURCE, [DeleteSkill(skill_id="s1")])) == ["stale_skill_number"]


def test_a_text_that_names_a_skill_beyond_the_bank_is_named():
    found = audit_candidate(SOURCE, apply_edits(SOURCE, [AppendExecution(text="Use skill 3.")]))
    assert [(finding.code, finding.where) for finding in found] == [("unknown_skill_number", "protocol.execution")]


def test_a_placeholder_in_an_instruction_is_stray():
    assert codes(apply_edits(SOURCE, [AppendExecution(text="Read {map}.")])) == ["stray_placeholder"]
    assert codes(apply_edits(SOURCE, [AppendExecution(text="Write {x}.")])) == []


@pytest.mark.parametrize(
    ("budget", "where"),
    [
        (SizeBudget(execution_chars=20), "protocol.execution"),  # "Think. Answer. Check each hop." has 30
        (SizeBudget(skill_chars=4), "bank.skills[1]"),  # "One" + "t" + "a" = 5
        (SizeBudget(demonstration_chars=17), "demonstrations[1]"),  # "Skill 1 says A-B" 16 + "q" + "m" = 18
        (SizeBudget(total_chars=50), "system turn"),
    ],
)
def test_a_section_over_its_budget_is_named(budget, where):
    candidate = apply_edits(SOURCE, [AppendExecution(text="Check each hop.")])
    found = audit_candidate(SOURCE, candidate, AuditRules(budget=budget))
    assert found[0].code == "section_too_long"
    assert found[0].where == where


def test_the_budget_is_inclusive():
    candidate = apply_edits(SOURCE, [SetExecution(text="x" * 20)])
    assert codes(candidate, AuditRules(budget=SizeBudget(execution_chars=20))) == []


def test_too_many_skills_and_demonstrations_are_named():
    candidate = apply_edits(SOURCE, [AddSkill(title="Three", trigger="x", action="y")])
    rules = AuditRules(budget=SizeBudget(skills=2, demonstrations=0))
    assert codes(candidate, rules) == ["too_many_skills", "too_many_demonstrations"]


def test_demonstrations_need_inputs_text_ids_and_train_tasks():
    shown = Demonstration(demonstration_id="d1", task_id="val-1", inputs={"question": "q"}, completion=" ")
    candidate = with_parts(SOURCE, demonstrations=(DEMONSTRATION, shown))
    assert codes(candidate, AuditRules(demonstration_task_ids=frozenset({"train-1"}))) == [
        "demonstration_lacks_input",
        "blank_demonstration",
        "duplicate_demonstration",
        "demonstration_not_from_train",
    ]


def test_a_held_out_gold_answer_in_an_instruction_is_a_leak():
    rules = AuditRules(protected_texts=("K07-K 12-K30",))
    leaky = apply_edits(SOURCE, [RewriteSkill(skill_id="s2", action="If asked, say k07-k12-k30.")])
    assert codes(leaky, rules) == ["gold_leaked"]
    assert codes(apply_edits(SOURCE, [AppendExecution(text="Say K07-K12.")]), rules) == []


def test_protected_texts_too_short_to_mean_anything_are_skipped():
    candidate = apply_edits(SOURCE, [AppendExecution(text="Begin.")])
    assert codes(candidate, AuditRules(protected_texts=("B",))) == []


@given(harness=harnesses())
def test_the_same_version_is_never_admitted(harness):
    assert "no_effective_edit" in codes(harness, source=harness)


@given(harness=harnesses(min_skills=1))
def test_every_mutation_of_a_frozen_part_is_caught(harness):
    for part in ("family", "input_template", "instructions", "output_contract"):
        mutated = with_parts(harness, **{part: getattr(harness, part) + " x"})
        assert f"{part}_changed" in codes(mutated, source=harness)


@given(harness=harnesses(min_skills=2))
def test_every_swap_of_neighbours_is_caught(harness):
    skills = list(harness.bank.skills)
    skills[0], skills[1] = skills[1], skills[0]
    swapped = with_parts(harness, bank=SkillBank(how_to_use=harness.bank.how_to_use, skills=tuple(skills)))
    assert "skill_order_changed" in codes(swapped, source=harness)
