"""A run's whole configuration as frozen records. Parsing it imports no torch, litellm or langgraph."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from agents.llm.config import RolesConfig
from evals.config import MetroConfig, SuiteConfig
from graphs.api_policy import refuse_rules
from graphs.config_plan import PlanConfig
from graphs.config_train import BlockPlan, EvaluationSampling, TrainConfig
from harness.records import Record
from policy.config import ApiPolicyConfig, PocketPolicyConfig, RlConfig, RunPolicyConfig, sees

Condition = Literal["vace", "static", "harness-only", "rl-only", "sia", "whale"]
"""METHODS §1: the same nodes, other routers."""


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

    @property
    def title(self) -> str:
        """Type and condition, as the report names them."""
        return f"{self.type}/{self.condition}"

    @property
    def trains(self) -> bool:
        """Whether the condition changes weights."""
        return self.condition not in ("static", "harness-only")

    @property
    def block(self) -> BlockPlan:
        """Every RL block."""
        return BlockPlan(self.rollout_steps, self.rl)

    @property
    def threads(self) -> int:
        """CPU threads of torch, in training and in evaluations."""
        return self.rl.threads

    @property
    def answer_tokens(self) -> int:
        """Longest completion in evaluations."""
        return self.rl.max_tokens

    @property
    def prompts_needed(self) -> int:
        """Train tasks behind a rollout step; 0 where no weights are trained."""
        return self.rl.prompts_per_step if self.trains else 0

    @property
    def measured_units(self) -> int:
        """Rounds at most; sia spends them twice."""
        return 2 * self.rounds


StrategyConfig = Annotated[VaceConfig | TrainConfig, Field(discriminator="type")]


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

    strategy: StrategyConfig = VaceConfig()
    """The graph and its settings."""
    suite: SuiteConfig
    """Tasks, verifier and seed harness."""
    policy: RunPolicyConfig = PocketPolicyConfig()
    """What answers the tasks; its weights are trained where the strategy trains."""
    roles: RolesConfig = RolesConfig()
    """Which model, or which rules, plays each role."""
    budget: BudgetConfig = BudgetConfig()
    """Limits, tasks per split and replicates."""
    plan: PlanConfig = PlanConfig()
    """What a dry run assumes about machines."""
    seed: int = Field(default=0, ge=0)
    """Root of every random stream of the run."""

    @field_validator("policy", mode="before")
    @classmethod
    def _default_policy(cls, value: Any) -> Any:
        """A policy without ``type`` is the default one, so that one of its keys can be set alone."""
        return {"type": "pocket", **value} if isinstance(value, dict) else value

    @field_validator("strategy", mode="before")
    @classmethod
    def _default_strategy(cls, value: Any) -> Any:
        """A strategy without ``type`` is the default one."""
        return {"type": "vace", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        train, needed = self.budget.tasks.train, self.strategy.prompts_needed
        if train is not None and train < needed:
            raise ValueError(
                f"budget.tasks.train={train} is smaller than {self.step_key}={needed}; "
                "a rollout step needs that many different prompts"
            )
        self._check_images()
        self._check_reward()
        trains = self.strategy.type == "train" or self.strategy.trains
        if isinstance(self.policy, ApiPolicyConfig):
            if trains:
                raise ValueError(
                    f"strategy {self.strategy.title} trains weights, and policy.type=api has none here; choose pocket "
                    "or hf, or set strategy.condition to static or harness-only"
                )
            refuse_rules(self.policy)
        elif trains and self.policy.engine.type == "vllm_server" and self.policy.lora is None:
            raise ValueError(
                "policy.engine.type=vllm_server takes adapters while it runs, and policy.lora=null trains all weights; "
                "set policy.lora, or sample with policy.engine.type transformers or vllm_colocated"
            )
        return self

    def _check_reward(self) -> None:
        """Refuse a length penalty on top of a reward that has one."""
        reward = getattr(self.suite, "reward", None)
        strategy = self.strategy
        blocks = [strategy.rl] if strategy.type == "vace" else [one.rl for one in strategy.stages if one.type == "rl"]
        if getattr(reward, "kind", None) == "shaped" and any(rl.overlong is not None for rl in blocks):
            raise ValueError(
                "suite.reward.kind=shaped has a penalty on long completions, and rl.overlong would add another; set "
                "overlong to null, or another suite.reward.kind"
            )

    def _check_images(self) -> None:
        """Refuse pictures that nobody would be shown."""
        if not isinstance(self.suite, MetroConfig) or self.suite.image == "none":
            return
        if not sees(self.policy):
            raise ValueError(
                f"suite.image={self.suite.image} shows pictures, and the policy sees text alone; set policy.type=hf "
                "and policy.image, or suite.image=none"
            )

    @property
    def step_key(self) -> str:
        """Key that says how many prompts a rollout step needs."""
        return "strategy.rl.prompts_per_step" if self.strategy.type == "vace" else "strategy.stages.rl.prompts_per_step"
