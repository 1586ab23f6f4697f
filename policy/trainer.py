"""Train one block: rollout steps under a fixed harness, from a checkpoint to a checkpoint, surviving a kill."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.protocols import PolicyTrainer, WorkLedger
from memory.files import discard_abandoned
from policy.block import (
    BlockRecord,
    BlockRequest,
    BlockResult,
    block_identity,
    block_key,
    check_request,
    find_result,
    is_whole,
    progress_key,
    read_result,
    suite_score,
)
from policy.checkpoint import Progress
from policy.config import AnyPolicyConfig, RlConfig
from policy.distributed import collect_batch, shared_engine, shared_ledger
from policy.engines.rollout_engine import RolloutSource
from policy.errors import NoSignal, TrainingError
from policy.grpo import HarnessGrpoTrainer, Hooks
from policy.likelihood import completion_likelihood
from policy.mini_batch import MicroBatch
from policy.process import check_sharding
from policy.rollout import Collector
from policy.rollout_record import RolloutBatch
from policy.schedule import rl_schedule
from policy.step_metric import StepMetrics
from policy.telemetry import Telemetry, check_trackers
from policy.training_state import TrainingState, open_engine, open_state, reference_model


@dataclass
class _Run:
    """One sitting of a block."""

    request: BlockRequest
    key: str
    ledger: WorkLedger
    state: TrainingState
    source: RolloutSource
    collector: Collector
    progress: Callable[[StepMetrics], None] | None
    rollouts: list[str] = field(default_factory=list)
    steps: list[StepMetrics] = field(default_factory=list)


class GrpoBlockTrainer:
    """Trains blocks of one policy.

    Args:
        policy: base model and, perhaps, adapters.
        home: checkpoints go to ``home/checkpoints/<checkpoint id>``; those inside a block that is still
            running to ``home/blocks/<block key>``, which goes when the block ends; TensorBoard's files, where asked
            for, to ``home/telemetry/<block key>``.
    """

    def __init__(self, policy: AnyPolicyConfig, home: Path) -> None:
        self.policy = policy
        self._home = home
        self.checkpoints = home / "checkpoints"
        self._blocks = home / "blocks"

    def train(
        self,
        request: BlockRequest,
        ledger: WorkLedger,
        progress: Callable[[StepMetrics], None] | None = None,
    ) -> BlockResult:
        """Train a block, or finish or return one that was begun before.

        Args:
            request: parent, harness, tasks, steps, seed and settings; together they are the block's key.
            ledger: keeps rollout batches, the block's progress and its result.
            progress: called after every rollout step made in this call.

        Returns:
            The new checkpoint, all traces and metrics. Equal requests give bit-identical weights on CPU,
            however often they were interrupted.

        Raises:
            TrainingError: a number is not finite, too many attempts have no score, or the request is inconsistent.
            NoSignal: the first rollout step of the policy's life found no full batch of groups with signal. A later
                block without signal ends with ``stop`` set and its parent's weights.
            CheckpointError: the parent is torn or belongs to another policy.
            UserError: a tracker's package is not installed.
        """
        torch.set_num_threads(request.config.threads)
        ledger = shared_ledger(ledger)
        check_request(request)
        check_sharding(self.policy)
        check_trackers(self.policy.telemetry.report_to)
        key = block_key(self.policy, request)
        finished = find_result(key, self.checkpoints, ledger)
        if finished is not None:
            return finished
        discard_abandoned(self.checkpoints)
        run = self._open(request, key, ledger, progress)
        stop = self._train(run)
        return read_result(self._close(run, stop), self.checkpoints, ledger)

    def _open(
        self,
        request: BlockRequest,
        key: str,
        ledger: WorkLedger,
        progress: Callable[[StepMetrics], None] | None,
    ) -> _Run:
        begun = self._begun(request, key, ledger)
        parent = self._blocks / key / begun.checkpoint_id if begun else request.parent
        schedule = rl_schedule(request.config)
        state = open_state(self.policy, request.config, parent, schedule=schedule, seed=request.seed)
        done = len(begun.steps) if begun else 0
        if state.progress.rollout_steps != request.first_step + done:
            raise TrainingError(
                f"block starts at rollout step {request.first_step + done}, its parent has trained "
                f"{state.progress.rollout_steps}; give the step that follows the parent's last"
            )
        source = RolloutSource(self.policy, state, self._home)
        collector = Collector(
            engine=shared_engine(source.engine),
            harness=request.harness,
            stream=request.task_order,
            config=request.config,
            score=suite_score(request.suite),
            seed=request.seed,
            rows_at_once=self.policy.batch_size,
            identity=block_identity(self.policy, request),
        )
        run = _Run(request, key, ledger, state, source, collector, progress)
        if begun:
            run.rollouts, run.steps = list(begun.rollouts), list(begun.steps)
        return run

    def _train(self, run: _Run) -> str:
        """Make the remaining rollout steps; returns why it stopped early, or nothing."""
        remaining = run.request.rollout_steps - len(run.steps)
        if remaining == 0:
            return ""
        state, config = run.state, run.request.config
        with tempfile.TemporaryDirectory() as folder:
            trainer = HarnessGrpoTrainer(
                state.model,
                state.tokenizer,
                config,
                rollout_steps=remaining,
                hooks=self._hooks(run),
                optimizer=state.optimizer,
                scheduler=state.scheduler(),
                output_dir=folder,
                seed=run.request.seed,
                vision=state.vision,
                telemetry=Telemetry(self.policy.telemetry.report_to, self._home / "telemetry" / run.key),
            )
            try:
                trainer.train()
            except NoSignal as error:
                if run.state.progress.rollout_steps == 0:
                    raise
                return str(error)
        return ""

    def _hooks(self, run: _Run) -> Hooks:
        is_first = True

        def collect() -> RolloutBatch:
            nonlocal is_first
            if is_first:  # building the trainer and its loader drew from the generators
                run.state.start_rng(run.request.seed)
                is_first = False
            step, position = run.request.first_step + len(run.steps), run.state.progress.position
            run.source.push()
            run.rollouts.append(run.collector.key(step, position))
            batch = collect_batch(run.collector, step, position, run.ledger)
            if batch.stop:  # a later block must not draw these tasks first again
                run.state.progress = run.state.progress.model_copy(update={"position": batch.next_position})
            return batch

        def on_step(batch: RolloutBatch, metrics: StepMetrics) -> None:
            before, updates = run.state.progress, run.request.config.updates_per_rollout_step
            run.state.progress = Progress(
                rollout_steps=before.rollout_steps + 1,
                updates=before.updates + updates,
                position=batch.next_position,
            )
            run.steps.append(metrics)
            every = run.request.config.checkpoint_every
            if every and len(run.steps) % every == 0 and len(run.steps) < run.request.rollout_steps:
                self._keep_progress(run)
            if run.progress is not None:
                run.progress(metrics)

        return Hooks(collect, on_step, _reference(run.state, run.request.config))

    def _keep_progress(self, run: _Run) -> None:
        """Write an in-block checkpoint, note it, and only then remove the one before."""
        saved = run.state.save(self._blocks / run.key, run.state.progress)
        record = BlockRecord(checkpoint_id=saved.checkpoint_id, rollouts=tuple(run.rollouts), steps=tuple(run.steps))
        key = progress_key(run.key, len(run.steps))
        run.ledger.record(key, kind="block_progress", result=record.model_dump(mode="json"))
        for other in (self._blocks / run.key).iterdir():
            if other != saved.path:
                shutil.rmtree(other, ignore_errors=True)

    def _close(self, run: _Run, stop: str) -> BlockRecord:
        saved = run.state.save(self.checkpoints, run.state.progress)
        record = BlockRecord(
            checkpoint_id=saved.checkpoint_id, rollouts=tuple(run.rollouts), steps=tuple(run.steps), stop=stop
        )
        kept = run.ledger.record(run.key, kind="training_block", result=record.model_dump(mode="json"))
        shutil.rmtree(self._blocks / run.key, ignore_errors=True)
        return BlockRecord.model_validate(kept)

    def _begun(self, request: BlockRequest, key: str, ledger: WorkLedger) -> BlockRecord | None:
        """The furthest in-block checkpoint that is still whole."""
        for steps in range(request.rollout_steps - 1, 0, -1):
            found = ledger.find(progress_key(key, steps))
            if found is not None:
                record = BlockRecord.model_validate(found)
                if is_whole(self._blocks / key / record.checkpoint_id):
                    return record
        return None


def _reference(state: TrainingState, config: RlConfig) -> Callable[[MicroBatch], Any] | None:
    """Log-probabilities under the base policy, or None when beta is 0."""
    if config.beta == 0:
        return None
    other = reference_model(state)

    def score(micro: MicroBatch) -> Any:
        with torch.no_grad():
            if other is not None:
                return completion_likelihood(other, micro.tokens, temperature=config.temperature).log_probabilities
            was_training = state.model.training
            state.model.eval()
            with state.model.disable_adapter():
                scores = completion_likelihood(state.model, micro.tokens, temperature=config.temperature)
            state.model.train(was_training)
            return scores.log_probabilities

    return score


_: type[PolicyTrainer[BlockRequest, BlockResult]] = GrpoBlockTrainer  # checked by mypy
__all__ = ["BlockRequest", "BlockResult", "GrpoBlockTrainer", "StepMetrics", "open_engine", "suite_score"]
