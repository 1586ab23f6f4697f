"""Remove secrets from everything the store writes, by shape, by value and by field name.

Field names alone miss most leaks (a key inside a prompt, an error text, a URL), so every string is
searched for the shapes of known credentials and for the values of this process' own secret variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from pydantic import JsonValue

REDACTED = "[redacted]"

_MIN_SECRET_LENGTH = 8
"""Shorter values of secret variables are placeholders (``none``, ``test``) more often than secrets."""

_SECRET_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)

_SECRET_FIELD = re.compile(
    r"^(?:.*[_-])?(?:api[_-]?key|password|passwd|secret|(?:access|auth|refresh|session)[_-]?token|private[_-]?key"
    r"|(?:proxy-)?authorization)$",
    re.IGNORECASE,
)

_TOKEN = r"(?:(?=[A-Za-z._~+/=-]*\d)[A-Za-z0-9._~+/=-]{8,}|[A-Za-z0-9._~+/=-]{24,})"

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL, REDACTED),
        (r"\bsk-[A-Za-z0-9_-]{16,}", 0, REDACTED),
        (r"\b[srp]k_(?:live|test)_[A-Za-z0-9]{10,}", 0, REDACTED),
        (r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b", 0, REDACTED),
        (r"(?i)(aws_secret_access_key\W{1,4})[A-Za-z0-9/+=]{30,}", 0, rf"\g<1>{REDACTED}"),
        (r"\bgh[pousr]_[A-Za-z0-9]{20,}", 0, REDACTED),
        (r"\bgithub_pat_[A-Za-z0-9_]{20,}", 0, REDACTED),
        (r"\bhf_[A-Za-z0-9]{20,}", 0, REDACTED),
        (r"\bgsk_[A-Za-z0-9]{20,}", 0, REDACTED),
        (r"\bAIza[A-Za-z0-9_-]{30,}", 0, REDACTED),
        (r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}", 0, REDACTED),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}", 0, REDACTED),
        # A digit, or great length, tells a token from the next word of a sentence ("basic responsibilities").
        (rf"(?i)\b(bearer\s+){_TOKEN}", 0, rf"\g<1>{REDACTED}"),
        (rf"(?i)\b(basic\s+){_TOKEN}", 0, rf"\g<1>{REDACTED}"),
        (r"\b([a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@", 0, rf"\g<1>{REDACTED}@"),
        (rf"(?i)\b((?:api[_-]?key|access[_-]?token|password)\s*[=:]\s*[\"']?){_TOKEN}", 0, rf"\g<1>{REDACTED}"),
    )
)

_HINTS = (
    "sk-", "k_live_", "k_test_", "private key-", "akia", "asia", "aroa", "aida", "aws_secret", "ghp_", "gho_", "ghu_",
    "ghs_", "ghr_", "github_pat_", "hf_", "gsk_", "aiza", "xox", "eyj", "bearer", "basic", "://", "api", "token",
    "password",
)  # fmt: skip
"""Cheap test that almost all text fails, so that large batches of traces stay fast."""


class Redactor:
    """Removes secrets from JSON values; built once per batch of writes."""

    def __init__(self, secret_values: tuple[str, ...] = ()) -> None:
        """Remember the literal values to remove.

        Args:
            secret_values: literal secrets; values under 8 characters are ignored.
        """
        longest_first = sorted({value for value in secret_values if len(value) >= _MIN_SECRET_LENGTH}, key=len)[::-1]
        self._values = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Redactor:
        """Take the values of variables whose names end in KEY, TOKEN, SECRET or PASSWORD.

        Args:
            environment: defaults to this process' own.
        """
        source = os.environ if environment is None else environment
        return cls(tuple(value.strip() for name, value in source.items() if _SECRET_VARIABLE.search(name)))

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        if len(text) < _MIN_SECRET_LENGTH:
            return text
        if self._values is not None:
            text = self._values.sub(REDACTED, text)
        lowered = text.lower()
        if any(hint in lowered for hint in _HINTS):
            for pattern, replacement in _SHAPES:
                text = pattern.sub(replacement, text)
        return text

    def value(self, value: JsonValue) -> JsonValue:
        """Return a copy of a JSON value without secrets; numbers, booleans and null pass unchanged."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return self._mapping(value)
        return value

    def _mapping(self, mapping: dict[str, JsonValue]) -> dict[str, JsonValue]:
        clean: dict[str, JsonValue] = {}
        for key, item in mapping.items():
            name = self.text(key)
            while name in clean:  # two secret keys must not swallow each other's items
                name += "_"
            is_secret = isinstance(item, str) and bool(item) and _SECRET_FIELD.match(key) is not None
            clean[name] = REDACTED if is_secret else self.value(item)
        return clean


def redact(value: JsonValue) -> JsonValue:
    """Return ``value`` without secrets, using this process' environment.

    Args:
        value: any JSON value.
    """
    return Redactor.from_environment().value(value)
