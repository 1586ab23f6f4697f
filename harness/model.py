"""The harness Φ = (I, B, P, E, C) as frozen records with content-hash identity.

Only the skill bank (B), the protocol (P) and the demonstrations (E) are ever edited; input
assembly (I) and output contract (C) are frozen per task family.
Source: METHODS §0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import field_validator, model_validator

from harness.records import Record, content_id


class Skill(Record):
    """One skill of the bank: when to use it, what to do, what to avoid, how to check."""

    skill_id: str
    """Stable across versions: an edited skill keeps its id, a new skill gets a new one."""
    title: str
    trigger: str
    action: str
    guard: str = ""
    check: str = ""

    @field_validator("title", "trigger", "action")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("title, trigger and action must not be blank; write what the skill does")
        return value


class SkillBank(Record):
    """Skills in order (a skill's number is its position, from 1) and how to use them."""

    how_to_use: str = ""
    skills: tuple[Skill, ...] = ()

    @model_validator(mode="after")
    def _unique(self) -> SkillBank:
        ids = [skill.skill_id for skill in self.skills]
        titles = [skill.title for skill in self.skills]
        if len(set(ids)) != len(ids):
            raise ValueError(f"skill ids must be unique inside a bank; got {ids}")
        if len(set(titles)) != len(titles):
            raise ValueError(f"skill titles must be unique inside a bank; got {titles}")
        return self


class Protocol(Record):
    """How skills are selected and how a task is executed."""

    selection: str = ""
    execution: str = ""


class Demonstration(Record):
    """One worked example: the inputs of a train task and a verified completion."""

    demonstration_id: str
    task_id: str
    inputs: dict[str, str]
    completion: str


class Harness(Record):
    """A complete harness version; ``harness_id`` is the hash of all its content."""

    family: str
    """Task family, for example ``metro``; edits never change it."""
    input_template: str
    """I: text of the user turn with ``{name}`` placeholders for the task's inputs."""
    instructions: str = ""
    """I: the fixed task statement at the head of the system turn."""
    bank: SkillBank = SkillBank()
    protocol: Protocol = Protocol()
    demonstrations: tuple[Demonstration, ...] = ()
    output_contract: str
    """C: the exact output format."""

    @cached_property
    def harness_id(self) -> str:
        """Content hash of this version."""
        return content_id(self, prefix="harness")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with changes; the cached id is not carried over to the copy."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("harness_id", None)
        return copied
