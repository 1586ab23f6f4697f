"""TRL's SFTTrainer, extended: records whose tokens were checked, in an order that survives a kill, and typed failures.

TRL keeps the training loop, gradient accumulation, clipping, the optimizer's schedule and its fused head, which
scores labels without building all logits. Overridden are the data (batches come from a position-addressed stream)
and the normaliser (completion tokens of the whole update, over all passes and processes).
Source: METHODS §2, SFT; differs: as listed in docs/design/decisions.md, Training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl import SFTConfig as TrlSftConfig
from trl import SFTTrainer

from policy.config import SftConfig
from policy.errors import NonFiniteTraining
from policy.loss import token_sum
from policy.process import sharding
from policy.sft.batch import IGNORED, SftMicroBatch, cut_update, passes_per_update
from policy.sft.metric import SftStepMetrics, SftTally
from policy.sft.tokens import SftTokens
from policy.trl_loop import QUIET, UpdateEnd, check_finite, placeholder_loader
from policy.weights import are_finite, trained_parameters

Layout = Callable[[list[SftTokens], int], SftMicroBatch]
"""Lays one pass's records out; the number is the update's tokens in the loss."""


@dataclass(frozen=True)
class SftHooks:
    """What a training run asks of its owner."""

    records: Callable[[int], list[SftTokens]]
    """Records of an update, by its number in the stage."""
    lay_out: Layout
    on_start: Callable[[], None]
    """Right before the first forward pass; sets the random generators."""
    on_step: Callable[[SftStepMetrics], None]
    """An update is made; the model holds its weights."""


class HarnessSftTrainer(SFTTrainer):  # type: ignore[misc]
    """SFT on records that an owner hands over, update by update.

    Args:
        model: the policy, or a peft model around it.
        tokenizer: of the policy.
        config: of the stage.
        first_update: number of the first update to make.
        updates: how many to make.
        hooks: records and bookkeeping of the owner.
        optimizer: over the trained parameters.
        scheduler: of the learning rate, stepped once an update.
        output_dir: for files TRL may write; it writes none.
        seed: TRL seeds the global generators with it when it is built.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: SftConfig,
        *,
        first_update: int,
        updates: int,
        hooks: SftHooks,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LambdaLR,
        output_dir: str,
        seed: int,
    ) -> None:
        self._sft = config
        self._hooks = hooks
        self._update = first_update
        self._is_started = False
        self._micro: list[SftMicroBatch] = []
        self._count = 0
        self._tally = SftTally()
        self._started = 0.0
        super().__init__(
            model=model,
            args=trl_sft_arguments(
                config, updates=updates, output_dir=output_dir, seed=seed, use_cpu=model.device.type == "cpu"
            ),
            train_dataset=Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]}),
            processing_class=tokenizer,
            optimizers=(optimizer, scheduler) if not sharding() else (None, None),
            callbacks=[UpdateEnd(self.finish_update)],
        )
        self.loss_is_scaled_for_ga = True  # the parts of an update add up
        if sharding():  # the library refuses them when it is built, and cuts them with the model when it trains
            self.optimizer, self.lr_scheduler = optimizer, scheduler
        self.remove_callback(PrinterCallback)  # the run reports its own progress; stdout may be JSON

    def get_train_dataloader(self) -> Any:
        """One placeholder per forward pass of the whole run, in one epoch."""
        count = self.args.max_steps * self.args.gradient_accumulation_steps
        return placeholder_loader(count)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated: the placeholders hold no tokens to count."""
        return 0

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> None:
        """Placeholders have no labels to count; every micro-batch carries its update's normaliser."""
        return None

    def _prepare_inputs(self, inputs: Any) -> SftMicroBatch:
        """The next micro-batch; those of the next update when the last one is used up."""
        if not self._micro:
            self._start_update()
        return self._micro.pop(0)

    def _start_update(self) -> None:
        self._started = time.monotonic()
        records = self._hooks.records(self._update)
        tokens = sum(len(record.completion) for record in records)
        accelerator = self.accelerator
        passes = cut_update(records, self._sft, process=accelerator.process_index, processes=accelerator.num_processes)
        self._micro = [self._hooks.lay_out(own, tokens).to(accelerator.device) for own in passes]
        self._count, self._tally = len(records), SftTally()
        if not self._is_started:  # building the trainer and its loader drew from the generators
            self._hooks.on_start()
            self._is_started = True

    def compute_loss(
        self, model: Any, inputs: SftMicroBatch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """One micro-batch's part of its update's loss: negative log-likelihood per completion token of the update."""
        outputs = model(**inputs.arguments, use_cache=False, fused_lm_head=True)
        counts = (inputs.labels[:, 1:] != IGNORED).to(outputs.log_probs.dtype)
        loss: Tensor = token_sum(-outputs.log_probs, counts, tokens=inputs.update_tokens)
        value = loss.item()
        check_finite(f"loss of SFT update {self._update}", value)
        self._tally.add(loss=value, tokens=inputs.tokens, cells=inputs.cells, loss_tokens=int(counts.sum()))
        processes: int = self.accelerator.num_processes
        return loss * processes  # gradients are averaged over processes; the normaliser is that of all

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)
        value = float(norm)
        check_finite(f"gradient norm of SFT update {self._update}", value)
        self._tally.grad_norm = value
        return norm

    def finish_update(self, learning_rate: float) -> None:
        """Close an update after its optimizer step."""
        if not are_finite(trained_parameters(self.model)):
            raise NonFiniteTraining(
                f"weights after SFT update {self._update} are not finite; nothing was saved; "
                "lower the learning rate and resume"
            )
        metrics = self._tally.metrics(
            step=self._update,
            records=self._count,
            learning_rate=learning_rate,
            update_s=time.monotonic() - self._started,
            gather=self._sum_over_processes,
        )
        self._update += 1
        self._hooks.on_step(metrics)

    def _sum_over_processes(self, values: list[float]) -> list[float]:
        if self.accelerator.num_processes == 1:
            return values
        summed = self.accelerator.reduce(
            torch.tensor(values, dtype=torch.float64, device=self.accelerator.device), reduction="sum"
        )
        gathered: list[float] = summed.tolist()
        return gathered


def trl_sft_arguments(config: SftConfig, *, updates: int, output_dir: str, seed: int, use_cpu: bool) -> TrlSftConfig:
    """TRL's settings for a stage; TRL prepares no data, and logs, saves and draws nothing."""
    return TrlSftConfig(
        output_dir=output_dir,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=passes_per_update(config, processes=int(os.environ.get("WORLD_SIZE", "1"))),
        max_steps=updates,
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm,
        seed=seed % 2**32,
        use_cpu=use_cpu,
        **QUIET,
        report_to="none",
    )
