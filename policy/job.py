"""A block of training as one line of JSON: what another process needs to train it, and where to put the result.

A :class:`policy.block.BlockRequest` holds live objects. The job holds what they are rebuilt from, and the block's
ledger key, so that a process that would rebuild something else refuses. No secret is in it: a database elsewhere
is named by the environment variable that holds its URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, JsonValue, TypeAdapter

from evals.config import SuiteConfig
from evals.suites.base import Suite
from evals.suites.registry import build_suite
from harness.errors import UserError
from harness.model import Harness
from harness.protocols import WorkLedger
from harness.records import Record, Task
from memory.store import Store
from policy.config import PolicyConfig, RlConfig, SftConfig
from policy.errors import TrainingError
from policy.sft.record import SftRecord

if TYPE_CHECKING:
    from policy.block import BlockRequest, BlockResult
    from policy.sft.block import SftRequest, SftResult
    from policy.sft.metric import SftStepMetrics
    from policy.step_metric import StepMetrics


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


class _Job(Record):
    """What every job has."""

    key: str
    """Ledger key of the work; a rebuilt request must have the same."""
    policy: PolicyConfig
    seed: int
    parent: str = ""
    """Checkpoint folder to go on from; empty starts from the base policy."""
    store: StoreAddress

    @property
    def home(self) -> Path:
        """Folder of all state."""
        return Path(self.store.home)

    @property
    def parent_folder(self) -> Path | None:
        """:attr:`parent` as a path."""
        return Path(self.parent) if self.parent else None

    def check_key(self, key: str) -> None:
        """Refuse work that another process would do differently.

        Raises:
            TrainingError: the rebuilt request has another key.
        """
        if key != self.key:
            raise TrainingError(
                f"a training process rebuilt other work than it was sent; got {key}, expected {self.key}; its suite, "
                "parent checkpoint or code differs: install one version of each on every machine"
            )


class TrainingJob(_Job):
    """One block of reinforcement learning."""

    kind: Literal["rl"] = "rl"
    suite: SuiteConfig
    harness: Harness
    tasks: tuple[Task, ...]
    rollout_steps: int
    first_step: int
    config: RlConfig
    task_weights: dict[str, float] | None = None
    """See :class:`policy.block.BlockRequest`."""

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
            TrainingError: this process rebuilds another block.
        """
        from policy.block import BlockRequest, block_key

        made = BlockRequest(
            parent=self.parent_folder,
            harness=self.harness,
            suite=suite if suite is not None else build_suite(self.suite),
            tasks=self.tasks,
            rollout_steps=self.rollout_steps,
            first_step=self.first_step,
            seed=self.seed,
            config=self.config,
            task_weights=self.task_weights,
        )
        self.check_key(block_key(self.policy, made))
        return made

    def train(self, ledger: WorkLedger, progress: Callable[[Any], None] | None) -> BlockResult:
        """Train the block in this process."""
        from policy.trainer import GrpoBlockTrainer

        return GrpoBlockTrainer(self.policy, self.home).train(self.request(), ledger, progress)

    def find_result(self, ledger: WorkLedger) -> BlockResult | None:
        """What the block ended in, when it was trained before."""
        from policy.block import find_result

        return find_result(self.key, self.home / "checkpoints", ledger)

    def read_step(self, metrics: dict[str, JsonValue]) -> StepMetrics:
        """A rollout step's dumped metrics as a record."""
        from policy.step_metric import StepMetrics

        return StepMetrics.model_validate(metrics)


class SftJob(_Job):
    """One stage of supervised fine-tuning."""

    kind: Literal["sft"] = "sft"
    records: tuple[SftRecord, ...]
    config: SftConfig

    @classmethod
    def of(cls, request: SftRequest, *, policy: PolicyConfig, store: StoreAddress) -> SftJob:
        """The job of a request; see :meth:`TrainingJob.of`."""
        from policy.sft.block import sft_key

        return cls(
            key=sft_key(policy, request),
            policy=policy,
            seed=request.seed,
            records=request.records,
            config=request.config,
            parent=str(request.parent.absolute()) if request.parent else "",
            store=store,
        )

    def request(self) -> SftRequest:
        """The request again.

        Raises:
            TrainingError: this process rebuilds another stage.
        """
        from policy.sft.block import SftRequest, sft_key

        made = SftRequest(parent=self.parent_folder, records=self.records, config=self.config, seed=self.seed)
        self.check_key(sft_key(self.policy, made))
        return made

    def train(self, ledger: WorkLedger, progress: Callable[[Any], None] | None) -> SftResult:
        """Train the stage in this process."""
        from policy.sft.block import SftBlockTrainer

        return SftBlockTrainer(self.policy, self.home).train(self.request(), ledger, progress)

    def find_result(self, ledger: WorkLedger) -> SftResult | None:
        """What the stage ended in, when it was trained before."""
        from policy.sft.block import find_sft_result

        return find_sft_result(self.key, self.home / "checkpoints", ledger)

    def read_step(self, metrics: dict[str, JsonValue]) -> SftStepMetrics:
        """An update's dumped metrics as a record."""
        from policy.sft.metric import SftStepMetrics

        return SftStepMetrics.model_validate(metrics)


AnyJob = TrainingJob | SftJob
_JOB: TypeAdapter[AnyJob] = TypeAdapter(Annotated[AnyJob, Field(discriminator="kind")])


def read_job(line: str) -> AnyJob:
    """A job from its line.

    Raises:
        ValidationError: the line is no job.
    """
    return _JOB.validate_json(line)
