"""The policy side of a run: base weights, engines, RL blocks. Torch is imported when one of them is needed."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from evals.evaluation import add_usage
from evals.suites.base import Suite
from graphs.api_policy import open_chat_engine, own_services
from graphs.config import RunConfig
from graphs.config_train import BlockPlan
from graphs.identity import ledger_scope
from graphs.merged import BASE, base_id, is_base, keep_base, mend_merged, policy_behind, refuse_altered_base
from graphs.seeds import derive_seed
from graphs.training_watch import TrainingWatch
from graphs.work import Produced, Work, as_inputs
from harness.errors import UserError
from harness.model import Harness
from harness.protocols import Prompt, RolloutEngine
from harness.records import Generation, Sampling, Task, content_id
from memory.errors import TornFile
from memory.files import hash_folder
from memory.records import CheckpointRecord
from memory.store import Store
from policy.config import AnyPolicyConfig, ApiPolicyConfig, HfPolicyConfig, PocketPolicyConfig
from policy.engines.api_engine import api_policy_id
from policy.executor import Executor, make_executor
from policy.job import SftJob, StoreAddress, TrainingJob

if TYPE_CHECKING:
    from agents.llm.call import ModelServices
    from policy.block import BlockResult
    from policy.sft.block import SftRequest, SftResult

ENGINES_KEPT = 2
"""Loaded engines a run keeps; the gate needs one, the report two."""


class Block(NamedTuple):
    """What an RL block leaves behind."""

    checkpoint_id: str
    evidence_key: str
    """Ledger key of its trace ids."""


class Tuned(NamedTuple):
    """What an SFT stage leaves behind."""

    result: SftResult
    is_reused: bool
    """It was in the ledger; nothing was trained now."""
    deaths: tuple[str, ...]
    """Of trainers that another one replaced."""


def base_fingerprint(policy: PocketPolicyConfig | HfPolicyConfig | ApiPolicyConfig) -> str:
    """Identity of the base weights without loading them: their files' hashes, hub id and revision, or API settings."""
    if policy.type == "api":
        return api_policy_id(policy)
    folder = Path(str(files("policy.pocket"))) / "weights" if policy.type == "pocket" else Path(policy.model)
    if not folder.is_dir():
        if policy.type == "pocket":
            raise UserError("the pocket policy has no weights", got=f"no folder {folder}", do="install cohelix again")
        return f"{policy.model}@{policy.revision or 'main'}"
    hashes: dict[str, JsonValue] = dict(hash_folder(folder))
    return content_id(hashes, prefix="files")


