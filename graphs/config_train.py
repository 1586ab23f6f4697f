"""Configuration of the train strategy: one fixed harness, weights trained through declared stages."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from harness.records import Record
from policy.config import RlConfig, SftConfig


class EvaluationSampling(Record):
    """Decoding of every evaluation: gate, baseline and report use the same."""

    temperature: float = Field(default=1.0, ge=0)
    """0 decodes greedily; 1 samples from the policy as it is trained."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the sampling distribution."""


class BlockPlan(NamedTuple):
    """One uninterrupted run of rollout steps."""

    rollout_steps: int
    rl: RlConfig


class SftStageConfig(Record):
    """The teacher writes traces of train tasks, the verifier audits them, the policy is tuned on those it accepts."""

    type: Literal["sft"]
    """Which stage this is."""
    traces: int | None = Field(default=None, ge=1)
    """Accepted traces wanted; null asks the teacher for every train task of the run."""
    style: str = "direct"
    """How much working a trace shows; a style of the suite."""
    sft: SftConfig = SftConfig()
    """Settings of the tuning."""

    @property
    def threads(self) -> int:
        """CPU threads of torch in this stage."""
        return self.sft.threads

    @property
    def blocks(self) -> tuple[int, ...]:
        """One piece of work without rollout steps."""
        return (0,)


class RlStageConfig(Record):
    """Blocks of reinforcement learning; the pair is measured on val after each of them."""

    type: Literal["rl"]
    """Which stage this is."""
    rollout_steps: int = Field(ge=1)
    """Of the whole stage."""
    block_steps: int | None = Field(default=None, ge=1)
    """Rollout steps of one block, hence between two val scores and two kept checkpoints; null takes the whole stage."""
    rl: RlConfig = RlConfig()
    """Settings of every block of the stage."""

    @property
    def threads(self) -> int:
        """CPU threads of torch in this stage."""
        return self.rl.threads

    @property
    def blocks(self) -> tuple[int, ...]:
        """Rollout steps of every block; the last one may be shorter."""
        size = self.block_steps or self.rollout_steps
        return tuple(min(size, self.rollout_steps - done) for done in range(0, self.rollout_steps, size))

    def plan(self, block: int) -> BlockPlan:
        """A block of the stage, from 0."""
        return BlockPlan(self.blocks[block], self.rl)


StageConfig = Annotated[SftStageConfig | RlStageConfig, Field(discriminator="type")]


class TrainConfig(Record):
    """Train a policy under one fixed harness through declared stages."""

    type: Literal["train"]
    """Which strategy this is."""
    stages: tuple[StageConfig, ...] = Field(min_length=1)
    """What happens to the weights, in order."""
    evaluation: EvaluationSampling = EvaluationSampling()
    """Decoding of every evaluation."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest completion in evaluations, in tokens; null takes the longest of the rl stages."""
    seed_demonstrations: int = Field(default=0, ge=0)
    """Worked examples that the teacher writes, and the verifier accepts, for the harness."""
    demonstration_style: str = "direct"
    """How much working the teacher's examples show; a style of the suite."""
    max_unscored_share: float = Field(default=0.05, ge=0, lt=1)
    """An evaluation with a larger share of attempts without a score is refused."""
    share_work: bool = False
    """Reuse identical work (same weights, harness, tasks, sampling, purpose, replicate) of other runs in this home."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_tokens is None and not self.rl_stages:
            raise ValueError("give max_tokens where no stage is of type rl; it bounds the answers of evaluations")
        threads = {stage.threads for stage in self.stages}
        if len(threads) > 1:
            raise ValueError(
                f"stages have threads {sorted(threads)}; give all the same, since one run has one order of sums"
            )
        ratios = [(stage.rl.warmup_ratio, stage.rl.lifecycle_rollout_steps) for stage in self.rl_stages]
        for ratio, lifecycle in ratios:
            if ratio is not None and lifecycle is not None and lifecycle < self.rollout_steps:
                raise ValueError(
                    f"rl.lifecycle_rollout_steps={lifecycle} is shorter than the {self.rollout_steps} rollout steps of "
                    "all stages; it is the whole life of the policy"
                )
        return self

    @property
    def rl_stages(self) -> tuple[RlStageConfig, ...]:
        """The stages that make rollouts."""
        return tuple(stage for stage in self.stages if stage.type == "rl")

    @property
    def sft_stages(self) -> tuple[SftStageConfig, ...]:
        """The stages that tune on traces."""
        return tuple(stage for stage in self.stages if stage.type == "sft")

    @property
    def rollout_steps(self) -> int:
        """Of all stages together."""
        return sum(stage.rollout_steps for stage in self.rl_stages)

    @property
    def title(self) -> str:
        """As the report names the strategy."""
        return self.type

    @property
    def trains(self) -> bool:
        """Weights are what this strategy changes."""
        return True

    @property
    def condition(self) -> str:
        """The strategy has one arm."""
        return self.type

    @property
    def threads(self) -> int:
        """CPU threads of torch, in training and in evaluations."""
        return self.stages[0].threads

    @property
    def answer_tokens(self) -> int:
        """Longest completion in evaluations."""
        return self.max_tokens or max(stage.rl.max_tokens for stage in self.rl_stages)

    @property
    def prompts_needed(self) -> int:
        """Train tasks behind the largest rollout step; 0 without one."""
        return max((stage.rl.prompts_per_step for stage in self.rl_stages), default=0)

    @property
    def measured_units(self) -> int:
        """Pieces of work after which the pair is measured: SFT stages and RL blocks."""
        return sum(len(stage.blocks) for stage in self.stages)
