"""Frozen records that cross package boundaries: tasks, attempts, verdicts, traces.

All records are immutable pydantic models with ``extra="forbid"``; ids are content hashes
(:func:`content_id`), so two records with the same content have the same identity anywhere.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Split = Literal["train", "val", "test"]
"""``train`` feeds explorer..proposer, ``val`` feeds gate and selector, ``test`` the report alone."""

Boundary = Literal["model_call", "engine", "trainer", "store", "judge", "user_code"]
"""Where an infrastructure failure happened."""


class Record(BaseModel):
    """Base of every boundary record: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def canonical_json(value: JsonValue) -> str:
    """Serialise ``value`` so that equal content gives equal text (sorted keys, no spaces)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_id(value: JsonValue | Record, *, prefix: str, length: int = 16) -> str:
    """Return ``prefix-<hex>``, the content hash of a JSON value or record.

    Args:
        value: a JSON value or a record.
        prefix: a short word naming the kind of thing, for example ``harness``.
        length: hex digits kept of the SHA-256.
    """
    payload = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    digest = hashlib.sha256(canonical_json(payload).encode()).hexdigest()
    return f"{prefix}-{digest[:length]}"


class ImageFile(Record):
    """A picture that belongs to a task; the hash binds the prompt to its bytes."""

    path: str
    """Of a PNG or JPEG file."""
    sha256: str
    """Of the file's bytes, in hex."""


class Message(Record):
    """One chat message of a rendered prompt."""

    role: Literal["system", "user", "assistant"]
    content: str
    images: tuple[ImageFile, ...] = ()
    """Shown before the text, to policies that can see."""

    def as_chat(self) -> dict[str, str]:
        """Role and text alone, as chat templates and text APIs take them."""
        return {"role": self.role, "content": self.content}


class Task(Record):
    """One problem instance: what a student may see (``inputs``) and what it may not (``gold``)."""

    task_id: str
    suite: str
    split: Split
    inputs: dict[str, str]
    """Named texts that the harness' input assembly places in the prompt."""
    gold: JsonValue
    """Reference for the verifier alone; never rendered, never handed to an explorer."""
    images: tuple[ImageFile, ...] = ()
    """Pictures of the problem; placed in the task's user turn."""
    strata: dict[str, str] = Field(default_factory=dict)
    """Difficulty strata, for example ``{"map": "easy", "query": "hard"}``."""


class Diagnosis(Record):
    """A machine-readable reason why an attempt lost reward, or ``fault="none"``."""

    fault: str
    """A suite's fault kind, for example ``missing_edge`` or ``wrong_transfer_mark``."""
    detail: dict[str, JsonValue] = Field(default_factory=dict)


class Scored(Record):
    """The verifier's word on one attempt."""

    status: Literal["scored"] = "scored"
    parts: dict[str, float]
    """Named parts; ``exact`` is always present and is the gate's score (0..1)."""
    reward: float
    """The suite's training reward for this attempt."""
    diagnoses: tuple[Diagnosis, ...] = ()


class Unscored(Record):
    """An infrastructure failure; it is never a 0."""

    status: Literal["unscored"] = "unscored"
    boundary: Boundary
    error: str


Verdict = Annotated[Scored | Unscored, Field(discriminator="status")]


class Usage(Record):
    """Tokens of one call and what it cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


class Sampling(Record):
    """Decoding settings; part of the identity of every evaluation."""

    temperature: float = 1.0
    """0 decodes greedily."""
    top_p: float = 1.0
    max_tokens: int = 128
    seed: int = 0


FinishReason = Literal["stop", "length", "error"]


class Generation(Record):
    """What an engine returns for one prompt.

    ``token_ids`` are the ids that were sampled, the only ids training may use.
    """

    text: str
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    log_probabilities: tuple[float, ...] = ()
    """Per sampled token, under the sampling distribution; empty where the engine has none."""
    token_mask: tuple[int, ...] = ()
    """Per token of ``token_ids``: 1 where the policy sampled it, 0 where a tool or an environment wrote it; empty means
    all were sampled. Tokens with 0 never enter a loss."""
    policy_id: str = ""
    """Weights that answered, as the engine knows them; empty where it cannot know."""
    usage: Usage = Usage()
    error: str = ""
    """Set with ``finish_reason="error"``: the engine failed and the attempt is unscored."""


class Trace(Record):
    """The record of one attempt: who ran what, what came out, what the verifier said."""

    trace_id: str
    task_id: str
    split: Split
    policy_id: str
    harness_id: str
    purpose: str
    """Why the attempt ran: ``rollout``, ``gate``, ``report``, ``explore``…"""
    replicate: int = 0
    """Index that keeps repeated independent attempts apart."""
    completion: str
    finish_reason: FinishReason
    verdict: Verdict
    usage: Usage = Usage()
    token_count: int = 0
    seed: int = 0