class LazyEngine:
    """An engine that loads its weights at the first prompt; work found in the ledger never loads any."""

    def __init__(self, policy_id: str, identity: str, load: Callable[[], RolloutEngine]) -> None:
        self.policy_id = policy_id
        self.identity = identity
        """Settings that move last bits of a sample; part of every evaluation's key."""
        self._load = load

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order."""
        return self._load().generate(prompts, sampling, progress=progress)


class Lab:
    """Engines and training of one run."""

    def __init__(
        self,
        config: RunConfig,
        store: Store,
        run_id: str,
        suite: Suite,
        work: Work,
        services: ModelServices | None = None,
    ) -> None:
        self._config = config
        self._services = services
        """Behind the calls of an API policy."""
        self._store = store
        self._run_id = run_id
        self._suite = suite
        self._work = work
        self._engines: OrderedDict[str, RolloutEngine] = OrderedDict()
        self._executor: Executor | None = None

    def warm(self) -> None:
        """Let the trainer start in the background, for a run that will train; on one core that would gain nothing."""
        if (os.cpu_count() or 1) > 1:
            self._trainer.warm()

    def close(self) -> None:
        """End the trainer's processes, and the event loops of engines elsewhere."""
        for engine in self._engines.values():
            close_engine(engine)
        self._engines.clear()
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def base_checkpoint(self) -> str:
        """Checkpoint id of the weights that the run starts from; they are recorded, not copied."""
        policy = self._config.policy
        fingerprint = base_fingerprint(policy)
        done = self._work.once(
            "trainer", "open_base", as_inputs(policy=policy, fingerprint=fingerprint), self._describe_base
        )
        record = CheckpointRecord(
            checkpoint_id=done.result["checkpoint_id"],
            base=done.result["base"],
            metadata={"policy_id": done.result["policy_id"], "files": fingerprint},
        )
        keep_base(self._store, record)
        return record.checkpoint_id

    def _describe_base(self) -> Produced:
        policy_id = self._loaded(BASE).policy_id
        policy = self._config.policy
        base = "pocket" if policy.type == "pocket" else policy.model
        result = {"checkpoint_id": base_id(policy_id), "policy_id": policy_id, "base": base}
        return Produced.model_validate({"result": result, "wrote": result, "said": f"{base} {policy_id}"})

    def policy(self, checkpoint_id: str) -> AnyPolicyConfig:
        """What a checkpoint is trained with: the run's policy, or the same on a merged base."""
        mend_merged(trainable(self._config), self._store, checkpoint_id)
        return policy_behind(trainable(self._config), self._store, checkpoint_id)

    def engine(self, checkpoint_id: str) -> LazyEngine:
        """The engine of a checkpoint; loads nothing yet."""
        metadata = self._store.lineage.checkpoint(checkpoint_id).metadata
        return LazyEngine(
            str(metadata["policy_id"]), engine_identity(self._config), lambda: self._loaded(checkpoint_id)
        )

    def _loaded(self, checkpoint_id: str) -> RolloutEngine:
        if checkpoint_id not in self._engines:
            while len(self._engines) >= ENGINES_KEPT:
                close_engine(self._engines.popitem(last=False)[1])
            try:
                self._engines[checkpoint_id] = open_engine(self._config, self._store, checkpoint_id, self._services)
            except TornFile as error:
                graph = self._store.runs.folder(self._run_id) / "graph.db"
                raise UserError(
                    str(error),
                    do=f"restore it, or remove that folder and {graph}, and resume: recorded rollouts train it again",
                ) from None
        self._engines.move_to_end(checkpoint_id)
        return self._engines[checkpoint_id]

    def train(self, checkpoint_id: str, harness: Harness, tasks: Sequence[Task], plan: BlockPlan) -> Block:
        """One RL block from a checkpoint under one harness."""
        from policy.block import BlockRequest

        started = time.monotonic()
        before = self._store.lineage.checkpoint(checkpoint_id)
        request = BlockRequest(
            parent=None if is_base(checkpoint_id) else self._store.lineage.checkpoint_folder(checkpoint_id),
            harness=harness,
            suite=self._suite,
            tasks=tuple(tasks),
            rollout_steps=plan.rollout_steps,
            first_step=before.rollout_steps,
            seed=derive_seed(self._config.seed, "rl"),
            config=plan.rl,
        )
        policy = self.policy(checkpoint_id)
        job = TrainingJob.of(request, policy=policy, suite=self._config.suite, store=self._address)
        watch = self._watch(job.key, before.rollout_steps, plan.rollout_steps)
        result = self._trainer.run(job, watch.step, on_death=watch.death)
        watch.keep(result.steps)
        seconds = time.monotonic() - started
        return self._keep(before, harness, result, is_reused=not watch.steps, deaths=watch.deaths, seconds=seconds)

    def tune(self, policy: AnyPolicyConfig, request: SftRequest) -> Tuned:
        """One stage of supervised fine-tuning."""
        job = SftJob.of(request, policy=policy, store=self._address)
        watch = self._watch(job.key, 0, 0)
        result = self._trainer.run(job, watch.step, on_death=watch.death)
        watch.keep(result.steps)
        return Tuned(result, is_reused=not watch.steps, deaths=tuple(watch.deaths))

    @property
    def _address(self) -> StoreAddress:
        return StoreAddress(home=str(self._store.home), scope=ledger_scope(self._config, self._run_id))

    @property
    def _trainer(self) -> Executor:
        if self._executor is None:
            self._executor = make_executor(trainable(self._config).executor)
        return self._executor

    def _watch(self, key: str, first_step: int, total: int) -> TrainingWatch:
        return TrainingWatch(self._store, self._run_id, key, self._work.recorder, first_step=first_step, total=total)

    def _keep(
        self,
        before: CheckpointRecord,
        harness: Harness,
        result: BlockResult,
        *,
        is_reused: bool,
        deaths: Sequence[str],
        seconds: float,
    ) -> Block:
        """Store the checkpoint and the block's traces; note what the trainer did."""
        self._store.traces.add(self._run_id, result.traces)
        self._store.lineage.save_checkpoint(
            CheckpointRecord(
                checkpoint_id=result.checkpoint_id,
                parent_id=before.checkpoint_id,
                base=before.base,
                kind="adapter" if trainable(self._config).lora else "full",
                rollout_steps=result.progress.rollout_steps,
                updates=result.progress.updates,
                metadata={"policy_id": result.policy_id, "base_id": result.base_id},
            )
        )
        trace_ids: list[JsonValue] = [trace.trace_id for trace in result.traces]
        key = content_id(trace_ids, prefix="evidence")
        self._work.ledger.record(key, kind="evidence", result=Produced(result=trace_ids).model_dump(mode="json"))
        told = _told(before, harness, result, deaths)
        self._work.note("trainer", "train", key, told, is_reused=is_reused, seconds=seconds)
        return Block(result.checkpoint_id, key)


