"""Typed edits of a harness, and :func:`apply_edits`, the only way to make a new version.

Every edit names its target exactly (a skill id, a demonstration id, an anchor text that occurs
once). A target that is missing or ambiguous raises :class:`EditRejected`; nothing is ever applied
somewhere else. Edits reach the skill bank, the protocol and the demonstrations alone: no edit
exists that could touch input assembly, output contract or family.
Source: METHODS §0 (what may be edited).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from harness.draft import SKILL_TEXTS, Draft, Refusal
from harness.model import Demonstration, Harness
from harness.records import Record

Section = Literal["how_to_use", "selection", "execution", "title", "trigger", "action", "guard", "check"]
"""A text of the harness; the last five belong to one skill."""


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


def _skill_texts(edit: AddSkill | RewriteSkill) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = {name: getattr(edit, name) for name in SKILL_TEXTS}
    return {name: value for name, value in values.items() if value is not None}


def _apply(draft: Draft, edit: HarnessEdit) -> None:
    match edit:
        case AddSkill():
            draft.add_skill(_skill_texts(edit), edit.number)
        case RewriteSkill():
            draft.rewrite_skill(edit.skill_id, _skill_texts(edit))
        case DeleteSkill():
            draft.delete_skill(edit.skill_id)
        case SetHowToUse():
            draft.texts["how_to_use"] = edit.text
        case SetSelection():
            draft.texts["selection"] = edit.text
        case SetExecution():
            draft.texts["execution"] = edit.text
        case AppendExecution():
            draft.append_execution(edit.text)
        case ReplaceText():
            draft.replace_text(edit.section, edit.skill_id, edit.anchor, edit.text)
        case AddDemonstration():
            draft.add_demonstration(edit.demonstration, edit.number)
        case RemoveDemonstration():
            draft.remove_demonstration(edit.demonstration_id)
        case ReplaceDemonstration():
            draft.replace_demonstration(edit.demonstration_id, edit.demonstration)


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
    draft = Draft(harness)
    for number, edit in enumerate(edits, start=1):
        try:
            _apply(draft, edit)
            draft.build()
        except Refusal as refusal:
            raise EditRejected(str(refusal), op=edit.op, number=number) from None
        except ValidationError as error:
            reason = "; ".join(fault["msg"] for fault in error.errors())
            raise EditRejected(reason, op=edit.op, number=number) from None
    return draft.build()
