"""Several training processes: one ledger, and one rollout batch that all of them sample together.

The lead (rank 0) alone draws tasks, scores, and writes the ledger and checkpoints. It tells the others what to do
next; everything that decides weights is broadcast, so no process can go another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import JsonValue

from harness.protocols import Prompt, RolloutEngine, WorkLedger
from harness.records import Generation, Sampling
from policy.engines.transformers_engine import TransformersEngine
from policy.process import World, current_world, told_value, whole_groups
from policy.rollout import Collector
from policy.rollout_record import RolloutBatch
from policy.task_stream import derive_seed


class SharedLedger:
    """The lead's ledger, answering the same in every process; all must ask the same questions in the same order.

    Args:
        world: of the processes.
        ledger: the lead's.
    """

    def __init__(self, world: World, ledger: WorkLedger) -> None:
        self._world = world
        self.own = ledger

    def find(self, key: str) -> JsonValue | None:
        """The recorded result, or None."""
        found: JsonValue | None = self._world.as_lead(lambda: self.own.find(key))
        return found

    def record(self, key: str, *, kind: str, result: JsonValue) -> JsonValue:
        """Store a result once; returns what the ledger holds."""
        kept: JsonValue = self._world.as_lead(lambda: self.own.record(key, kind=kind, result=result))
        return kept


class SharedEngine:
    """An engine over one model per process: the lead asks, every process answers its share of the prompts.

    A prompt's sample depends on its own seed alone, so how prompts are shared changes last bits at most.

    Args:
        world: of the processes.
        engine: this process' own.
    """

    def __init__(self, world: World, engine: RolloutEngine) -> None:
        self._world = world
        self._engine = engine

    @property
    def policy_id(self) -> str:
        """Content id of the weights that will answer."""
        return self._engine.policy_id

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order; the lead alone calls this, the others are in :meth:`serve`."""
        asked: list[JsonValue] = [prompt.model_dump(mode="json") for prompt in prompts]
        self._world.share({"prompts": asked, "sampling": sampling.model_dump(mode="json")})
        return self._answer(prompts, sampling)

    def serve(self) -> Any:
        """Answer what the lead asks until it has finished its batch; returns what it told at the end."""
        while True:
            told = self._world.share()
            if "prompts" not in told:
                return told_value(told)
            self._answer([Prompt.model_validate(one) for one in told["prompts"]], Sampling(**told["sampling"]))

    def _answer(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Generation]:
        size = self._world.size
        groups = whole_groups([prompt.messages for prompt in prompts])
        own = [index for number, group in enumerate(groups) if number % size == self._world.rank for index in group]
        made = self._engine.generate([prompts[index] for index in own], sampling) if own else []
        rows = self._world.gather([[index, one.model_dump(mode="json")] for index, one in zip(own, made, strict=True)])
        answers = {index: Generation.model_validate(one) for row in rows for index, one in row}
        return [answers[index] for index in range(len(prompts))]


def shared_ledger(ledger: WorkLedger) -> WorkLedger:
    """The ledger of a block: with several processes, the lead's."""
    world = current_world()
    return SharedLedger(world, ledger) if world.size > 1 else ledger


def shared_engine(engine: RolloutEngine) -> RolloutEngine:
    """The engine of a block: where several processes hold the model, all of them answer."""
    world = current_world()
    is_here = isinstance(engine, TransformersEngine)
    return SharedEngine(world, engine) if world.size > 1 and is_here else engine


def collect_batch(collector: Collector, step: int, position: int, ledger: WorkLedger) -> RolloutBatch:
    """One rollout batch, in every process; see :meth:`policy.rollout.Collector.collect`.

    Args:
        collector: its engine is a :class:`SharedEngine` where every process has a model.
        step: absolute number of the rollout step.
        position: of the task stream, before this step.
        ledger: keeps the batch.
    """
    world, engine = current_world(), collector.engine
    if world.size == 1:
        return collector.collect(step, position, ledger)
    own = ledger.own if isinstance(ledger, SharedLedger) else ledger

    def collect() -> JsonValue:
        made: JsonValue = collector.collect(step, position, own).model_dump(mode="json")
        return made

    if world.is_lead or not isinstance(engine, SharedEngine):
        told = world.as_lead(collect)
    else:
        told = engine.serve()
    if not world.is_lead:  # the checkpoint keeps the lead's generators; the others' follow from the step
        torch.manual_seed(derive_seed("process", collector.seed, step, world.rank))
    return RolloutBatch.model_validate(told)
