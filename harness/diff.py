"""What changed between two harness versions, as records and as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Literal

from harness.draft import SKILL_TEXTS
from harness.model import Demonstration, Harness, Skill
from harness.records import Record

ChangeKind = Literal["added", "removed", "changed", "moved"]


class WordSpan(Record):
    """A run of text that both versions share, or that one of them alone has."""

    kind: Literal["same", "removed", "added"]
    text: str


class Change(Record):
    """One part that differs; ``before`` and ``after`` are its texts, empty where it did not exist."""

    kind: ChangeKind
    where: str
    """Path by stable id, for example ``bank.skills[skill-1a2b3c4d].action``."""
    label: str
    """The same place in words, for example ``skill 2 'Interchange' action``."""
    before: str = ""
    after: str = ""


class HarnessDiff(Record):
    """Every difference between two versions, in the order of the prompt."""

    before_id: str
    after_id: str
    changes: tuple[Change, ...]


def diff_harness(before: Harness, after: Harness) -> HarnessDiff:
    """Compare two versions part by part; equal versions give no changes."""
    changes = [
        *_plain(before, after, ("family", "input_template", "instructions")),
        *_text("bank.how_to_use", "how to use", before.bank.how_to_use, after.bank.how_to_use),
        *_skills(before, after),
        *_text("protocol.selection", "selection", before.protocol.selection, after.protocol.selection),
        *_text("protocol.execution", "execution", before.protocol.execution, after.protocol.execution),
        *_demonstrations(before, after),
        *_plain(before, after, ("output_contract",)),
    ]
    return HarnessDiff(before_id=before.harness_id, after_id=after.harness_id, changes=tuple(changes))


def word_diff(before: str, after: str) -> tuple[WordSpan, ...]:
    """Split two texts into shared, removed and added runs of whole words.

    The ``same`` and ``removed`` spans joined give ``before``; ``same`` and ``added`` give ``after``.
    """
    old, new = _tokens(before), _tokens(after)
    spans: list[WordSpan] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            spans.append(WordSpan(kind="same", text="".join(old[i1:i2])))
            continue
        if i1 < i2:
            spans.append(WordSpan(kind="removed", text="".join(old[i1:i2])))
        if j1 < j2:
            spans.append(WordSpan(kind="added", text="".join(new[j1:j2])))
    return tuple(spans)


def format_words(before: str, after: str) -> str:
    """A word diff on one line: ``[-removed-]{+added+}``."""
    marks = {"same": "{}", "removed": "[-{}-]", "added": "{{+{}+}}"}
    return "".join(marks[span.kind].format(span.text) for span in word_diff(before, after))


def format_diff(diff: HarnessDiff) -> str:
    """The whole diff as plain text: one heading per change and its word diff."""
    lines = [f"{diff.before_id} -> {diff.after_id}"]
    for change in diff.changes:
        lines.append(f"{change.kind} {change.label}")
        text = format_words(change.before, change.after)
        lines += [f"    {line}" for line in text.splitlines()]
    if not diff.changes:
        lines.append("no changes")
    return "\n".join(lines)


def _tokens(text: str) -> list[str]:
    return re.findall(r"\s+|\w+|[^\w\s]", text)


def _text(where: str, label: str, before: str, after: str) -> Iterator[Change]:
    if before != after:
        kind: ChangeKind = "added" if not before else "removed" if not after else "changed"
        yield Change(kind=kind, where=where, label=label, before=before, after=after)


def _plain(before: Harness, after: Harness, parts: tuple[str, ...]) -> Iterator[Change]:
    for part in parts:
        yield from _text(part, part.replace("_", " "), getattr(before, part), getattr(after, part))


def _skill_text(skill: Skill) -> str:
    return "\n".join(f"{name}: {getattr(skill, name)}" for name in SKILL_TEXTS if getattr(skill, name))


def _moved_ids(old_ids: list[str], new_ids: list[str]) -> set[str]:
    """Kept ids whose order among the kept ones changed; shifts by insertion or removal are no moves."""
    kept_old = [kept for kept in old_ids if kept in new_ids]
    kept_new = [kept for kept in new_ids if kept in old_ids]
    matcher = SequenceMatcher(None, kept_old, kept_new, autojunk=False)
    in_place = {kept for block in matcher.get_matching_blocks() for kept in kept_old[block.a : block.a + block.size]}
    return set(kept_old) - in_place


def _moved(where: str, label: str, old_number: int, number: int) -> Change:
    return Change(kind="moved", where=where, label=label, before=f"number {old_number}", after=f"number {number}")


def _skills(before: Harness, after: Harness) -> Iterator[Change]:
    old = {skill.skill_id: (number, skill) for number, skill in enumerate(before.bank.skills, start=1)}
    new = {skill.skill_id: (number, skill) for number, skill in enumerate(after.bank.skills, start=1)}
    moved = _moved_ids(list(old), list(new))
    for skill_id, (number, skill) in old.items():
        if skill_id not in new:
            label = f"skill {number} {skill.title!r}"
            yield Change(kind="removed", where=f"bank.skills[{skill_id}]", label=label, before=_skill_text(skill))
    for skill_id, (number, skill) in new.items():
        where, label = f"bank.skills[{skill_id}]", f"skill {number} {skill.title!r}"
        if skill_id not in old:
            yield Change(kind="added", where=where, label=label, after=_skill_text(skill))
            continue
        old_number, old_skill = old[skill_id]
        if skill_id in moved:
            yield Change(
                kind="moved", where=where, label=label, before=f"number {old_number}", after=f"number {number}"
            )
        for name in SKILL_TEXTS:
            yield from _text(f"{where}.{name}", f"{label} {name}", getattr(old_skill, name), getattr(skill, name))


def _shown_text(shown: Demonstration) -> str:
    inputs = "\n".join(f"{name}: {text}" for name, text in shown.inputs.items())
    return f"task: {shown.task_id}\n{inputs}\n{shown.completion}"


def _demonstrations(before: Harness, after: Harness) -> Iterator[Change]:
    old = {shown.demonstration_id: (number, shown) for number, shown in enumerate(before.demonstrations, start=1)}
    new = {shown.demonstration_id: (number, shown) for number, shown in enumerate(after.demonstrations, start=1)}
    moved = _moved_ids(list(old), list(new))
    for shown_id, (number, shown) in old.items():
        if shown_id not in new:
            where, label = f"demonstrations[{shown_id}]", f"demonstration {number}"
            yield Change(kind="removed", where=where, label=label, before=_shown_text(shown))
    for shown_id, (number, shown) in new.items():
        where, label = f"demonstrations[{shown_id}]", f"demonstration {number}"
        if shown_id not in old:
            yield Change(kind="added", where=where, label=label, after=_shown_text(shown))
            continue
        old_number, old_shown = old[shown_id]
        if shown_id in moved:
            yield Change(
                kind="moved", where=where, label=label, before=f"number {old_number}", after=f"number {number}"
            )
        if _shown_text(old_shown) != _shown_text(shown):
            yield from _text(where, label, _shown_text(old_shown), _shown_text(shown))
