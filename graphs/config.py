"""A run's whole configuration as frozen records. Parsing it imports no torch, litellm or langgraph."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from agents.llm.config import RolesConfig
from evals.config import SuiteConfig
from harness.records import Record
from policy.config import PocketPolicyConfig, PolicyConfig, RlConfig

Condition = Literal["vace", "static", "harness-only", "rl-only", "sia", "whale"]
"""METHODS §1: the same nodes, other routers."""


class EvaluationSampling(Record):
    """Decoding of every evaluation: gate, baseline and report use the same."""

    temperature: float = Field(default=1.0, ge=0)
    """0 decodes greedily; 1 samples from the policy as it is trained."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the sampling distribution."""


class VaceConfig(Record):
    """Validation-gated alternation of RL blocks and harness proposals."""

    type: Literal["vace"] = "vace"
    """Which strategy this is."""
    condition: Condition = "vace"
    """Which arm runs: vace alternates and gates; the others leave a part out (see graphs/vace.py)."""
    rounds: int = Field(default=4, ge=1)
    """Rounds T; sia spends them twice: T harness rounds, then T RL blocks under the best harness."""
    rollout_steps: int = Field(default=5, ge=1)
    """Rollout steps of one RL block, hence between two proposals."""
    rl: RlConfig = RlConfig()
    """Settings of every RL block."""
    evaluation: EvaluationSampling = EvaluationSampling()
    """Decoding of every evaluation."""
    seed_demonstrations: int = Field(default=0, ge=0)
    """Worked examples that the teacher writes, and the verifier accepts, for the first harness."""
    demonstration_style: str = "direct"
    """How much working the teacher's first examples show; a style of the suite."""
    explore_tasks: int = Field(default=64, ge=1)
    """Train tasks that the explorer attempts each harness-only round to collect diagnostic traces."""
    max_unscored_share: float = Field(default=0.05, ge=0, lt=1)
    """The gate refuses to decide when more of the attempts than this have no score."""
    share_work: bool = False
    """Reuse identical work (same weights, harness, tasks, sampling, purpose, replicate) of other runs in this home."""


class SplitTasks(Record):
    """How many tasks of each split a run may read; they are the first of the suite's frozen order."""

    train: int | None = Field(default=None, ge=1)
    """Pool of the RL blocks, the explorer and the teacher; null takes the whole split."""
    val: int | None = Field(default=None, ge=1)
    """Tasks behind each gate score."""
    test: int | None = Field(default=None, ge=1)
    """Tasks behind the report."""


class Replicates(Record):
    """Independent attempts per task."""

    val: int = Field(default=1, ge=1)
    """Sampled attempts per val task, averaged per task."""
    test: int = Field(default=3, ge=1)
    """Test evaluations of the selected pair, each with its own sampling seed."""


class BudgetConfig(Record):
    """What a run may spend. A null limit is no limit; a reached limit ends the loop after its round."""

    max_wall_s: float | None = Field(default=None, gt=0)
    """Wall seconds over all sittings of the run."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Tokens, prompt and completion, of the policy and of all models."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """US dollars of all model calls."""
    max_evaluations: int | None = Field(default=None, gt=0)
    """Attempts scored on val and test."""
    tasks: SplitTasks = SplitTasks()
    """Tasks per split."""
    replicates: Replicates = Replicates()
    """Attempts per task."""


class RunConfig(Record):
    """Everything that decides what a run computes."""

    strategy: VaceConfig = VaceConfig()
    """The graph and its settings."""
    suite: SuiteConfig
    """Tasks, verifier and seed harness."""
    policy: PolicyConfig = PocketPolicyConfig()
    """The weights that are trained."""
    roles: RolesConfig = RolesConfig()
    """Which model, or which rules, plays each role."""
    budget: BudgetConfig = BudgetConfig()
    """Limits, tasks per split and replicates."""
    seed: int = Field(default=0, ge=0)
    """Root of every random stream of the run."""

    @field_validator("policy", mode="before")
    @classmethod
    def _default_policy(cls, value: Any) -> Any:
        """A policy without ``type`` is the default one, so that one of its keys can be set alone."""
        return {"type": "pocket", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tasks, rl = self.budget.tasks, self.strategy.rl
        trains = self.strategy.condition not in ("static", "harness-only")
        if trains and tasks.train is not None and tasks.train < rl.prompts_per_step:
            raise ValueError(
                f"budget.tasks.train={tasks.train} is smaller than strategy.rl.prompts_per_step={rl.prompts_per_step}; "
                "a rollout step needs that many different prompts"
            )
        return self
