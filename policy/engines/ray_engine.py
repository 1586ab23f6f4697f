"""A rollout engine that spreads prompts over Ray actors, each with an engine of its own.

Ray places the actors over the cluster. A prompt's sample depends on its own seed, so the answers are those of one
engine, but for the last bits that batching moves. When an actor dies its prompts go to the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.protocols import Prompt, RolloutEngine
from harness.records import Generation, Sampling
from policy.config import PolicyConfig
from policy.process import whole_groups

OpenEngine = Callable[[], RolloutEngine]
"""Builds an actor's own engine, on whatever node the actor is."""


class RayEngine:
    """A :class:`harness.protocols.RolloutEngine` over Ray actors.

    Args:
        open_engine: builds the engine of one actor; it is sent to the actor.
        policy_id: content id of the weights that will answer.
        actors: how many.
        num_cpus: that each reserves.
        num_gpus: that each reserves.
        rounds: how often the prompts of dead actors are tried on the others.

    Raises:
        UserError: ray is not installed, or no cluster is connected (see :class:`policy.executor.ray.RayExecutor`).
    """

    def __init__(
        self,
        open_engine: OpenEngine,
        policy_id: str,
        *,
        actors: int,
        num_cpus: float = 1,
        num_gpus: float = 0,
        rounds: int = 3,
    ) -> None:
        if find_spec("ray") is None:
            raise UserError("the Ray engine needs its package", do="`pip install ray`")
        import ray

        if not ray.is_initialized():
            raise UserError("the Ray engine needs a cluster", got="no connection", do="call ray.init first")
        self.policy_id = policy_id
        self._rounds = rounds
        actor = ray.remote(num_cpus=num_cpus, num_gpus=num_gpus)(_Actor)
        self._actors: list[Any] = [actor.remote(open_engine) for _ in range(actors)]

    @property
    def actors(self) -> int:
        """How many are alive, as far as this engine has met them."""
        return len(self._actors)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order; prompts that no actor could answer are failures of the engine."""
        answers: dict[int, Generation] = {}
        lost = "no Ray actor is left"
        for _ in range(self._rounds):
            missing = [index for index in range(len(prompts)) if index not in answers]
            if not missing or not self._actors:
                break
            lost = self._ask(prompts, missing, sampling, answers, progress) or lost
        failure = Generation(text="", finish_reason="error", error=f"{lost}; start actors anew and resume")
        return [answers.get(index, failure) for index in range(len(prompts))]

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _ask(
        self,
        prompts: Sequence[Prompt],
        missing: Sequence[int],
        sampling: Sampling,
        answers: dict[int, Generation],
        progress: Callable[[int], None] | None,
    ) -> str:
        """One round over the actors at hand; returns how the last one of them died, or nothing."""
        import ray

        body, lost = sampling.model_dump_json(), ""
        calls: dict[Any, tuple[Any, list[int]]] = {}
        for actor, share in zip(self._actors, _shares(prompts, missing, len(self._actors)), strict=True):
            if share:
                lines = [prompts[index].model_dump_json() for index in share]
                calls[actor.generate.remote(lines, body)] = (actor, share)
        waiting = list(calls)
        while waiting:
            (done,), waiting = ray.wait(waiting, num_returns=1)
            actor, share = calls[done]
            try:
                made = [Generation.model_validate_json(line) for line in ray.get(done)]
            except ray.exceptions.RayActorError as error:
                lost = f"a Ray actor died: {' '.join(str(error).split())[:200]}"
                self._actors.remove(actor)
                continue
            answers.update(zip(share, made, strict=True))
            if progress is not None:
                progress(len(answers))
        return lost


class _Actor:
    """One engine; the process around it belongs to Ray."""

    def __init__(self, open_engine: OpenEngine) -> None:
        self._engine = open_engine()

    def generate(self, prompts: list[str], sampling: str) -> list[str]:
        asked = [Prompt.model_validate_json(line) for line in prompts]
        made = self._engine.generate(asked, Sampling.model_validate_json(sampling))
        return [one.model_dump_json() for one in made]


def checkpoint_engine(policy: PolicyConfig, checkpoint: Path | None, *, threads: int) -> OpenEngine:
    """Opens a checkpoint, or the base, on an actor's node; its folder must be there under the same path.

    Args:
        policy: base model and, perhaps, adapters.
        checkpoint: folder; None takes the base.
        threads: CPU threads of torch in every actor.
    """
    folder = os.getcwd()

    def open_here() -> RolloutEngine:
        from policy.training_state import open_engine

        if os.path.isdir(folder):
            os.chdir(folder)  # relative paths of the configuration
        return open_engine(policy, checkpoint, threads=threads)

    return open_here


def _shares(prompts: Sequence[Prompt], indices: Sequence[int], count: int) -> list[list[int]]:
    """Indices for every actor; neighbouring prompts with equal messages stay together, as their prefill is shared."""
    shares: list[list[int]] = [[] for _ in range(count)]
    for number, group in enumerate(whole_groups([prompts[index].messages for index in indices])):
        shares[number % count] += [indices[position] for position in group]
    return shares
