"""Which model, or which rules, plays each role; parsing it imports neither torch nor litellm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from harness.records import Record

RULES = "rules"
"""The model string of the deterministic, offline backend."""

RoleName = Literal["explorer", "teacher", "diagnoser", "proposer", "gate", "selector"]
"""METHODS §0; the order in which a round calls them."""

_ENVIRONMENT_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_OWN_PARAMETERS = frozenset(
    "model messages api_base base_url api_key temperature top_p max_tokens seed timeout response_format "
    "num_retries max_retries stream n extra_headers".split()
)


class SpendLimit(Record):
    """A hard stop; totals count every recorded call of the run, so a restart changes nothing."""

    max_tokens: int | None = Field(default=None, ge=0)
    """Prompt and completion tokens; null is no limit."""
    max_cost_usd: float | None = Field(default=None, ge=0)
    """US dollars; null is no limit. Models without a known price cost 0."""


class RetryConfig(Record):
    """Attempts and waits of one model call."""

    max_attempts: int = Field(default=5, ge=1, le=20)
    """Requests sent for one call at most; permanent 4xx answers end it at once."""
    backoff_base_s: float = Field(default=0.5, ge=0)
    """Wait number n is drawn uniformly from 0 to min(cap, base * 2^n) seconds (full jitter)."""
    backoff_cap_s: float = Field(default=30.0, ge=0)
    """Longest drawn wait in seconds."""
    retry_after_cap_s: float = Field(default=120.0, ge=0)
    """A provider that asks for a longer wait (Retry-After) fails the call instead of blocking the run."""


class PriceConfig(Record):
    """A price for models that LiteLLM's table does not know, or a negotiated one; it replaces the table."""

    prompt_usd_per_million: float = Field(ge=0)
    """US dollars per million prompt tokens."""
    completion_usd_per_million: float = Field(ge=0)
    """US dollars per million completion tokens."""


class RoleModelConfig(Record):
    """The model behind one role. Swapping it is one string."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = Field(default=RULES, min_length=1)
    """``rules`` (deterministic, offline) or a LiteLLM string: ``openai/gpt-4o``, ``anthropic/…``, ``hosted_vllm/…``."""
    api_base: str | None = None
    """URL of a server that speaks the provider's protocol, for example ``http://127.0.0.1:8000/v1``."""
    api_key_env: str | None = None
    """NAME of the environment variable that holds the key. Null: LiteLLM's own variable of the provider; with
    ``api_base`` no key at all, so a key of the environment never reaches another server."""
    temperature: float | None = Field(default=0.0, ge=0)
    """0 decodes greedily; null sends none (some reasoning models refuse the parameter)."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus; null sends none."""
    max_tokens: int = Field(default=2048, ge=1)
    """Longest reply in tokens; also what a call reserves of the budget before it is sent."""
    seed: int | None = None
    """Sampling seed; replicate r of a call sends seed + r. Null sends none."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds for one whole attempt, however slowly the bytes arrive."""
    connect_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds to open the connection."""
    concurrency: int = Field(default=8, ge=1)
    """Requests in flight at the provider; roles on one provider share it and the smallest value holds."""
    retry: RetryConfig = RetryConfig()
    """Attempts and waits."""
    budget: SpendLimit = SpendLimit()
    """Hard stop of this role; a run-wide one stands beside it."""
    price: PriceConfig | None = None
    """Null asks LiteLLM's price table; a model it does not know costs 0 and is marked unpriced."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Further request parameters, passed on as they are, for example ``{"reasoning_effort": "low"}``."""

    @property
    def is_rules(self) -> bool:
        """Whether the deterministic backend plays the role."""
        return self.model == RULES

    @property
    def server(self) -> str:
        """Provider and server behind the string: what concurrency and pauses belong to."""
        return f"{self.model.partition('/')[0]}@{self.api_base or 'default'}"

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not _ENVIRONMENT_NAME.fullmatch(value):
            # The value is not repeated: it may be the key itself.
            raise ValueError(
                "api_key_env takes the NAME of an environment variable (capital letters, digits, underscores); "
                "got something else, not shown because it may be a key; export the key and write its variable's name"
            )
        return value

    @field_validator("api_base")
    @classmethod
    def _is_a_plain_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or "@" in value or "?" in value or "#" in value or value != "".join(value.split()):
            # The value is not repeated: it may hold a key.
            raise ValueError(
                "api_base takes a plain URL such as http://127.0.0.1:8000/v1, without user, password, query or spaces; "
                "put a key into an environment variable and name that in api_key_env"
            )
        return value

    @field_validator("extra")
    @classmethod
    def _has_no_secret(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        taken = {name for name in value if name in _OWN_PARAMETERS}
        secret = {name for name in _names(value) if re.search(r"key|token$|secret|password|auth", name, re.IGNORECASE)}
        if taken or secret:
            raise ValueError(
                f"extra holds {sorted(taken | secret)}; expected parameters without a field or secret of their own; "
                "use the config's own fields, and api_key_env for keys"
            )
        return value

    @model_validator(mode="after")
    def _rules_need_no_server(self) -> Self:
        named = [name for name in ("api_base", "api_key_env") if getattr(self, name) is not None]
        if self.is_rules and named:
            raise ValueError(f"model 'rules' is offline but {named} is set; name a LiteLLM model or remove the setting")
        return self


def _names(value: JsonValue) -> Iterator[str]:
    """Every key of a JSON value, however deep."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)


class RolesConfig(Record):
    """One model per role (METHODS §0); the explorer's attempts are made by the policy, not by a model named here."""

    model_config = ConfigDict(hide_input_in_errors=True)

    teacher: RoleModelConfig = RoleModelConfig()
    """Solves, reflects, writes skills and demonstrations."""
    diagnoser: RoleModelConfig = RoleModelConfig()
    """Turns contrasted traces into findings."""
    proposer: RoleModelConfig = RoleModelConfig()
    """Turns findings into complete candidates."""
    selector: RoleModelConfig = RoleModelConfig()
    """Picks among gated candidates or pairs."""
    explorer: RoleModelConfig = RoleModelConfig()
    """``rules``: the policy under training executes the tasks."""
    gate: RoleModelConfig = RoleModelConfig()
    """``rules``: deterministic checks, then a measurement."""

    @model_validator(mode="after")
    def _policy_and_measurement(self) -> Self:
        for name in ("explorer", "gate"):
            model: RoleModelConfig = getattr(self, name)
            if not model.is_rules:
                raise ValueError(
                    f"roles.{name}.model is {model.model!r}; expected 'rules': "
                    "the policy explores and the gate measures, no language model stands in for them"
                )
        return self

    def of(self, role: RoleName) -> RoleModelConfig:
        """The configuration of one role."""
        config: RoleModelConfig = getattr(self, role)
        return config
