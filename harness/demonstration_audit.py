"""The few-shot gate: a rewritten demonstration may change its skill markers and wording, and nothing else.

When a bank changes, the same demonstrations are re-worded to name the new skills. Facts, ids,
order, numbers, sections and final answers must stay. Source: METHODS §2, Harness II (7) and (8).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.finding import Finding
from harness.model import Demonstration, SkillBank

MARKER = re.compile(r"\[Using Skill (\d+)\]")
_REFERENCE = re.compile(r"\[Using Skill \d+\]|\bskills?\s+\d+(?:\s*(?:,|and)\s*(?:skills?\s+)?\d+)*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"[^\W_]+(?:[_'’.][^\W_]+)*")
_RESPONSE = re.compile(r"<response>(.*?)</response>", re.DOTALL)
_HEADING = re.compile(r"^\s*(?:#+\s*(\S.*?)|\*\*(.+?)\*\*\s*:?|([A-Z][\w ,&]*):)\s*$", re.MULTILINE)


def audit_demonstrations(
    source: Sequence[Demonstration], rewritten: Sequence[Demonstration], bank: SkillBank
) -> list[Finding]:
    """Check rewritten demonstrations against the ones they were made from.

    Args:
        source: the demonstrations before.
        rewritten: the same demonstrations, reworded for ``bank``.
        bank: the skills that the rewritten ones may name.

    Returns:
        Every fault; empty when facts, ids, order, numbers, sections and answers are unchanged and
        every marker names a skill of the bank exactly once.
    """
    if len(source) != len(rewritten):
        message = f"got {len(rewritten)} demonstrations, expected {len(source)}; keep each one"
        return [Finding(code="demonstration_count_changed", where="demonstrations", message=message)]
    findings: list[Finding] = []
    for number, (before, after) in enumerate(zip(source, rewritten, strict=True), start=1):
        where = f"demonstrations[{number}]"
        findings += _identity(before, after, where)
        findings += _content(before, after, where)
        findings += _markers(before, after, len(bank.skills), where)
    return findings


def final_answer(completion: str) -> str:
    """The text of the last ``<response>`` element, or the last non-blank line without one."""
    answers = _RESPONSE.findall(completion)
    if answers:
        return str(answers[-1]).strip()
    lines = [line.strip() for line in completion.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _identity(before: Demonstration, after: Demonstration, where: str) -> Iterator[Finding]:
    for name in ("demonstration_id", "task_id"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            message = f"{name} is {new!r}, expected {old!r}; keep ids and order"
            yield Finding(code="demonstration_id_changed", where=f"{where}.{name}", message=message)
    for name in sorted(set(before.inputs) | set(after.inputs)):
        if before.inputs.get(name) != after.inputs.get(name):
            message = f"input {name!r} is not the source's text; the facts of the task stay byte for byte"
            yield Finding(code="demonstration_facts_changed", where=f"{where}.inputs.{name}", message=message)


def _content(before: Demonstration, after: Demonstration, where: str) -> Iterator[Finding]:
    where = f"{where}.completion"
    old_answer, new_answer = final_answer(before.completion), final_answer(after.completion)
    if old_answer != new_answer:
        message = f"the final answer is {new_answer!r}, expected {old_answer!r}; restore it"
        yield Finding(code="demonstration_answer_changed", where=where, message=message)
    old_text, new_text = (_REFERENCE.sub(" ", shown.completion) for shown in (before, after))
    old_numbers, new_numbers = _NUMBER.findall(old_text), _NUMBER.findall(new_text)
    if old_numbers != new_numbers:
        message = f"numbers {_difference(old_numbers, new_numbers)}; keep every number in its place"
        yield Finding(code="demonstration_numbers_changed", where=where, message=message)
    names = _names(before)
    old_facts, new_facts = ([word for word in _WORD.findall(text) if word in names] for text in (old_text, new_text))
    if old_facts != new_facts:
        message = f"names from the task {_difference(old_facts, new_facts)}; keep every name in its place"
        yield Finding(code="demonstration_facts_changed", where=where, message=message)
    old_sections, new_sections = _headings(before.completion), _headings(after.completion)
    if old_sections != new_sections:
        message = f"section headings are {new_sections}, expected {old_sections}; keep sections and their order"
        yield Finding(code="demonstration_sections_changed", where=where, message=message)


def _names(demonstration: Demonstration) -> set[str]:
    """Words of the inputs that name something: with a digit, a capital or a letter of a script without case."""
    words = {word for text in demonstration.inputs.values() for word in _WORD.findall(text)}
    return {
        word for word in words if word != word.lower() or any(char.isdigit() for char in word) or not word.isascii()
    }


def _difference(before: Sequence[str], after: Sequence[str]) -> str:
    missing = list((Counter(before) - Counter(after)).elements())
    added = list((Counter(after) - Counter(before)).elements())
    if not missing and not added:
        return "stand in another order"
    return f"changed: missing {missing}, added {added}"


def _headings(completion: str) -> list[str]:
    return ["".join(groups).strip() for groups in _HEADING.findall(MARKER.sub("", completion))]


def _markers(before: Demonstration, after: Demonstration, bank_size: int, where: str) -> Iterator[Finding]:
    where = f"{where}.completion"
    used = [int(number) for number in MARKER.findall(after.completion)]
    declared_text = MARKER.sub(" ", after.completion)
    declared = {int(number) for reference in _REFERENCE.findall(declared_text) for number in _NUMBER.findall(reference)}
    for number in sorted({*used, *declared}):
        if not 1 <= number <= bank_size:
            message = f"skill {number} is named; the bank has {bank_size} skills; name one of them"
            yield Finding(code="unknown_skill_number", where=where, message=message)
    for number, times in sorted(Counter(used).items()):
        if times > 1:
            message = f"[Using Skill {number}] stands {times} times, expected once, where its action runs"
            yield Finding(code="marker_repeated", where=where, message=message)
    if not MARKER.search(before.completion) and not used:
        return
    for number in sorted(declared - set(used)):
        message = f"skill {number} is selected but has no [Using Skill {number}]; use it or do not select it"
        yield Finding(code="selected_skill_not_used", where=where, message=message)
    for number in sorted(set(used) - declared):
        message = f"skill {number} is used but not selected; add it to the selection or remove its marker"
        yield Finding(code="used_skill_not_selected", where=where, message=message)