def close_engine(engine: RolloutEngine) -> None:
    """End what an engine holds open; most hold nothing."""
    close = getattr(engine, "close", None)
    if callable(close):
        close()


def engine_identity(config: RunConfig) -> str:
    """Settings of the engine that move last bits of a sample."""
    policy = config.policy
    if policy.type == "api":
        return f"api {policy.model}"
    if policy.engine.type != "transformers":
        return policy.engine.type
    refill = ", refilled" if policy.engine.refill else ""
    return f"transformers, batches of {policy.batch_size}, {config.strategy.threads} threads{refill}"


def trainable(config: RunConfig) -> AnyPolicyConfig:
    """The policy whose weights are here.

    Raises:
        UserError: it is an API's.
    """
    if config.policy.type == "api":
        raise UserError("this policy cannot be trained", got="policy.type=api", expected="pocket or hf")
    return config.policy


def open_engine(
    config: RunConfig, store: Store, checkpoint_id: str, services: ModelServices | None = None
) -> RolloutEngine:
    """Load the engine of a checkpoint, or of the base.

    Args:
        config: names the policy.
        store: holds the checkpoint.
        checkpoint_id: of trained weights, or ``base``.
        services: behind the calls of an API policy; None records none and counts this engine's alone.

    Raises:
        TornFile: the checkpoint's files are not those that were stored.
        NotFound: no such checkpoint.
    """
    if config.policy.type == "api":
        return open_chat_engine(config.policy, services or own_services(config))
    from policy.training_state import open_engine as open_policy_engine  # not policy.trainer: TRL is slow to import

    folder = None if is_base(checkpoint_id) else store.verify_checkpoint(checkpoint_id)
    mend_merged(config.policy, store, checkpoint_id)
    policy = policy_behind(config.policy, store, checkpoint_id)
    engine = open_policy_engine(policy, folder, threads=config.strategy.threads)
    if policy is not config.policy:
        refuse_altered_base(checkpoint_id, engine.policy_id)
    return engine


def _told(before: CheckpointRecord, harness: Harness, result: BlockResult, deaths: Sequence[str]) -> Produced:
    steps: list[JsonValue] = [step.model_dump(mode="json") for step in result.steps]
    trained = (
        f"exact {result.steps[0].exact_mean:.3f} -> {result.steps[-1].exact_mean:.3f}" if result.steps else "none made"
    )
    return Produced(
        result=None,
        saw={
            "checkpoint_id": before.checkpoint_id,
            "harness_id": harness.harness_id,
            "first_step": before.rollout_steps,
        },
        wrote={
            "checkpoint_id": result.checkpoint_id,
            "policy_id": result.policy_id,
            "attempts": len(result.traces),
            "steps": steps,
            "stop": result.stop,
            "trainer_deaths": list(deaths),
        },
        said=f"{len(result.steps)} rollout steps, {trained}"
        + (f"; stopped early: {result.stop}" if result.stop else "")
        + "".join(f"; {death}" for death in deaths),
        usage=add_usage(trace.usage for trace in result.traces),
    )
