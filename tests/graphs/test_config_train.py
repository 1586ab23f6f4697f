import pytest
from pydantic import ValidationError

from graphs.config import RunConfig, VaceConfig
from graphs.config_train import RlStageConfig, TrainConfig

SUITE = {"type": "metro"}


def _train(*stages, **more):
    return TrainConfig.model_validate({"type": "train", "stages": stages, **more})


def test_vace_stays_the_strategy_of_a_configuration_that_names_none():
    assert RunConfig.model_validate({"suite": SUITE}).strategy == VaceConfig()
    assert RunConfig.model_validate({"suite": SUITE, "strategy": {"rounds": 7}}).strategy == VaceConfig(rounds=7)


# 7 steps in blocks of 3: 3 + 3 + 1
@pytest.mark.parametrize(("block_steps", "blocks"), [(3, (3, 3, 1)), (7, (7,)), (9, (7,)), (None, (7,)), (1, (1,) * 7)])
def test_blocks_add_up_to_the_stage(block_steps, blocks):
    stage = RlStageConfig(type="rl", rollout_steps=7, block_steps=block_steps)
    assert stage.blocks == blocks
    assert [stage.plan(number).rollout_steps for number in range(len(blocks))] == list(blocks)


def test_what_other_parts_ask_of_a_strategy_is_read_off_its_stages():
    strategy = _train(
        {"type": "sft"},
        {"type": "rl", "rollout_steps": 5, "block_steps": 2, "rl": {"prompts_per_step": 3, "max_tokens": 40}},
        {"type": "rl", "rollout_steps": 1, "rl": {"prompts_per_step": 6, "max_tokens": 30}},
    )
    assert (strategy.rollout_steps, strategy.prompts_needed, strategy.answer_tokens) == (6, 6, 40)
    assert strategy.measured_units == 1 + 3 + 1
    assert _train({"type": "sft"}, max_tokens=9).prompts_needed == 0


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([], "at least 1 item"),
        ([{"type": "sft"}], "give max_tokens where no stage is of type rl"),
        ([{"type": "rl"}], "rollout_steps"),
        ([{"type": "dpo"}], "'sft', 'rl'"),
        (
            [{"type": "sft", "sft": {"threads": 2}}, {"type": "rl", "rollout_steps": 1}],
            r"threads \[1, 2\]; give all the same",
        ),
        (
            [{"type": "rl", "rollout_steps": 4, "rl": {"warmup_ratio": 0.1, "lifecycle_rollout_steps": 5}}] * 2,
            "lifecycle_rollout_steps=5 is shorter than the 8 rollout steps of all stages",
        ),
    ],
)
def test_stages_that_cannot_run_are_refused_at_parse(stages, words):
    with pytest.raises(ValidationError, match=words):
        _train(*stages)


def test_a_pool_smaller_than_a_rollout_step_is_refused_with_the_key_that_says_so():
    raw = {"suite": SUITE, "strategy": {"type": "train", "stages": [{"type": "rl", "rollout_steps": 1}]}}
    with pytest.raises(ValidationError, match=r"budget.tasks.train=7 is smaller than strategy.stages.rl.prompts_per_s"):
        RunConfig.model_validate(raw | {"budget": {"tasks": {"train": 7}}})


def test_a_policy_without_weights_here_is_refused():
    raw = {"suite": SUITE, "strategy": {"type": "train", "stages": [{"type": "rl", "rollout_steps": 1}]}}
    with pytest.raises(ValidationError, match="policy.type=api has none here"):
        RunConfig.model_validate(raw | {"policy": {"type": "api", "model": "openai/x"}})
