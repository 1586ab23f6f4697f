"""A policy behind an API: its model as a role's client, its calls under the run's limits. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from agents.llm.config import RULES, PriceConfig, RoleModelConfig
from harness.records import Sampling
from policy.config import ApiPolicyConfig
from policy.engines.api_engine import ChatEngine, api_policy_id

if TYPE_CHECKING:
    from agents.llm.call import ModelServices
    from graphs.config import RunConfig

ROLE = "policy"
"""Who pays for the attempts, in the accounts."""


def api_role(policy: ApiPolicyConfig, sampling: Sampling) -> RoleModelConfig:
    """The client settings of an API policy.

    Raises:
        ValueError: a setting is not one that a client takes; keys are not repeated.
    """
    price = None
    if policy.prompt_usd_per_million is not None and policy.completion_usd_per_million is not None:
        price = PriceConfig(
            prompt_usd_per_million=policy.prompt_usd_per_million,
            completion_usd_per_million=policy.completion_usd_per_million,
        )
    try:
        return RoleModelConfig(
            model=policy.model,
            api_base=policy.api_base,
            api_key_env=policy.api_key_env,
            temperature=None if "temperature" in policy.omit else sampling.temperature,
            top_p=None if "top_p" in policy.omit or sampling.top_p == 1 else sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=None if "seed" in policy.omit else 0,
            timeout_s=policy.timeout_s,
            concurrency=policy.max_concurrency,
            price=price,
            extra=policy.extra,
        )
    except ValidationError as error:
        faults = error.errors(include_input=False)
        said = "; ".join(f"{'.'.join(map(str, ('policy', *fault['loc'])))}: {fault['msg']}" for fault in faults)
        raise ValueError(said) from None


def refuse_rules(policy: ApiPolicyConfig) -> None:
    """Refuse a model string that names no model, and settings that no client takes.

    Raises:
        ValueError: names the key.
    """
    if policy.model == RULES:
        raise ValueError("policy.model is 'rules'; an API policy needs a LiteLLM string such as openai/gpt-5-mini")
    api_role(policy, Sampling())


def open_chat_engine(policy: ApiPolicyConfig, services: ModelServices) -> ChatEngine:
    """The engine of an API policy; its calls are recorded, counted and limited by ``services``."""
    from agents.llm.client import LiteLlmChat

    return ChatEngine(
        lambda sampling: LiteLlmChat(config=api_role(policy, sampling), role=ROLE, services=services),
        api_policy_id(policy),
        max_concurrency=policy.max_concurrency,
    )


def own_services(config: RunConfig) -> ModelServices:
    """Services of one command outside a run: nothing is recorded, and the limit in USD binds this command's calls."""
    from agents.llm.accounting import RUN, Accounts
    from agents.llm.call import ModelServices
    from agents.llm.config import SpendLimit

    return ModelServices(accounts=Accounts(None, {RUN: SpendLimit(max_cost_usd=config.budget.max_cost_usd)}))
