"""TRL's GRPOTrainer, extended: rollouts by our engine, dynamic sampling, and the losses of this project.

TRL keeps the training loop, gradient accumulation, clipping and the optimizer's schedule. Overridden are
the data loader (batches are placeholders: tasks are drawn when they are sampled, so a prefetched batch
can never go with stale weights), generation and scoring (:mod:`policy.rollout`), the cut into updates
(whole groups, :mod:`policy.mini_batch`) and the loss (:mod:`policy.loss`).
Source: METHODS §1 (RL) and §2, DAPO; differs: as listed in docs/design/decisions.md, Training.
"""

from __future__ import annotations

import copy
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
from trl import GRPOTrainer

from policy.config import RlConfig
from policy.errors import NonFiniteTraining, NoSignal
from policy.likelihood import completion_likelihood
from policy.loss import Surrogate, clipped_surrogate, engine_correction, k3_divergence, sequence_sum, token_sum
from policy.mini_batch import MicroBatch, micro_batches
from policy.process import current_world, sharding
from policy.rollout_record import RolloutBatch
from policy.step_metric import PeakMemory, StepMetrics, UpdateTally
from policy.telemetry import NO_TELEMETRY, Telemetry
from policy.trl_argument import trl_arguments
from policy.trl_loop import UpdateEnd, check_finite, placeholder_loader
from policy.vision import Viewer, VisionReader
from policy.weights import are_finite, trained_parameters


@dataclass(frozen=True)
class Hooks:
    """What a training run asks of its owner."""

    collect: Callable[[], RolloutBatch]
    """Sample the next rollout batch with the model's current weights."""
    on_step: Callable[[RolloutBatch, StepMetrics], None]
    """A rollout step and all its updates are done; the model holds its weights."""
    reference: Callable[[MicroBatch], Tensor] | None = None
    """Log-probabilities under the reference policy; None without a KL term."""


class HarnessGrpoTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO on batches that a collector samples.

    Args:
        model: the policy, or a peft model around it.
        tokenizer: of the policy.
        config: of the block.
        rollout_steps: how many to train.
        hooks: sampling and bookkeeping of the owner.
        optimizer: over the trained parameters.
        scheduler: of the learning rate, stepped once an update.
        output_dir: for files TRL may write; it writes none.
        seed: TRL seeds the global generators with it when it is built.
        telemetry: trackers that get every rollout step's numbers.
        vision: of a policy that sees; None shows no image.
    """

    state: Any

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: RlConfig,
        *,
        rollout_steps: int,
        hooks: Hooks,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LambdaLR,
        output_dir: str,
        seed: int,
        telemetry: Telemetry = NO_TELEMETRY,
        vision: VisionReader | None = None,
    ) -> None:
        self._rl = config
        self._world = current_world()
        self._viewer = Viewer(vision, model) if vision is not None else None
        self._hooks = hooks
        self._micro: list[MicroBatch] = []
        self._batch: RolloutBatch | None = None
        self._tally = UpdateTally()
        self._rollout_s = 0.0
        self._started = 0.0
        self._memory = PeakMemory(is_cuda=model.device.type == "cuda")
        arguments = trl_arguments(
            config,
            rollout_steps=rollout_steps,
            output_dir=output_dir,
            seed=seed,
            use_cpu=model.device.type == "cpu",
            telemetry=telemetry,
        )
        with telemetry.placed():
            super().__init__(
                model=model,
                reward_funcs=_rewarded_when_sampled,
                args=arguments,
                train_dataset=Dataset.from_dict({"prompt": [""]}),
                processing_class=tokenizer,
                optimizers=(optimizer, scheduler) if not sharding() else (None, None),
                callbacks=[UpdateEnd(self.finish_update)],
            )
        if sharding():  # the library refuses them when it is built, and cuts them with the model when it trains
            self.optimizer, self.lr_scheduler = optimizer, scheduler
        self.remove_callback(PrinterCallback)  # the run reports its own progress; stdout may be JSON

    def get_train_dataloader(self) -> Any:
        """One placeholder per micro-batch of the whole run, in one pass."""
        count = self.args.max_steps * self.args.gradient_accumulation_steps
        return placeholder_loader(count)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated: the placeholders hold no tokens to count."""
        return 0

    def _prepare_inputs(self, generation_batch: Any) -> MicroBatch:
        """The next micro-batch; a new rollout batch when the last one is used up."""
        if not self._micro:
            self._start_rollout_step()
        return self._micro.pop(0)

    def _start_rollout_step(self) -> None:
        started = time.monotonic()
        self._memory.restart()
        batch = self._hooks.collect()
        if batch.stop:
            raise NoSignal(batch.stop)
        made = micro_batches(
            batch,
            self._rl,
            pad_token_id=self._tokenizer.pad_token_id,
            device=self.accelerator.device,
            viewer=self._viewer,
            process=self._world.rank,
            processes=self._world.size,
        )
        self._micro = [self._with_scores(micro) for micro in made]
        self._batch, self._tally = batch, UpdateTally()
        self._started = time.monotonic()
        self._rollout_s = self._started - started

    def _with_scores(self, micro: MicroBatch) -> MicroBatch:
        """Old log-probabilities where an update passed since sampling or another engine sampled; the reference's."""
        old = None
        if micro.update > 0 or micro.sampled is not None:
            was_training = self.model.training
            self.model.eval()
            with torch.no_grad():
                old = completion_likelihood(self.model, micro.tokens, temperature=self.temperature).log_probabilities
            self.model.train(was_training)
        reference = self._hooks.reference(micro) if self._hooks.reference is not None else None
        return micro.with_scores(old=old, reference=reference)

    def _compute_loss(self, model: Any, inputs: MicroBatch) -> Tensor:
        """One micro-batch's part of its update's loss; parts add up, so nothing is rescaled after."""
        config, mask = self._rl, inputs.tokens.completion_mask
        scores = completion_likelihood(
            model, inputs.tokens, temperature=self.temperature, has_entropy_gradient=config.entropy_weight > 0
        )
        current = scores.log_probabilities
        old = current.detach() if inputs.old is None else inputs.old
        surrogate = clipped_surrogate(
            # At masked places the ratio is 1: an overflow there would turn 0 * inf into NaN.
            torch.exp((current - old) * mask),
            inputs.advantages[:, None],
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            weight=self._weight(inputs, old),
        )
        values, kl = surrogate.loss, torch.zeros_like(surrogate.loss)
        if inputs.reference is not None:
            kl = k3_divergence(current * mask, inputs.reference * mask)
            values = values + config.beta * kl
        if config.entropy_weight:
            values = values - config.entropy_weight * scores.entropy * mask
        if config.aggregation == "token_mean":
            loss = token_sum(values, mask, tokens=inputs.mini_batch_tokens)
        else:
            loss = sequence_sum(values, mask, samples=inputs.mini_batch_samples)
        self._record(inputs, loss, surrogate, entropy=scores.entropy, kl=kl)
        return loss * self._world.size  # gradients are averaged over processes; the normaliser is that of all

    def _weight(self, inputs: MicroBatch, old: Tensor) -> Tensor:
        """What multiplies the surrogate: the task's importance and, where asked for, the engine correction."""
        weight = inputs.importance[:, None]
        if inputs.sampled is None or self._rl.engine_correction_cap is None:
            return weight
        mask = inputs.tokens.completion_mask
        return weight * engine_correction(old * mask, inputs.sampled * mask, cap=self._rl.engine_correction_cap)

    def _record(self, inputs: MicroBatch, loss: Tensor, surrogate: Surrogate, *, entropy: Tensor, kl: Tensor) -> None:
        value = loss.item()
        check_finite(f"loss of update {self.state.global_step}", value)
        mask = inputs.tokens.completion_mask
        self._tally.add(
            inputs.update,
            value,
            positions=inputs.positions,
            padded=inputs.padded,
            tokens=float(mask.sum()),
            entropy=float((entropy.detach() * mask).sum()),
            kl=float((kl.detach() * mask).sum()),
            low=float((surrogate.is_low * mask).sum()),
            high=float((surrogate.is_high * mask).sum()),
            dual=float((surrogate.is_dual * mask).sum()),
        )

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)
        value = float(norm)
        check_finite(f"gradient norm of update {self.state.global_step}", value)
        self._tally.grad_norms.append(value)
        return norm

    def finish_update(self, learning_rate: float) -> None:
        """Close the rollout step after its last update."""
        if self._micro or self._batch is None:
            return
        if not are_finite(trained_parameters(self.model)):
            raise NonFiniteTraining(
                f"weights after rollout step {self._batch.step} are not finite; nothing was saved; "
                "lower the learning rate and resume"
            )
        metrics = self._tally.summed(self._world.sum).metrics(
            self._batch,
            tolerance=self._rl.dynamic_sampling.tolerance,
            learning_rate=learning_rate,
            rollout_s=self._rollout_s,
            update_s=time.monotonic() - self._started,
            peak_memory_mb=self._memory.peak_mb(),
        )
        self._hooks.on_step(self._batch, metrics)
        self._report(metrics)

    def _report(self, metrics: StepMetrics) -> None:
        """Hand a step's numbers to the trackers, under its absolute number: TRL's own counts this sitting's updates."""
        if not self.args.report_to:
            return
        state = self.state
        self.state = copy.copy(state)
        self.state.global_step, self.state.epoch = metrics.step, None
        try:
            self.log(dict(metrics.curves))
        finally:
            self.state = state


def _rewarded_when_sampled(**columns: Any) -> list[float]:
    """TRL asks for a reward function; rewards come with the rollout batch, so this one is never called."""
    raise NotImplementedError("rewards come with the rollout batch")
