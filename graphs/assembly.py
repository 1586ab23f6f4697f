"""Put engines, models, stores and roles into each other: the only place where all of them meet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agents.diagnoser import Diagnoser
from agents.explorer import Explorer
from agents.gate import Gate, GateConfig
from agents.llm.accounting import RUN, Accounts
from agents.llm.call import ModelServices, check_price
from agents.llm.config import RoleName, SpendLimit
from agents.llm.provider import check_model, find_key
from agents.proposer import Proposer
from agents.selector import Selector
from agents.teacher import Teacher
from evals.suites.base import Suite
from evals.suites.registry import build_suite
from graphs.api_policy import api_role
from graphs.coach import Coach
from graphs.config import RunConfig
from graphs.crew import Crew
from graphs.desk import Desk, Roles
from graphs.identity import RunIdentity, code_version, ledger_scope
from graphs.lab import Lab, base_fingerprint
from graphs.recorder import Recorder
from graphs.scout import Scout
from graphs.work import Work
from harness.audit import AuditRules
from harness.records import Sampling
from memory.ledger import Ledger
from memory.store import Store
from policy.engines.vllm_server import check_token
from policy.telemetry import check_trackers

if TYPE_CHECKING:
    from agents.ask import RoleModel
    from graphs import train, vace

MODEL_ROLES: tuple[RoleName, ...] = ("teacher", "diagnoser", "proposer", "selector")


def run_identity(config: RunConfig) -> RunIdentity:
    """What a resume must match; reads the suite and the base weights' bytes."""
    return RunIdentity(
        config=config.model_dump(mode="json"),
        suite_fingerprint=build_suite(config.suite).fingerprint,
        policy_fingerprint=base_fingerprint(config.policy),
        code_version=code_version(),
    )


def check_keys(config: RunConfig) -> None:
    """Refuse now what would fail at the first model call.

    Raises:
        UserError: an environment variable that holds a model's key is not set, no provider is known for a model
            string, a limit in USD stands over a model without a price, or a tracker's package is not installed.
    """
    if config.policy.type != "api":
        check_trackers(config.policy.telemetry.report_to)
        if config.policy.engine.type == "vllm_server":
            check_token(config.policy.engine)
    models = [config.roles.of(role) for role in MODEL_ROLES]
    if config.policy.type == "api":
        models.append(api_role(config.policy, Sampling()))
    for model in models:
        if not model.is_rules:
            check_model(model)
            find_key(model)
            if config.budget.max_cost_usd is not None or model.budget.max_cost_usd is not None:
                check_price(model)


@contextmanager
def assemble(
    config: RunConfig, store: Store, run_id: str, recorder: Recorder
) -> Iterator[train.Context | vace.Context]:
    """The context of a run, for as long as the block lasts."""
    from graphs import train, vace

    suite = build_suite(config.suite, image_folder=store.images)
    work = Work(work_ledger(config, store, run_id), recorder)
    services = _services(config, store, run_id, recorder)
    attempts = ModelServices(services.ledger, accounts=services.accounts, throttle=services.throttle)
    lab = Lab(config, store, run_id, suite, work, attempts)
    roles = _roles(config, store, run_id, suite, work, audit_rules(config, suite), services)
    scout = Scout(config, suite, roles.explorer, lab, work)
    desk = Desk(roles=roles, lab=lab, scout=scout, work=work)
    crew = Crew(config, run_id, store, suite, desk)
    try:
        if config.strategy.trains:
            lab.warm()
        if config.strategy.type == "train":
            coach = Coach(config, run_id, store, suite, desk, crew.wait)
            yield train.Context(config=config, crew=crew, coach=coach, recorder=recorder)
        else:
            yield vace.Context(config=config, crew=crew, recorder=recorder)
    finally:
        crew.close()


def work_ledger(config: RunConfig, store: Store, run_id: str) -> Ledger:
    """The ledger of a run's work: its own, or the home's shared one, which holds no work of other code."""
    return store.ledger(ledger_scope(config, run_id))


def audit_rules(config: RunConfig, suite: Suite) -> AuditRules:
    """Demonstrations show train tasks alone; no instruction holds a val answer; test is not read here."""
    hidden = suite.tasks(split="val")
    return AuditRules(
        demonstration_task_ids=frozenset(task.task_id for task in suite.tasks(split="train")),
        protected_texts=tuple(sorted({text for task in hidden for text in _texts(task.gold)})),
    )


def _texts(gold: object) -> list[str]:
    items = gold if isinstance(gold, list) else [gold]
    return [item for item in items if isinstance(item, str)]


def _services(config: RunConfig, store: Store, run_id: str, recorder: Recorder) -> ModelServices:
    """Ledger, accounts and throttle behind every model call of a run: the roles', and an API policy's."""
    ledger = store.ledger(run_id)  # replies and money are a run's own, also where other work is shared
    accounts = Accounts(ledger, {RUN: SpendLimit(max_cost_usd=config.budget.max_cost_usd)})
    return ModelServices(
        ledger,
        sink=lambda record: recorder.model_calls.append(record.model_dump(mode="json")),
        accounts=accounts,
    )


def _roles(
    config: RunConfig,
    store: Store,
    run_id: str,
    suite: Suite,
    work: Work,
    rules: AuditRules,
    services: ModelServices,
) -> Roles:
    strategy = config.strategy
    models = _models(config, services)
    teacher = Teacher(suite, model=models.get("teacher"))
    return Roles(
        explorer=Explorer(ledger=work.ledger, sink=lambda traces: store.traces.add(run_id, traces)),
        teacher=teacher,
        diagnoser=Diagnoser(model=models.get("diagnoser")),
        proposer=Proposer(suite, teacher, model=models.get("proposer"), rules=rules),
        gate=Gate(
            GateConfig(
                rule="legal" if strategy.condition == "whale" else "strictly_better",
                max_unscored_share=strategy.max_unscored_share,
                audit=rules,
            )
        ),
        selector=Selector(model=models.get("selector")),
    )


def _models(config: RunConfig, services: ModelServices) -> dict[RoleName, RoleModel]:
    """One client per role that has a language model; without any, no client library is imported."""
    named = [role for role in MODEL_ROLES if not config.roles.of(role).is_rules]
    if not named:
        return {}
    from agents.llm.client import LiteLlmChat

    return {role: LiteLlmChat(config=config.roles.of(role), role=role, services=services) for role in named}
