"""Typed edits of a harness, and :func:`apply_edits`, the only way to make a new version.

Every edit names its target exactly (a skill id, a demonstration id, an anchor text that occurs
once). A target that is missing or ambiguous raises :class:`EditRejected`; nothing is ever applied
somewhere else. Edits reach the skill bank, the protocol and the demonstrations alone: no edit
exists that could touch input assembly, output contract or family.
Source: METHODS §0 (what may be edited).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from harness.model import Demonstration, Harness, Protocol, Skill, SkillBank
from harness.records import Record, content_id

Section = Literal["how_to_use", "selection", "execution", "title", "trigger", "action", "guard", "check"]
"""A text of the harness; the last five belong to one skill."""

_SKILL_SECTIONS = ("title", "trigger", "action", "guard", "check")


class EditRejected(ValueError):  # noqa: N818 - the name says what happened to the edit
    """An edit that cannot be applied exactly as written; ``number`` counts edits from 1."""

    def __init__(self, reason: str, *, op: str, number: int = 1) -> None:
        super().__init__(f"edit {number} ({op}) was not applied: {reason}")
        self.reason = reason
        self.op = op
        self.number = number


class AddSkill(Record):
    """Insert a new skill; its id is made fresh over the bank that is edited."""

    op: Literal["add_skill"] = "add_skill"
    title: str
    trigger: str
    action: str
    guard: str = ""
    check: str = ""
    number: int | None = None
    """Number the new skill shall have, from 1; None appends it at the end."""


class RewriteSkill(Record):
    """Change the given fields of one skill; it keeps its id and its number."""

    op: Literal["rewrite_skill"] = "rewrite_skill"
    skill_id: str
    title: str | None = None
    trigger: str | None = None
    action: str | None = None
    guard: str | None = None
    check: str | None = None


class DeleteSkill(Record):
    """Remove one skill; the skills behind it move up by one number."""

    op: Literal["delete_skill"] = "delete_skill"
    skill_id: str


class SetHowToUse(Record):
    """Replace the sentence that says how to use the bank."""

    op: Literal["set_how_to_use"] = "set_how_to_use"
    text: str


class SetSelection(Record):
    """Replace the selection protocol."""

    op: Literal["set_selection"] = "set_selection"
    text: str


class SetExecution(Record):
    """Replace the execution protocol."""

    op: Literal["set_execution"] = "set_execution"
    text: str


class AppendExecution(Record):
    """Add one sentence behind the execution protocol."""

    op: Literal["append_execution"] = "append_execution"
    text: str


class ReplaceText(Record):
    """Replace ``anchor``, which must occur exactly once in the named section, by ``text``."""

    op: Literal["replace_text"] = "replace_text"
    section: Section
    skill_id: str = ""
    """Required for title, trigger, action, guard and check; empty for the other sections."""
    anchor: str
    text: str


class AddDemonstration(Record):
    """Append a demonstration, or insert it at ``number`` (from 1)."""

    op: Literal["add_demonstration"] = "add_demonstration"
    demonstration: Demonstration
    number: int | None = None


class RemoveDemonstration(Record):
    """Remove one demonstration."""

    op: Literal["remove_demonstration"] = "remove_demonstration"
    demonstration_id: str


class ReplaceDemonstration(Record):
    """Put ``demonstration`` where ``demonstration_id`` stands."""

    op: Literal["replace_demonstration"] = "replace_demonstration"
    demonstration_id: str
    demonstration: Demonstration


HarnessEdit = Annotated[
    AddSkill
    | RewriteSkill
    | DeleteSkill
    | SetHowToUse
    | SetSelection
    | SetExecution
    | AppendExecution
    | ReplaceText
    | AddDemonstration
    | RemoveDemonstration
    | ReplaceDemonstration,
    Field(discriminator="op"),
]
"""One edit; the union is discriminated on ``op``."""


class _Draft:
    """The mutable working copy of the editable parts while a list of edits runs."""

    def __init__(self, source: Harness) -> None:
        self.skills = list(source.bank.skills)
        self.texts = {
            "how_to_use": source.bank.how_to_use,
            "selection": source.protocol.selection,
            "execution": source.protocol.execution,
        }
        self.demonstrations = list(source.demonstrations)
        self.used_skill_ids = {skill.skill_id for skill in source.bank.skills}

    def skill_index(self, skill_id: str) -> int:
        """Position of a skill in the bank that is edited."""
        for index, skill in enumerate(self.skills):
            if skill.skill_id == skill_id:
                return index
        known = [skill.skill_id for skill in self.skills]
        raise _Refusal(f"no skill has id {skill_id!r}; the bank holds {known}; name one of them")

    def demonstration_index(self, demonstration_id: str) -> int:
        """Position of a demonstration."""
        known = [demonstration.demonstration_id for demonstration in self.demonstrations]
        if demonstration_id not in known:
            raise _Refusal(f"no demonstration has id {demonstration_id!r}; the harness holds {known}; name one of them")
        return known.index(demonstration_id)

    def fresh_skill_id(self, content: dict[str, JsonValue]) -> str:
        """An id no skill of this bank has or had; the same content gives the same id where it is free."""
        for salt in count():
            candidate = content_id({**content, "salt": salt}, prefix="skill", length=8)
            if candidate not in self.used_skill_ids:
                self.used_skill_ids.add(candidate)
                return candidate
        raise AssertionError("count() never ends")

    def harness(self, source: Harness) -> Harness:
        """The new version; built anew so that it is validated and its id is computed afresh."""
        return Harness(
            family=source.family,
            input_template=source.input_template,
            instructions=source.instructions,
            bank=SkillBank(how_to_use=self.texts["how_to_use"], skills=tuple(self.skills)),
            protocol=Protocol(selection=self.texts["selection"], execution=self.texts["execution"]),
            demonstrations=tuple(self.demonstrations),
            output_contract=source.output_contract,
        )


class _Refusal(Exception):  # noqa: N818
    """Why one edit cannot be applied; :func:`apply_edits` adds which edit it was."""


def _slot(number: int | None, size: int, what: str) -> int:
    """Turn a number from 1 into an insertion index, refusing numbers outside 1..size+1."""
    if number is None:
        return size
    if not 1 <= number <= size + 1:
        raise _Refusal(f"got {what} number {number}; expected 1..{size + 1}")
    return number - 1


def _skill_fields(edit: AddSkill | RewriteSkill) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = {name: getattr(edit, name) for name in _SKILL_SECTIONS}
    return {name: value for name, value in values.items() if value is not None}


def _rewritten(skill: Skill, fields: dict[str, JsonValue]) -> Skill:
    return Skill.model_validate({**skill.model_dump(), **fields})


def _replaced(text: str, anchor: str, replacement: str, where: str) -> str:
    """Replace the single occurrence of ``anchor``; overlapping occurrences count as several."""
    if not anchor:
        raise _Refusal(f"the anchor is empty; give a text that occurs exactly once in {where}")
    found = sum(text.startswith(anchor, index) for index in range(len(text)))
    if found != 1:
        raise _Refusal(f"anchor {anchor!r} occurs {found} times in {where}, expected exactly once; it reads {text!r}")
    return text.replace(anchor, replacement)


def _edit_skills(draft: _Draft, edit: AddSkill | RewriteSkill | DeleteSkill) -> None:
    if isinstance(edit, AddSkill):
        fields = _skill_fields(edit)
        slot = _slot(edit.number, len(draft.skills), "skill")
        skill = Skill.model_validate({"skill_id": draft.fresh_skill_id(fields), **fields})
        if skill.title in [other.title for other in draft.skills]:
            raise _Refusal(f"a skill titled {skill.title!r} exists already; rewrite it or choose another title")
        draft.skills.insert(slot, skill)
        return
    index = draft.skill_index(edit.skill_id)
    if isinstance(edit, DeleteSkill):
        del draft.skills[index]
        return
    fields = _skill_fields(edit)
    if not fields:
        raise _Refusal(f"no field is given for skill {edit.skill_id!r}; give at least one of {list(_SKILL_SECTIONS)}")
    draft.skills[index] = _rewritten(draft.skills[index], fields)


def _replace_text(draft: _Draft, edit: ReplaceText) -> None:
    belongs_to_skill = edit.section in _SKILL_SECTIONS
    if belongs_to_skill != bool(edit.skill_id):
        expected = "the id of one skill" if belongs_to_skill else "no skill id"
        raise _Refusal(f"section {edit.section!r} takes {expected}; got skill_id {edit.skill_id!r}")
    if not belongs_to_skill:
        draft.texts[edit.section] = _replaced(draft.texts[edit.section], edit.anchor, edit.text, edit.section)
        return
    index = draft.skill_index(edit.skill_id)
    where = f"{edit.section} of skill {edit.skill_id}"
    text = _replaced(getattr(draft.skills[index], edit.section), edit.anchor, edit.text, where)
    draft.skills[index] = _rewritten(draft.skills[index], {edit.section: text})


def _edit_demonstrations(draft: _Draft, edit: AddDemonstration | RemoveDemonstration | ReplaceDemonstration) -> None:
    if isinstance(edit, RemoveDemonstration):
        del draft.demonstrations[draft.demonstration_index(edit.demonstration_id)]
        return
    index = None if isinstance(edit, AddDemonstration) else draft.demonstration_index(edit.demonstration_id)
    new_id = edit.demonstration.demonstration_id
    others = [shown.demonstration_id for place, shown in enumerate(draft.demonstrations) if place != index]
    if new_id in others:
        raise _Refusal(f"demonstration id {new_id!r} is taken; the harness holds {others}; give a new id")
    if isinstance(edit, AddDemonstration):
        draft.demonstrations.insert(_slot(edit.number, len(others), "demonstration"), edit.demonstration)
    elif index is not None:
        draft.demonstrations[index] = edit.demonstration


def _apply(draft: _Draft, edit: HarnessEdit) -> None:
    match edit:
        case AddSkill() | RewriteSkill() | DeleteSkill():
            _edit_skills(draft, edit)
        case SetHowToUse():
            draft.texts["how_to_use"] = edit.text
        case SetSelection():
            draft.texts["selection"] = edit.text
        case SetExecution():
            draft.texts["execution"] = edit.text
        case AppendExecution():
            parts = [draft.texts["execution"], edit.text.strip()]
            draft.texts["execution"] = " ".join(part for part in parts if part)
        case ReplaceText():
            _replace_text(draft, edit)
        case AddDemonstration() | RemoveDemonstration() | ReplaceDemonstration():
            _edit_demonstrations(draft, edit)


def apply_edits(harness: Harness, edits: Sequence[HarnessEdit]) -> Harness:
    """Apply ``edits`` in order to a copy of ``harness``; all of them or none.

    Args:
        harness: the version to edit; it is never changed.
        edits: typed edits; each sees what the edits before it made.

    Returns:
        The new version. No edits give an equal version with the same id.

    Raises:
        EditRejected: an edit names a missing or ambiguous target, or leaves a part that is not
            valid (a blank or duplicate title…); the message names the edit and the fault.
    """
    draft = _Draft(harness)
    for number, edit in enumerate(edits, start=1):
        try:
            _apply(draft, edit)
            draft.harness(harness)
        except _Refusal as refusal:
            raise EditRejected(str(refusal), op=edit.op, number=number) from None
        except ValidationError as error:
            reason = "; ".join(fault["msg"] for fault in error.errors())
            raise EditRejected(reason, op=edit.op, number=number) from None
    return draft.harness(harness)
