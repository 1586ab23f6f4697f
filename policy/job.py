"""A training block as one line of JSON: what another process needs to train it, and where to put the result.

A :class:`policy.block.BlockRequest` holds live objects. The job holds what they are rebuilt from, and the block's
ledger key, so that a process that would rebuild something else refuses. No secret is in it: a database elsewhere
is named by the environment variable that holds its URL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evals.config import SuiteConfig
from evals.suites.base import Suite
from evals.suites.registry import build_suite
from harness.errors import UserError
from harness.model import Harness
from harness.protocols import WorkLedger
from harness.records import Record, Task
from memory.store import Store
from policy.config import PolicyConfig, RlConfig
from policy.errors import TrainingError

if TYPE_CHECKING:
    from policy.block import BlockRequest


class StoreAddress(Record):
    """Where results go: a home folder that every process of the block can reach, and the ledger in it."""

    home: str
    """Absolute path."""
    scope: str
    """Of the ledger, see :meth:`memory.store.Store.ledger`."""
    url_env: str = ""
    """Environment variable that holds a database URL; empty takes the home's own SQLite file."""

    @contextmanager
    def opened(self) -> Iterator[WorkLedger]:
        """The ledger, for as long as the block lasts.

        Raises:
            UserError: the environment variable is not set here.
        """
        url = os.environ.get(self.url_env) if self.url_env else None
        if self.url_env and not url:
            raise UserError(
                "the trainer cannot open the store",
                got=f"no environment variable {self.url_env}",
                expected="the database URL in it, in every process that trains",
            )
        with Store.open(self.home, url) as store:
            yield store.ledger(self.scope)


class TrainingJob(Record):
    """One block of training."""

    kind: Literal["rl"] = "rl"
    key: str
    """Ledger key of the block; a rebuilt request must have the same."""
    policy: PolicyConfig
    suite: SuiteConfig
    harness: Harness
    tasks: tuple[Task, ...]
    rollout_steps: int
    first_step: int
    seed: int
    config: RlConfig
    task_weights: dict[str, float] | None = None
    """See :class:`policy.block.BlockRequest`."""
    parent: str = ""
    """Checkpoint folder to go on from; empty starts from the base policy."""
    store: StoreAddress

    @classmethod
    def of(cls, request: BlockRequest, *, policy: PolicyConfig, suite: SuiteConfig, store: StoreAddress) -> TrainingJob:
        """The job of a request.

        Args:
            request: with live objects.
            policy: that the block trains.
            suite: what ``request.suite`` is built from.
            store: where the block's results go.

        Raises:
            TrainingError: the request has a task order of its own, which no other process can rebuild.
        """
        from policy.block import block_key

        if request.order is not None:
            raise TrainingError(
                "a block with a task order of its own trains in its own process alone; give task_weights, or call "
                "GrpoBlockTrainer.train"
            )
        return cls(
            key=block_key(policy, request),
            policy=policy,
            suite=suite,
            harness=request.harness,
            tasks=request.tasks,
            rollout_steps=request.rollout_steps,
            first_step=request.first_step,
            seed=request.seed,
            config=request.config,
            task_weights=request.task_weights,
            parent=str(request.parent.absolute()) if request.parent else "",
            store=store,
        )

    def request(self, suite: Suite | None = None) -> BlockRequest:
        """The request again.

        Args:
            suite: built from :attr:`suite` before; None builds it.

        Raises:
            TrainingError: this process rebuilds another block: another suite, other code or another parent.
        """
        from policy.block import BlockRequest, block_key

        made = BlockRequest(
            parent=Path(self.parent) if self.parent else None,
            harness=self.harness,
            suite=suite if suite is not None else build_suite(self.suite),
            tasks=self.tasks,
            rollout_steps=self.rollout_steps,
            first_step=self.first_step,
            seed=self.seed,
            config=self.config,
            task_weights=self.task_weights,
        )
        key = block_key(self.policy, made)
        if key != self.key:
            raise TrainingError(
                f"a training process rebuilt another block than it was sent; got {key}, expected {self.key}; its suite "
                f"{made.suite.fingerprint} or its code differs: install one version of both on every machine"
            )
        return made
