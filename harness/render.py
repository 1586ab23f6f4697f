"""Render a harness and a task's inputs to chat messages: one pure function."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.model import Harness, Skill
from harness.records import ImageFile, Message

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def placeholders(template: str) -> tuple[str, ...]:
    """Names of the ``{name}`` placeholders in ``template``, in order of appearance."""
    return tuple(_PLACEHOLDER.findall(template))


def fill(template: str, inputs: Mapping[str, str]) -> str:
    """Put ``inputs`` into the template; values are inserted verbatim and never re-scanned.

    Raises:
        ValueError: a placeholder has no input; the message names both sides.
    """
    missing = sorted(set(placeholders(template)) - set(inputs))
    if missing:
        raise ValueError(
            f"input template needs {missing}; the task has {sorted(inputs)}; name only inputs that the suite provides"
        )
    return _PLACEHOLDER.sub(lambda match: inputs[match.group(1)], template)


def render_skill(number: int, skill: Skill) -> str:
    """One skill on one line; empty guard and check are left out."""
    parts = [f"Skill {number}: {skill.title}.", f"Trigger: {skill.trigger}", f"Action: {skill.action}"]
    if skill.guard:
        parts.append(f"Guard: {skill.guard}")
    if skill.check:
        parts.append(f"Check: {skill.check}")
    return " ".join(parts)


def render_system(harness: Harness) -> str:
    """The system turn: instructions, bank, protocol, output contract; empty parts left out."""
    lines = [harness.instructions, harness.bank.how_to_use]
    lines += [render_skill(number, skill) for number, skill in enumerate(harness.bank.skills, start=1)]
    lines += [harness.protocol.selection, harness.protocol.execution, harness.output_contract]
    return "\n".join(line for line in lines if line)


def render(harness: Harness, inputs: Mapping[str, str], images: tuple[ImageFile, ...] = ()) -> tuple[Message, ...]:
    """Render the full prompt for one task.

    Args:
        harness: the version to render.
        inputs: the task's named texts (``Task.inputs``); the gold answer is not among them.
        images: the task's pictures (``Task.images``); they go into its user turn, demonstrations show none.

    Returns:
        System turn, one user/assistant pair per demonstration, and the task's user turn.

    Raises:
        ValueError: the input template names an input that the task lacks.
    """
    messages = [Message(role="system", content=render_system(harness))]
    for demonstration in harness.demonstrations:
        messages.append(Message(role="user", content=fill(harness.input_template, demonstration.inputs)))
        messages.append(Message(role="assistant", content=demonstration.completion))
    messages.append(Message(role="user", content=fill(harness.input_template, inputs), images=images))
    return tuple(messages)
