"""The deterministic candidate gate: what a proposed harness must keep, checked before any money is spent.

:func:`audit_candidate` compares a candidate with the version it was made from. The gate for
rewritten demonstrations is :mod:`harness.demonstration_audit`. An empty list means admitted; each
:class:`Finding` names one exact fault, so that it can be fed back to whoever wrote the candidate.
Source: METHODS §1 and §2 (Harness I invariants); differs: text that only differs in white space is
no effective edit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.demonstration_audit import audit_demonstrations
from harness.finding import FaultCode, Finding
from harness.model import Harness, Skill
from harness.records import Record
from harness.render import placeholders, render_system

__all__ = ["AuditRules", "Finding", "SizeBudget", "audit_candidate", "audit_demonstrations"]

SKILL_REFERENCE = re.compile(r"\bskill\s+(\d+)", re.IGNORECASE)


class SizeBudget(Record):
    """Upper bounds of the editable sections, in characters and counts."""

    how_to_use_chars: int = 1_000
    selection_chars: int = 1_000
    execution_chars: int = 4_000
    skill_chars: int = 2_000
    """Title, trigger, action, guard and check of one skill together."""
    demonstration_chars: int = 20_000
    """Inputs and completion of one demonstration together."""
    total_chars: int = 60_000
    """The whole system turn as rendered."""
    skills: int = 40
    demonstrations: int = 8


class AuditRules(Record):
    """What the caller knows beyond the two versions."""

    budget: SizeBudget = SizeBudget()
    demonstration_task_ids: frozenset[str] | None = None
    """Tasks that demonstrations may show (the train split); None does not check."""
    protected_texts: tuple[str, ...] = ()
    """Gold answers that no edited instruction may contain (val and test)."""
    protected_min_chars: int = 6
    """Shorter protected texts are skipped: they occur by accident."""


def audit_candidate(source: Harness, candidate: Harness, rules: AuditRules | None = None) -> list[Finding]:
    """Check a candidate against the version it was made from.

    Args:
        source: the incumbent.
        candidate: the proposed version, complete.
        rules: size budget, admitted demonstration tasks and protected texts; defaults otherwise.

    Returns:
        Every fault found, in the order of the harness' parts; empty when the candidate is admitted.
    """
    rules = rules or AuditRules()
    findings = [
        *_frozen_parts(source, candidate),
        *_skills(candidate),
        *_order(source, candidate),
        *_references(source, candidate),
        *_placeholders(source, candidate),
        *_sizes(candidate, rules.budget),
        *_demonstrations(candidate, rules),
        *_leaks(source, candidate, rules),
    ]
    if _effective(source) == _effective(candidate):
        findings.append(
            Finding(
                code="no_effective_edit",
                where="harness",
                message="the rendered prompt is the same but for white space; "
                "change the bank, the protocol or a demonstration, or propose nothing",
            )
        )
    return findings


def instruction_texts(harness: Harness) -> dict[str, str]:
    """Every editable instruction text by its path; demonstrations are not among them."""
    texts = {"bank.how_to_use": harness.bank.how_to_use}
    for number, skill in enumerate(harness.bank.skills, start=1):
        for name in ("title", "trigger", "action", "guard", "check"):
            texts[f"bank.skills[{number}].{name}"] = getattr(skill, name)
    texts["protocol.selection"] = harness.protocol.selection
    texts["protocol.execution"] = harness.protocol.execution
    return texts


def squeeze(text: str) -> str:
    """``text`` with every run of white space as one space."""
    return " ".join(text.split())


def _effective(harness: Harness) -> tuple[object, ...]:
    """What a policy can tell apart: the rendered text, white space squeezed; skill ids are not rendered."""
    shown = [
        (squeeze(shown.completion), sorted((name, squeeze(text)) for name, text in shown.inputs.items()))
        for shown in harness.demonstrations
    ]
    return squeeze(render_system(harness)), squeeze(harness.input_template), shown


def _frozen_parts(source: Harness, candidate: Harness) -> Iterator[Finding]:
    codes: Mapping[str, FaultCode] = {
        "family": "family_changed",
        "input_template": "input_template_changed",
        "instructions": "instructions_changed",
        "output_contract": "output_contract_changed",
    }
    for part, code in codes.items():
        before, after = getattr(source, part), getattr(candidate, part)
        if before != after:
            message = f"{part} is frozen; got {after!r}, expected {before!r}; restore it byte for byte"
            yield Finding(code=code, where=part, message=message)
    wanted, got = placeholders(source.input_template), placeholders(candidate.input_template)
    if wanted != got:
        message = f"placeholders of the input template are {list(got)}, expected {list(wanted)}; restore them"
        yield Finding(code="placeholder_changed", where="input_template", message=message)


def _skills(candidate: Harness) -> Iterator[Finding]:
    titles: dict[str, int] = {}
    bodies: dict[tuple[str, ...], int] = {}
    for number, skill in enumerate(candidate.bank.skills, start=1):
        where = f"bank.skills[{number}]"
        blank = [name for name in ("title", "trigger", "action") if not getattr(skill, name).strip()]
        if blank:
            yield Finding(code="blank_skill", where=where, message=f"{blank} of skill {number} are blank; write them")
        title = squeeze(skill.title).casefold()
        body = tuple(squeeze(text).casefold() for text in (skill.trigger, skill.action, skill.guard, skill.check))
        twin = titles.get(title) or bodies.get(body)
        if twin is not None:
            what = "the title" if title in titles else "trigger, action, guard and check"
            message = f"skill {number} ({skill.title!r}) repeats {what} of skill {twin}; merge the two or delete one"
            yield Finding(code="duplicate_skill", where=where, message=message)
        titles.setdefault(title, number)
        bodies.setdefault(body, number)


def _order(source: Harness, candidate: Harness) -> Iterator[Finding]:
    before = [skill.skill_id for skill in source.bank.skills]
    after = [skill.skill_id for skill in candidate.bank.skills]
    kept_before = [skill_id for skill_id in before if skill_id in after]
    kept_after = [skill_id for skill_id in after if skill_id in before]
    if kept_before != kept_after:
        message = f"kept skills stand in the order {kept_after}, expected {kept_before}; keep the order of the source"
        yield Finding(code="skill_order_changed", where="bank.skills", message=message)


def _numbered(skills: tuple[Skill, ...], number: int) -> str | None:
    return skills[number - 1].skill_id if 1 <= number <= len(skills) else None


def _references(source: Harness, candidate: Harness) -> Iterator[Finding]:
    """A text that says *skill N* must mean an existing skill, and an old text the skill it meant."""
    unchanged = set(_texts_with_demonstrations(source).values())
    for where, text in _texts_with_demonstrations(candidate).items():
        for number in sorted({int(digits) for digits in SKILL_REFERENCE.findall(text)}):
            before, after = (_numbered(version.bank.skills, number) for version in (source, candidate))
            is_old = text in unchanged
            if after is None and not (is_old and before is None):
                message = f"the text names skill {number} of {len(candidate.bank.skills)} skills; renumber it"
                yield Finding(code="unknown_skill_number", where=where, message=message)
            elif is_old and before is not None and before != after:
                message = f"the unchanged text names skill {number}, which was {before} and is now {after}; renumber it"
                yield Finding(code="stale_skill_number", where=where, message=message)


def _texts_with_demonstrations(harness: Harness) -> dict[str, str]:
    texts = instruction_texts(harness)
    for number, demonstration in enumerate(harness.demonstrations, start=1):
        texts[f"demonstrations[{number}].completion"] = demonstration.completion
    return texts


def _placeholders(source: Harness, candidate: Harness) -> Iterator[Finding]:
    """Instruction texts are never filled, so a placeholder written there would reach the policy as it is."""
    old = set(instruction_texts(source).values())
    names = set(placeholders(source.input_template))
    for where, text in instruction_texts(candidate).items():
        stray = sorted(names & set(placeholders(text)))
        if stray and text not in old:
            message = f"the text holds the placeholders {stray}, filled in the input template alone; remove them"
            yield Finding(code="stray_placeholder", where=where, message=message)


def _sizes(candidate: Harness, budget: SizeBudget) -> Iterator[Finding]:
    sizes = {
        "bank.how_to_use": (len(candidate.bank.how_to_use), budget.how_to_use_chars),
        "protocol.selection": (len(candidate.protocol.selection), budget.selection_chars),
        "protocol.execution": (len(candidate.protocol.execution), budget.execution_chars),
        "system turn": (len(render_system(candidate)), budget.total_chars),
    }
    for number, skill in enumerate(candidate.bank.skills, start=1):
        size = sum(len(text) for text in (skill.title, skill.trigger, skill.action, skill.guard, skill.check))
        sizes[f"bank.skills[{number}]"] = (size, budget.skill_chars)
    for number, shown in enumerate(candidate.demonstrations, start=1):
        size = len(shown.completion) + sum(len(text) for text in shown.inputs.values())
        sizes[f"demonstrations[{number}]"] = (size, budget.demonstration_chars)
    for where, (size, bound) in sizes.items():
        if size > bound:
            message = f"{where} has {size} characters, at most {bound} are allowed; shorten it by {size - bound}"
            yield Finding(code="section_too_long", where=where, message=message)
    counts: tuple[tuple[FaultCode, str, int, int], ...] = (
        ("too_many_skills", "bank.skills", len(candidate.bank.skills), budget.skills),
        ("too_many_demonstrations", "demonstrations", len(candidate.demonstrations), budget.demonstrations),
    )
    for code, where, got, bound in counts:
        if got > bound:
            yield Finding(code=code, where=where, message=f"got {got}, at most {bound} allowed; remove {got - bound}")


def _demonstrations(candidate: Harness, rules: AuditRules) -> Iterator[Finding]:
    needed = set(placeholders(candidate.input_template))
    seen: set[str] = set()
    for number, shown in enumerate(candidate.demonstrations, start=1):
        where = f"demonstrations[{number}]"
        if missing := sorted(needed - set(shown.inputs)):
            message = f"inputs are {sorted(shown.inputs)}; the input template needs {missing} too; add them"
            yield Finding(code="demonstration_lacks_input", where=where, message=message)
        if not shown.completion.strip():
            yield Finding(code="blank_demonstration", where=where, message="the completion is blank; write it")
        if shown.demonstration_id in seen:
            message = f"id {shown.demonstration_id!r} is used twice; give each demonstration its own id"
            yield Finding(code="duplicate_demonstration", where=where, message=message)
        seen.add(shown.demonstration_id)
        if rules.demonstration_task_ids is not None and shown.task_id not in rules.demonstration_task_ids:
            message = f"task {shown.task_id!r} is not a train task; show tasks of the train split only"
            yield Finding(code="demonstration_not_from_train", where=where, message=message)


def _compact(text: str) -> str:
    """The strict match's view of a text: lower case, no spaces or underscores (METHODS §2)."""
    return re.sub(r"[\s_]+", "", text).casefold()


def _leaks(source: Harness, candidate: Harness, rules: AuditRules) -> Iterator[Finding]:
    old = {_compact(text) for text in instruction_texts(source).values()}
    protected = {_compact(text) for text in rules.protected_texts}
    protected = {text for text in protected if len(text) >= rules.protected_min_chars}
    for where, text in instruction_texts(candidate).items():
        compact = _compact(text)
        found = sorted(answer for answer in protected if answer in compact)
        if found and compact not in old:
            message = f"the text holds {len(found)} held-out gold answers, for example {found[0]!r}; remove them"
            yield Finding(code="gold_leaked", where=where, message=message)
