"""Supervised fine-tuning of one stage: from a base or a checkpoint to a checkpoint, surviving a kill."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from harness.protocols import PolicyTrainer, WorkLedger
from memory.files import discard_abandoned
from policy.block import is_whole, progress_key
from policy.checkpoint import Progress
from policy.config import AnyPolicyConfig
from policy.distributed import shared_ledger
from policy.engines.transformers_engine import stop_token_ids
from policy.schedule import sft_schedule, sft_updates
from policy.sft.batch import RecordStream, SftMicroBatch, micro_batch
from policy.sft.metric import SftStepMetrics
from policy.sft.packing import check_packing
from policy.sft.record import SftRecord, sampled_token_ids, sft_records
from policy.sft.stage import (
    SftRequest,
    SftResult,
    SftStageRecord,
    check_sft_request,
    find_sft_result,
    read_sft_result,
    sft_key,
)
from policy.sft.tokens import SftTokens, check_lengths, encode_record
from policy.training_state import TrainingState, open_state
from policy.vision import see

if TYPE_CHECKING:
    from policy.sft.trl_trainer import SftHooks


@dataclass
class _Stage:
    """One sitting of a stage."""

    request: SftRequest
    key: str
    ledger: WorkLedger
    state: TrainingState
    stream: RecordStream
    progress: Callable[[SftStepMetrics], None] | None
    steps: list[SftStepMetrics] = field(default_factory=list)


class SftBlockTrainer:
    """Runs SFT stages of one policy.

    Args:
        policy: base model and, perhaps, adapters.
        home: checkpoints go to ``home/checkpoints/<checkpoint id>``; those inside a stage that is still
            running to ``home/blocks/<stage key>``, which goes when the stage ends.
    """

    def __init__(self, policy: AnyPolicyConfig, home: Path) -> None:
        self.policy = policy
        self.checkpoints = home / "checkpoints"
        self._blocks = home / "blocks"

    def train(
        self,
        request: SftRequest,
        ledger: WorkLedger,
        progress: Callable[[SftStepMetrics], None] | None = None,
    ) -> SftResult:
        """Run a stage, or finish or return one that was begun before.

        Args:
            request: parent, records, settings and seed; together they are the stage's key.
            ledger: keeps the stage's progress and its result.
            progress: called after every update made in this call.

        Returns:
            The new checkpoint and the metrics of all updates. Equal requests give bit-identical weights on CPU,
            however often they were interrupted.

        Raises:
            TemplateMismatch: the chat template does not write a record as it was sampled.
            OverlongRecord: records are longer than the limit; nothing was trained.
            TrainingError: a number is not finite, or the request is inconsistent.
            CheckpointError: the parent is torn or belongs to another policy, or the disk refused.
        """
        torch.set_num_threads(request.config.threads)
        ledger = shared_ledger(ledger)
        check_sft_request(request)
        key = sft_key(self.policy, request)
        finished = find_sft_result(key, self.checkpoints, ledger)
        if finished is not None:
            return finished
        discard_abandoned(self.checkpoints)
        stage = self._open(request, key, ledger, progress)
        self._train(stage)
        return read_sft_result(self._close(stage), self.checkpoints)

    def _open(
        self,
        request: SftRequest,
        key: str,
        ledger: WorkLedger,
        progress: Callable[[SftStepMetrics], None] | None,
    ) -> _Stage:
        begun = self._begun(request, key, ledger)
        state = open_state(
            self.policy,
            request.config,
            self._blocks / key / begun.checkpoint_id if begun else request.parent,
            schedule=sft_schedule(request.config, records=len(request.records)),
            seed=request.stage_seed,
            stage="sft",
            is_new_stage=begun is None,
        )
        records = _encode(request, state)
        stream = RecordStream(records, request.config, request.stage_seed)
        stage = _Stage(request, key, ledger, state, stream, progress)
        if begun:
            stage.steps = list(begun.steps)
        if request.config.packing:
            check_packing(state.model, records, row_limit=request.config.max_tokens, lay_out=stage_layout(stage))
        return stage

    def _train(self, stage: _Stage) -> None:
        config, state = stage.request.config, stage.state
        remaining = sft_updates(config, records=len(stage.request.records)) - len(stage.steps)
        if remaining == 0:
            return
        from policy.sft.trl_trainer import HarnessSftTrainer  # a result is read without the training library

        with tempfile.TemporaryDirectory() as folder:
            HarnessSftTrainer(
                state.model,
                state.tokenizer,
                config,
                first_update=len(stage.steps),
                updates=remaining,
                hooks=self._hooks(stage),
                optimizer=state.optimizer,
                scheduler=state.scheduler(),
                output_dir=folder,
                seed=stage.request.stage_seed,
            ).train()

    def _hooks(self, stage: _Stage) -> SftHooks:
        from policy.sft.trl_trainer import SftHooks

        def on_step(metrics: SftStepMetrics) -> None:
            before, config = stage.state.progress, stage.request.config
            stage.state.progress = Progress(
                updates=before.updates + 1, position=min(stage.stream.end, before.position + config.batch_size)
            )
            stage.steps.append(metrics)
            is_last = stage.state.progress.position == stage.stream.end
            if config.checkpoint_every and len(stage.steps) % config.checkpoint_every == 0 and not is_last:
                self._keep_progress(stage)
            if stage.progress is not None:
                stage.progress(metrics)

        return SftHooks(
            records=stage.stream.update,
            lay_out=stage_layout(stage),
            on_start=lambda: stage.state.start_rng(stage.request.stage_seed),
            on_step=on_step,
        )

    def _keep_progress(self, stage: _Stage) -> None:
        """Write an in-stage checkpoint, note it, and only then remove the one before."""
        folder = self._blocks / stage.key
        saved = stage.state.save(folder, stage.state.progress)
        record = SftStageRecord(checkpoint_id=saved.checkpoint_id, steps=tuple(stage.steps))
        key = progress_key(stage.key, len(stage.steps))
        stage.ledger.record(key, kind="block_progress", result=record.model_dump(mode="json"))
        for other in folder.iterdir():
            if other != saved.path:
                shutil.rmtree(other, ignore_errors=True)

    def _close(self, stage: _Stage) -> SftStageRecord:
        saved = stage.state.save(self.checkpoints, stage.state.progress)
        record = SftStageRecord(checkpoint_id=saved.checkpoint_id, steps=tuple(stage.steps))
        kept = stage.ledger.record(stage.key, kind="sft_stage", result=record.model_dump(mode="json"))
        shutil.rmtree(self._blocks / stage.key, ignore_errors=True)
        return SftStageRecord.model_validate(kept)

    def _begun(self, request: SftRequest, key: str, ledger: WorkLedger) -> SftStageRecord | None:
        """The furthest in-stage checkpoint that is still whole."""
        every = request.config.checkpoint_every
        total = sft_updates(request.config, records=len(request.records))
        for made in range((total - 1) // every * every, 0, -every) if every else ():
            found = ledger.find(progress_key(key, made))
            if found is not None:
                record = SftStageRecord.model_validate(found)
                if is_whole(self._blocks / key / record.checkpoint_id):
                    return record
        return None


def _encode(request: SftRequest, state: TrainingState) -> list[SftTokens]:
    """All records as tokens, checked against the template and the limits before anything is trained."""
    stops = stop_token_ids(state.model, state.tokenizer)
    records = [
        encode_record(state.tokenizer, record, stop_token_ids=stops, reader=state.vision) for record in request.records
    ]
    context = getattr(state.model.config.get_text_config(), "max_position_embeddings", None) or 2**31
    check_lengths(records, limit=request.config.max_tokens, reason="sft.max_tokens")
    check_lengths(records, limit=int(context), reason="the policy's context, max_position_embeddings")
    return records


def stage_layout(stage: _Stage) -> Callable[[list[SftTokens], int], SftMicroBatch]:
    """How the records of a forward pass become rows, images included."""
    config, state = stage.request.config, stage.state

    def lay_out(records: list[SftTokens], update_tokens: int) -> SftMicroBatch:
        prompts = [(record.prompt, record.images) for record in records]
        return micro_batch(
            records,
            update_tokens=update_tokens,
            pad_token_id=state.tokenizer.pad_token_id,
            row_limit=config.max_tokens if config.packing else None,
            seen=see(state.vision, state.model, prompts),
        )

    return lay_out


_: type[PolicyTrainer[SftRequest, SftResult]] = SftBlockTrainer  # checked by mypy
__all__ = [
    "SftBlockTrainer",
    "SftRecord",
    "SftRequest",
    "SftResult",
    "SftStepMetrics",
    "find_sft_result",
    "sampled_token_ids",
    "sft_key",
    "sft_records",
]
