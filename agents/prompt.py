"""Prompts are files beside their roles; their placeholders are filled one by one, by name.

A prompt file holds the system turn, a line ``<!-- user -->`` and the user turn. Placeholders are
written ``{name}``; a missing or unused value is an error, so a renamed placeholder never goes out empty.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from harness.records import Message
from harness.render import fill, placeholders

_USER_TURN = "<!-- user -->"


@cache
def read_prompt(name: str) -> str:
    """The text of ``agents/prompts/<name>.md``.

    Raises:
        FileNotFoundError: the package has no such prompt.
    """
    return files("agents").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8")


def fill_prompt(name: str, **values: str) -> tuple[Message, ...]:
    """System and user turn of a prompt with its placeholders filled.

    Args:
        name: the prompt file without its ending.
        values: one text per placeholder; inserted verbatim, never scanned for placeholders again.

    Raises:
        ValueError: the file has no user turn, or values and placeholders do not match.
    """
    system, mark, user = read_prompt(name).partition(_USER_TURN)
    wanted = set(placeholders(system)) | set(placeholders(user))
    if not mark or wanted != set(values):
        raise ValueError(
            f"filling prompt {name!r} failed; got values {sorted(values)}; expected {sorted(wanted)} "
            f"and a line {_USER_TURN!r}"
        )
    return (
        Message(role="system", content=fill(system.strip(), values)),
        Message(role="user", content=fill(user.strip(), values)),
    )
