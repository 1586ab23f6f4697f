"""An engine whose answers are written beforehand, for tests of what happens around sampling."""

from __future__ import annotations

from collections.abc import Callable

from harness.protocols import Prompt
from harness.records import Generation, Sampling


class ScriptedEngine:
    """Answers each prompt with what ``answer(user text, attempt index)`` returns; None is an engine failure."""

    policy_id = "policy-scripted"

    def __init__(self, answer: Callable[[str, int], str | None]) -> None:
        self._answer = answer
        self.calls: list[list[Prompt]] = []
        self.samplings: list[Sampling] = []

    def generate(self, prompts, sampling, *, progress=None) -> list[Generation]:
        self.calls.append(list(prompts))
        self.samplings.append(sampling)
        counts: dict[str, int] = {}
        made = []
        for prompt in prompts:
            user = prompt.messages[-1].content
            index = counts.get(user, 0)
            counts[user] = index + 1
            text = self._answer(user, index)
            if text is None:
                made.append(Generation(text="", finish_reason="error", error="out of memory"))
            else:
                ids = tuple(1 + ord(character) % 50 for character in text)
                made.append(Generation(text=text, finish_reason="stop", prompt_token_ids=(1, 2, 3), token_ids=ids))
        return made


class DictLedger:
    """A work ledger in memory: the first record of a key wins."""

    def __init__(self) -> None:
        self.entries: dict = {}

    def find(self, key):
        return self.entries.get(key)

    def record(self, key, *, kind, result):
        return self.entries.setdefault(key, result)
