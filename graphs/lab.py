"""The policy side of a run: base weights, engines, RL blocks. Torch is imported when one of them is needed."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from evals.evaluation import add_usage
from evals.suites.base import Suite
from graphs.config import RunConfig
from graphs.config_train import BlockPlan
from graphs.seeds import derive_seed
from graphs.work import Produced, Work, as_inputs
from harness.errors import UserError
from harness.model import Harness
from harness.protocols import Prompt, RolloutEngine
from harness.records import Generation, Sampling, Task, content_id
from memory.errors import TornFile
from memory.files import hash_folder, write_json
from memory.records import CheckpointRecord
from memory.store import Store
from policy.config import HfPolicyConfig, PocketPolicyConfig

if TYPE_CHECKING:
    from policy.step_metric import StepMetrics
    from policy.trainer import BlockResult

BASE = "base"
ENGINES_KEPT = 2
"""Loaded engines a run keeps; the gate needs one, the report two."""


class Block(NamedTuple):
    """What an RL block leaves behind."""

    checkpoint_id: str
    evidence_key: str
    """Ledger key of its trace ids."""


def base_fingerprint(policy: PocketPolicyConfig | HfPolicyConfig) -> str:
    """Identity of the base weights without loading them: their files' hashes, or hub id and revision."""
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

    def __init__(self, config: RunConfig, store: Store, run_id: str, suite: Suite, work: Work) -> None:
        self._config = config
        self._store = store
        self._run_id = run_id
        self._suite = suite
        self._work = work
        self._engines: OrderedDict[str, RolloutEngine] = OrderedDict()

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
        folder = self._store.lineage.checkpoint_folder(record.checkpoint_id)
        write_json(folder / "base.json", {"base": record.base, **record.metadata})
        self._store.lineage.save_checkpoint(record)
        return record.checkpoint_id

    def _describe_base(self) -> Produced:
        policy_id = self._loaded(BASE).policy_id
        policy = self._config.policy
        base = policy.model if policy.type == "hf" else "pocket"
        result = {"checkpoint_id": base_id(policy_id), "policy_id": policy_id, "base": base}
        return Produced.model_validate({"result": result, "wrote": result, "said": f"{base} {policy_id}"})

    def engine(self, checkpoint_id: str) -> LazyEngine:
        """The engine of a checkpoint; loads nothing yet."""
        policy, threads = self._config.policy, self._config.strategy.threads
        metadata = self._store.lineage.checkpoint(checkpoint_id).metadata
        identity = f"transformers, batches of {policy.batch_size}, {threads} threads"
        return LazyEngine(str(metadata["policy_id"]), identity, lambda: self._loaded(checkpoint_id))

    def _loaded(self, checkpoint_id: str) -> RolloutEngine:
        if checkpoint_id not in self._engines:
            while len(self._engines) >= ENGINES_KEPT:
                self._engines.popitem(last=False)
            try:
                self._engines[checkpoint_id] = open_engine(self._config, self._store, checkpoint_id)
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
        from policy.trainer import BlockRequest, GrpoBlockTrainer

        started, made = time.monotonic(), 0
        before = self._store.lineage.checkpoint(checkpoint_id)
        recorder = self._work.recorder

        def progress(step: StepMetrics) -> None:
            nonlocal made
            made += 1
            text = f"reward {step.reward_mean:.3f}, exact {step.exact_mean:.3f}, {step.dropped_groups} groups dropped"
            recorder.tell("progress", text, done=step.step + 1 - before.rollout_steps, total=plan.rollout_steps)

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
        result = GrpoBlockTrainer(self._config.policy, self._store.home).train(request, self._work.ledger, progress)
        return self._keep(before, harness, result, is_reused=not made, seconds=time.monotonic() - started)

    def _keep(
        self, before: CheckpointRecord, harness: Harness, result: BlockResult, *, is_reused: bool, seconds: float
    ) -> Block:
        """Store the checkpoint and the block's traces; note what the trainer did."""
        self._store.traces.add(self._run_id, result.traces)
        self._store.lineage.save_checkpoint(
            CheckpointRecord(
                checkpoint_id=result.checkpoint_id,
                parent_id=before.checkpoint_id,
                base=before.base,
                kind="adapter" if self._config.policy.lora else "full",
                rollout_steps=result.progress.rollout_steps,
                updates=result.progress.updates,
                metadata={"policy_id": result.policy_id, "base_id": result.base_id},
            )
        )
        trace_ids: list[JsonValue] = [trace.trace_id for trace in result.traces]
        key = content_id(trace_ids, prefix="evidence")
        self._work.ledger.record(key, kind="evidence", result=Produced(result=trace_ids).model_dump(mode="json"))
        self._work.note("trainer", "train", key, _told(before, harness, result), is_reused=is_reused, seconds=seconds)
        return Block(result.checkpoint_id, key)


def base_id(policy_id: str) -> str:
    """Checkpoint id of base weights."""
    return f"{BASE}-{policy_id.partition('-')[2]}"


def is_base(checkpoint_id: str) -> bool:
    """Whether an id names base weights, of which there is no checkpoint folder to train from."""
    return checkpoint_id == BASE or checkpoint_id.startswith(f"{BASE}-")


def open_engine(config: RunConfig, store: Store, checkpoint_id: str) -> RolloutEngine:
    """Load the engine of a checkpoint, or of the base.

    Raises:
        TornFile: the checkpoint's files are not those that were stored.
        NotFound: no such checkpoint.
    """
    from policy.trainer import open_engine as open_policy_engine

    folder = None if is_base(checkpoint_id) else store.verify_checkpoint(checkpoint_id)
    return open_policy_engine(config.policy, folder, threads=config.strategy.threads)


def _told(before: CheckpointRecord, harness: Harness, result: BlockResult) -> Produced:
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
        },
        said=f"{len(result.steps)} rollout steps, {trained}"
        + (f"; stopped early: {result.stop}" if result.stop else ""),
        usage=add_usage(trace.usage for trace in result.traces),
    )
