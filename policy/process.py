"""The processes of a training block: how many there are, who leads, and what they tell each other.

Without a process group every function here does its work alone. Messages are JSON, so nothing is unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import JsonValue

from harness.errors import UserError
from policy.config import AnyPolicyConfig
from policy.errors import TrainingError


@dataclass(frozen=True)
class World:
    """The processes of a block."""

    rank: int = 0
    size: int = 1

    @property
    def is_lead(self) -> bool:
        """Whether this process draws, scores and writes."""
        return self.rank == 0

    def share(self, value: JsonValue = None) -> Any:
        """The lead's value, in every process."""
        if self.size == 1:
            return value
        return json.loads(self._broadcast(json.dumps(value).encode() if self.is_lead else b""))

    def gather(self, value: JsonValue) -> list[Any]:
        """Every process' value, by rank, in every process."""
        if self.size == 1:
            return [value]
        return [json.loads(body) for body in self._gather(json.dumps(value).encode())]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes, entry by entry, in rank order."""
        if self.size == 1:
            return list(values)
        rows: list[list[float]] = self.gather(list(values))
        return [sum(column) for column in zip(*rows, strict=True)]

    def as_lead(self, make: Callable[[], JsonValue]) -> Any:
        """What the lead makes, in every process; its failure is raised in every process."""
        if self.size == 1:
            return make()
        told: dict[str, Any] = {}
        try:
            told = {"value": make()} if self.is_lead else {}
        except Exception as error:  # the trainer boundary: the others must not wait for ever
            self.share({"failed": f"{type(error).__name__}: {error}"})
            raise
        return told_value(self.share(told))

    def _broadcast(self, body: bytes) -> bytes:
        length = torch.tensor([len(body)], device=_device())
        torch.distributed.broadcast(length, src=0)
        data = torch.empty(int(length), dtype=torch.uint8, device=_device())
        if self.is_lead:
            data.copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        torch.distributed.broadcast(data, src=0)
        return bytes(data.cpu().numpy())

    def _gather(self, body: bytes) -> list[bytes]:
        lengths = [torch.zeros(1, dtype=torch.long, device=_device()) for _ in range(self.size)]
        torch.distributed.all_gather(lengths, torch.tensor([len(body)], device=_device()))
        counts = [int(length) for length in lengths]
        padded = torch.zeros(max(counts), dtype=torch.uint8, device=_device())
        padded[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8).to(_device())
        rows = [torch.empty_like(padded) for _ in counts]
        torch.distributed.all_gather(rows, padded)
        return [bytes(row[:count].cpu().numpy()) for row, count in zip(rows, counts, strict=True)]


def current_world() -> World:
    """The processes of this launch; joins their group on the first call when a launcher started this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    if not torch.distributed.is_initialized():
        from accelerate import PartialState

        PartialState(cpu=not torch.cuda.is_available())
    return World(torch.distributed.get_rank(), torch.distributed.get_world_size())


def sharding() -> str:
    """How this launch cuts the parameters over its processes: ``FSDP``, or an empty text for not at all."""
    return "FSDP" if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" else ""


def check_sharding(policy: AnyPolicyConfig) -> None:
    """Refuse rollouts by the model in training where no process holds all of it.

    Raises:
        UserError: as above; a server has to sample.
    """
    if sharding() and policy.engine.type != "vllm_server":
        raise UserError(
            "a policy whose parameters are cut over processes cannot be rolled out in them",
            got=f"{sharding()} and policy.engine.type={policy.engine.type}",
            expected="policy.engine.type=vllm_server",
            do="start vLLM servers and name them in policy.engine.urls, or train with configs/accelerate/ddp.yaml",
        )


def leave_world() -> None:
    """Leave the process group, once all work is done."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def take_own_gpu() -> None:
    """Where a launcher started several processes on this machine: let ``cuda`` mean this process' own GPU."""
    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def bare(model: Any) -> Any:
    """The module inside a data-parallel wrapper, which hides its settings."""
    from accelerate.utils import extract_model_from_parallel

    return extract_model_from_parallel(model) if torch.distributed.is_initialized() else model


def told_value(told: dict[str, Any]) -> Any:
    """What the lead told, or its failure raised here too."""
    if "failed" in told:
        raise TrainingError(f"the leading training process failed; got {told['failed']}")
    return told["value"]


def _device() -> torch.device:
    is_gpu = torch.distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")


def whole_groups(keys: Sequence[object]) -> list[list[int]]:
    """Indices of neighbours with equal keys, for work that is cheaper when they stay together."""
    groups: list[list[int]] = []
    for index, key in enumerate(keys):
        if index and key == keys[index - 1]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
