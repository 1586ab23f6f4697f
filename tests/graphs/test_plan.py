import pytest

from evals.suites.metro import MetroSuite
from graphs.config import RunConfig
from graphs.plan import make_plan, refuse_too_small
from harness.errors import UserError

SUITE = MetroSuite(counts={"train": 32, "val": 10, "test": 20})


def _plan(condition, **budget):
    config = RunConfig.model_validate(
        {
            "suite": {"type": "metro"},
            "strategy": {
                "type": "vace", "condition": condition, "rounds": 3, "rollout_steps": 5, "explore_tasks": 7,
                "rl": {"prompts_per_step": 4, "group_size": 2, "updates_per_rollout_step": 2},
            },
            "budget": {"replicates": {"val": 1, "test": 3}, **budget},
        }
    )  # fmt: skip
    return make_plan(config, SUITE)


# One block: 5 steps x 4 prompts x 2 rollouts = 40 attempts, 5 x 2 = 10 updates. Val 10, test 20 x 3 = 60 a pair.
@pytest.mark.parametrize(
    ("condition", "train", "updates", "rounds_val", "report_test"),
    [
        ("vace", 3 * 40, 30, 3 * 2 * 10, 120),
        ("whale", 3 * 40, 30, 3 * 2 * 10, 120),
        ("rl-only", 3 * 40, 30, 3 * 10, 120),
        ("harness-only", 3 * 7, 0, 3 * 10, 120),
        ("sia", 3 * 7 + 3 * 40, 30, 6 * 10, 120),
        ("static", 0, 0, 0, 60),
    ],
)
def test_the_plan_counts_the_work_of_each_condition(condition, train, updates, rounds_val, report_test):
    plan = _plan(condition)
    assert plan.all_rounds.train_attempts == train
    assert plan.all_rounds.updates == updates
    assert plan.all_rounds.evaluation_attempts == rounds_val
    assert plan.report.evaluation_attempts == report_test
    assert plan.total.evaluation_attempts == 10 + rounds_val + report_test


def test_rules_make_no_model_calls_and_each_model_role_is_counted():
    assert _plan("vace").total.model_calls == 0
    config = RunConfig.model_validate(
        {
            "suite": {"type": "metro"},
            "strategy": {"rounds": 3},
            "roles": {"proposer": {"model": "openai/x"}, "diagnoser": {"model": "openai/x"}},
        }
    )
    assert make_plan(config, SUITE).total.model_calls == 6


def test_the_smallest_budget_that_passes_is_start_plus_one_round_plus_report():
    smallest = 10 + 20 + 120  # val; two val evaluations at the gate; three test replicates of two pairs
    refuse_too_small(_plan("vace", max_evaluations=smallest))
    with pytest.raises(UserError, match=r"budget.max_evaluations=149; expected at least 150"):
        refuse_too_small(_plan("vace", max_evaluations=smallest - 1))


@pytest.mark.parametrize("limit", [{"max_tokens": 5}, {"max_wall_s": 0.01}])
def test_token_and_time_limits_below_one_round_are_refused_by_name(limit):
    with pytest.raises(UserError, match=f"budget.{next(iter(limit))}"):
        refuse_too_small(_plan("vace", **limit))


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_suite_with_an_empty_split_is_refused_before_the_run_finds_out(split):
    class Hollow(MetroSuite):
        def tasks(self, *, split: str, hollow=split):
            return () if split == hollow else super().tasks(split=split)

    config = RunConfig.model_validate({"suite": {"type": "metro"}})
    with pytest.raises(UserError, match=f"got 0 {split}; expected at least . {split}"):
        make_plan(config, Hollow("pocket", 0))


def test_a_train_split_smaller_than_a_rollout_step_is_refused_where_weights_are_trained():
    raw = {"suite": {"type": "metro", "train": 7}}
    suite = MetroSuite("pocket", 0, counts={"train": 7})
    with pytest.raises(UserError, match="got 7 train; expected at least 8 train .strategy.rl.prompts_per_step"):
        make_plan(RunConfig.model_validate(raw), suite)
    assert make_plan(RunConfig.model_validate(raw | {"strategy": {"condition": "harness-only"}}), suite).rl_blocks == 0


def _train_plan(*stages, **more):
    raw = {"suite": {"type": "metro"}, "strategy": {"type": "train", "stages": stages}, **more}
    return make_plan(RunConfig.model_validate(raw), SUITE)


def test_the_plan_of_stages_counts_traces_blocks_and_a_val_score_after_each():
    rl = {"prompts_per_step": 4, "group_size": 2, "updates_per_rollout_step": 2}
    plan = _train_plan(
        {"type": "sft", "traces": 10, "sft": {"epochs": 2, "batch_size": 8}},
        {"type": "rl", "rollout_steps": 5, "block_steps": 3, "rl": rl},
        roles={"teacher": {"model": "openai/x"}},
    )
    assert (plan.condition, plan.rounds, plan.rl_blocks, plan.rollout_steps, plan.proposals) == ("train", 3, 2, 5, 0)
    # SFT: 10 calls of the teacher, 2 x 10 / 8 = 2.5, so 3 updates; one val evaluation of 10 tasks
    first = plan.first_round
    assert (first.model_calls, first.updates, first.train_attempts, first.evaluation_attempts) == (10, 3, 0, 10)
    # RL: 5 steps x 4 prompts x 2 rollouts, 5 x 2 updates; 10 val tasks after each of two blocks; all three together:
    total = plan.all_rounds
    assert (total.train_attempts, total.updates, total.evaluation_attempts) == (40, 13, 30)
    assert plan.report.evaluation_attempts == 2 * 20 * 3  # two pairs, 20 test tasks, three replicates


def test_an_sft_stage_without_a_number_asks_for_every_train_task():
    plan = _train_plan({"type": "sft", "sft": {"epochs": 1, "batch_size": 8}}, roles={"teacher": {"model": "openai/x"}},
                       strategy={"type": "train", "max_tokens": 9,
                                 "stages": [{"type": "sft", "sft": {"epochs": 1, "batch_size": 8}}]})  # fmt: skip
    assert (plan.first_round.model_calls, plan.first_round.updates) == (32, 4)


def test_seconds_of_attempts_on_gpus_follow_the_plans_rate():
    gpu = {"type": "hf", "model": "x/y", "device": "cuda", "executor": {"type": "accelerate", "num_processes": 2}}
    rates = {"completion_tokens": 100, "prompt_tokens": 50, "rollout_tokens_per_s": 25}
    plan = _train_plan({"type": "rl", "rollout_steps": 1}, policy=gpu, plan=rates)
    # start: 10 val attempts x 100 tokens / (25 tokens/s x 2 GPUs) = 20 s, of 150 tokens each
    assert (plan.start.seconds, plan.start.tokens) == (20.0, 1500)
