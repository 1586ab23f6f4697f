"""What goes to a vLLM server and what may come back: token ids out, token ids in, every answer checked.

An answer is used only when it is whole: the model asked for, the prompt ids as sent, one log-probability
per sampled id, token counts that agree. Anything else raises :class:`BadAnswer`; no number is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from harness.records import Generation, Sampling, Usage
from policy.errors import PolicyError


class BadAnswer(PolicyError):
    """A 200 that is not the answer to the question; another replica may give it."""


@dataclass(frozen=True)
class Question:
    """One row as it is asked."""

    row: int
    token_ids: tuple[int, ...]
    seed: int


_ROUNDING = 1e-3
"""How far above 0 a log-probability may lie."""


@dataclass(frozen=True)
class Dialect:
    """What all questions and answers of one call share."""

    model: str
    """Name of the weights on the server: the policy id."""
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    decode: Callable[[Sequence[int]], str]
    is_logprob_processed: bool
    """The servers report log-probabilities after temperature and nucleus."""
    vocabulary: int = 2**31
    """Token ids lie below this."""

    def body(self, question: Question) -> dict[str, JsonValue]:
        """The JSON of ``POST /v1/completions``."""
        sampling = self.sampling
        return {
            "model": self.model,
            "prompt": list(question.token_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": question.seed,
            "stop_token_ids": list(self.stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "n": 1,
            "stream": False,
        }

    def read(self, question: Question, answer: Any) -> Generation:
        """The generation in an answer.

        Raises:
            BadAnswer: it is not a whole answer to ``question`` by the model asked for.
        """
        choice = self._choice(answer)
        ids = _ids(choice.get("token_ids"), "token_ids")
        if max(ids) >= self.vocabulary:
            raise BadAnswer(f"token id {max(ids)} was sampled from a vocabulary of {self.vocabulary}; another model?")
        self._check(question, answer, choice, ids)
        is_stopped = ids[-1] in self.stop_token_ids
        if choice.get("finish_reason") not in ("stop", "length") or (choice["finish_reason"] == "stop") != is_stopped:
            raise BadAnswer(
                f"finish_reason {choice.get('finish_reason')!r} with last token {ids[-1]}; expected 'length', or "
                f"'stop' at one of {list(self.stop_token_ids)}; does the server hold another tokenizer?"
            )
        return Generation(
            text=self.decode(ids[:-1] if is_stopped else ids),
            finish_reason="stop" if is_stopped else "length",
            prompt_token_ids=question.token_ids,
            token_ids=ids,
            log_probabilities=self._log_probabilities(choice, len(ids)),
            policy_id=self.model,
            usage=Usage(prompt_tokens=len(question.token_ids), completion_tokens=len(ids)),
        )

    def _choice(self, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list) or len(answer["choices"]) != 1:
            raise BadAnswer("the answer has not exactly one choice")
        if answer.get("model") != self.model:
            raise BadAnswer(f"weights {answer.get('model')!r} answered; expected {self.model!r}; nothing is used of it")
        choice = answer["choices"][0]
        if not isinstance(choice, dict):
            raise BadAnswer(f"the choice is a {type(choice).__name__}")
        return choice

    def _check(self, question: Question, answer: dict[str, Any], choice: dict[str, Any], ids: tuple[int, ...]) -> None:
        echoed = choice.get("prompt_token_ids")
        if echoed is not None and _ids(echoed, "prompt_token_ids") != question.token_ids:
            raise BadAnswer(f"the server read a prompt of {len(echoed)} other tokens; sent {len(question.token_ids)}")
        if len(ids) > self.sampling.max_tokens:
            raise BadAnswer(f"{len(ids)} sampled tokens; asked for at most {self.sampling.max_tokens}")
        usage = answer.get("usage")
        if not isinstance(usage, dict):
            raise BadAnswer("the answer counts no tokens (usage)")
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        if counts != (len(question.token_ids), len(ids)):
            raise BadAnswer(
                f"usage counts {counts} tokens of prompt and completion; sent {len(question.token_ids)}, got {len(ids)}"
            )

    def _log_probabilities(self, choice: dict[str, Any], count: int) -> tuple[float, ...]:
        """Under the sampling distribution, or none: raw ones are that only at temperature 1 over the whole vocabulary.

        At temperature 0 the sampling distribution has one token, so each log-probability is 0.
        """
        found = choice.get("logprobs")
        values = found.get("token_logprobs") if isinstance(found, dict) else None
        if not isinstance(values, list) or len(values) != count:
            got = len(values) if isinstance(values, list) else "no"
            raise BadAnswer(f"{got} log-probabilities for {count} sampled tokens")
        if self.sampling.temperature == 0:
            return (0.0,) * count
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            raise BadAnswer("a log-probability is not a finite number; the server's weights may be broken")
        if max(values) > _ROUNDING:
            raise BadAnswer(f"a log-probability is {max(values)}, a probability above 1")
        is_plain = self.sampling.temperature == 1 and self.sampling.top_p == 1
        return tuple(float(value) for value in values) if is_plain or self.is_logprob_processed else ()


def _ids(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(item) is int and item >= 0 for item in value):
        raise BadAnswer(f"{name} is no list of token ids; the server must be vLLM 0.10.2 or newer (return_token_ids)")
    return tuple(value)
