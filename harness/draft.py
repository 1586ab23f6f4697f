"""The working copy of a harness' editable parts while a list of edits runs.

Only :mod:`harness.edit` uses it. Each method changes exactly the named target or raises
:class:`Refusal` with what was asked, what is there and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from pydantic import JsonValue

from harness.model import Demonstration, Harness, Protocol, Skill, SkillBank
from harness.records import content_id

SKILL_TEXTS = ("title", "trigger", "action", "guard", "check")
"""The texts of a skill that an edit may change; its id never changes."""


class Refusal(Exception):  # noqa: N818 - an outcome, turned into EditRejected by the caller
    """Why an edit cannot be applied."""


class Draft:
    """Mutable skills, texts and demonstrations of one source harness."""

    def __init__(self, source: Harness) -> None:
        self._source = source
        self.skills = list(source.bank.skills)
        self.texts = {
            "how_to_use": source.bank.how_to_use,
            "selection": source.protocol.selection,
            "execution": source.protocol.execution,
        }
        self.demonstrations = list(source.demonstrations)
        self._used_skill_ids = {skill.skill_id for skill in source.bank.skills}

    def build(self) -> Harness:
        """The new version; built anew so that it is validated and its id is computed afresh."""
        source = self._source
        return Harness(
            family=source.family,
            input_template=source.input_template,
            instructions=source.instructions,
            bank=SkillBank(how_to_use=self.texts["how_to_use"], skills=tuple(self.skills)),
            protocol=Protocol(selection=self.texts["selection"], execution=self.texts["execution"]),
            demonstrations=tuple(self.demonstrations),
            output_contract=source.output_contract,
        )

    def add_skill(self, fields: Mapping[str, JsonValue], number: int | None) -> None:
        """Insert a new skill at ``number`` (from 1; None: at the end) under a fresh id."""
        slot = _slot(number, len(self.skills), "skill")
        skill = Skill.model_validate({"skill_id": self._fresh_skill_id(fields), **fields})
        if skill.title in [other.title for other in self.skills]:
            raise Refusal(f"a skill titled {skill.title!r} exists already; rewrite it or choose another title")
        self.skills.insert(slot, skill)

    def rewrite_skill(self, skill_id: str, fields: Mapping[str, JsonValue]) -> None:
        """Change the given texts of one skill."""
        index = self._skill_index(skill_id)
        if not fields:
            raise Refusal(f"no field is given for skill {skill_id!r}; give at least one of {list(SKILL_TEXTS)}")
        self.skills[index] = Skill.model_validate({**self.skills[index].model_dump(), **fields})

    def delete_skill(self, skill_id: str) -> None:
        """Remove one skill."""
        del self.skills[self._skill_index(skill_id)]

    def append_execution(self, text: str) -> None:
        """Add a sentence behind the execution protocol."""
        self.texts["execution"] = " ".join(part for part in (self.texts["execution"], text.strip()) if part)

    def replace_text(self, section: str, skill_id: str, anchor: str, text: str) -> None:
        """Replace the single occurrence of ``anchor`` in one section."""
        belongs_to_skill = section in SKILL_TEXTS
        if belongs_to_skill != bool(skill_id):
            expected = "the id of one skill" if belongs_to_skill else "no skill id"
            raise Refusal(f"section {section!r} takes {expected}; got skill_id {skill_id!r}")
        if not belongs_to_skill:
            self.texts[section] = _replaced(self.texts[section], anchor, text, section)
            return
        old = getattr(self.skills[self._skill_index(skill_id)], section)
        self.rewrite_skill(skill_id, {section: _replaced(old, anchor, text, f"{section} of skill {skill_id}")})

    def add_demonstration(self, demonstration: Demonstration, number: int | None) -> None:
        """Insert a demonstration at ``number`` (from 1; None: at the end)."""
        slot = _slot(number, len(self.demonstrations), "demonstration")
        self._refuse_taken(demonstration.demonstration_id, self.demonstrations)
        self.demonstrations.insert(slot, demonstration)

    def remove_demonstration(self, demonstration_id: str) -> None:
        """Remove one demonstration."""
        del self.demonstrations[self._demonstration_index(demonstration_id)]

    def replace_demonstration(self, demonstration_id: str, demonstration: Demonstration) -> None:
        """Put another demonstration in the place of one."""
        index = self._demonstration_index(demonstration_id)
        others = self.demonstrations[:index] + self.demonstrations[index + 1 :]
        self._refuse_taken(demonstration.demonstration_id, others)
        self.demonstrations[index] = demonstration

    def _skill_index(self, skill_id: str) -> int:
        known = [skill.skill_id for skill in self.skills]
        if skill_id not in known:
            raise Refusal(f"no skill has id {skill_id!r}; the bank holds {known}; name one of them")
        return known.index(skill_id)

    def _demonstration_index(self, demonstration_id: str) -> int:
        known = [shown.demonstration_id for shown in self.demonstrations]
        if demonstration_id not in known:
            raise Refusal(f"no demonstration has id {demonstration_id!r}; the harness holds {known}; name one of them")
        return known.index(demonstration_id)

    def _fresh_skill_id(self, fields: Mapping[str, JsonValue]) -> str:
        """An id that no skill of this bank has or had; a function of the content where that is free."""
        for salt in count():
            skill_id = content_id({**fields, "salt": salt}, prefix="skill", length=8)
            if skill_id not in self._used_skill_ids:
                self._used_skill_ids.add(skill_id)
                return skill_id
        raise AssertionError("count() never ends")

    @staticmethod
    def _refuse_taken(demonstration_id: str, others: list[Demonstration]) -> None:
        known = [shown.demonstration_id for shown in others]
        if demonstration_id in known:
            raise Refusal(f"demonstration id {demonstration_id!r} is taken; the harness holds {known}; give a new id")


def _slot(number: int | None, size: int, what: str) -> int:
    """Turn a number from 1 into an insertion index, refusing numbers outside 1..size+1."""
    if number is None:
        return size
    if not 1 <= number <= size + 1:
        raise Refusal(f"got {what} number {number}; expected 1..{size + 1}")
    return number - 1


def _replaced(text: str, anchor: str, replacement: str, where: str) -> str:
    """Replace the single occurrence of ``anchor``; overlapping occurrences count as several."""
    if not anchor:
        raise Refusal(f"the anchor is empty; give a text that occurs exactly once in {where}")
    found = sum(text.startswith(anchor, index) for index in range(len(text)))
    if found != 1:
        raise Refusal(f"anchor {anchor!r} occurs {found} times in {where}, expected exactly once; it reads {text!r}")
    return text.replace(anchor, replacement)
