"""Every shipped training preset as --dry-run plans it, and the plan's arithmetic on a configuration worked by hand."""

from pathlib import Path

import pytest

from cohelix.display_footprint import show_dry_run
from evals.suites.metro import MetroSuite
from evals.suites.registry import build_suite
from graphs.config import RunConfig
from graphs.loading import load_config
from graphs.plan import make_plan, refuse_too_small
from graphs.plan_memory import GIB, dry_run_view, find_architecture, plan_footprint

CONFIGS = Path(__file__).parents[2] / "configs"
PRESETS = sorted(path.name for path in CONFIGS.glob("train-*.yaml"))
SUITE = MetroSuite(counts={"train": 32, "val": 10, "test": 20})


@pytest.fixture(scope="module")
def standard():
    """One suite of the standard size for all presets of it; drawing the maps is what takes the seconds."""
    return MetroSuite("standard", 0, counts={"train": 512, "val": 100, "test": 400})


@pytest.mark.parametrize("name", PRESETS)
def test_a_shipped_preset_can_be_planned_where_none_of_its_weights_are(name, standard, capsys):
    config = load_config(CONFIGS / name)
    suite = standard if getattr(config.suite, "preset", "") == "standard" else build_suite(config.suite)
    plan = make_plan(config, suite)
    refuse_too_small(plan)
    view = dry_run_view(config, plan, suite)
    show_dry_run(view)
    shown = capsys.readouterr().out
    assert "plan: train" in shown
    if config.policy.type == "hf":
        assert find_architecture(config) == config.plan.architecture  # nothing of the model is on this machine
        assert view["footprint"]["warnings"] == []  # it fits the GPUs that it names
        assert all(stage["hours"] > 0 for stage in view["footprint"]["stages"])
        assert "assumed: " in shown and "parameters" in shown


def test_the_published_settings_are_in_their_preset():
    """METHODS §2, the SFT and DAPO tables."""
    config = load_config(CONFIGS / "train-qwen3.5-9b-dapo.yaml")
    sft, rl = (getattr(stage, stage.type) for stage in config.strategy.stages)
    assert (sft.epochs, sft.batch_size, sft.learning_rate, sft.schedule) == (2, 8, 5e-6, "cosine")
    assert (sft.warmup_ratio, sft.max_grad_norm, sft.max_tokens, sft.packing, sft.seed) == (0.05, 1.0, 24576, False, 42)
    lora = config.policy.lora
    assert (lora.r, lora.alpha, lora.dropout, lora.targets) == (16, 32, 0.05, ())
    assert config.policy.image.max_pixels == 1_000_000
    assert (rl.prompts_per_step, rl.group_size, rl.updates_per_rollout_step) == (8, 8, 2)
    assert (rl.advantage, rl.difficulty_temperature, rl.aggregation) == ("hybrid_dgpo", 2.0, "token_mean")
    assert (rl.clip_low, rl.clip_high, rl.dual_clip, rl.beta, rl.entropy_weight) == (0.2, 0.2, 3.0, 0.001, 0.0)
    assert (rl.learning_rate, rl.weight_decay, rl.max_grad_norm, rl.max_tokens) == (5e-6, 0.01, 1.0, 4096)
    assert config.strategy.rollout_steps == 600 and rl.dynamic_sampling.enabled
    assert rl.resolved_warmup_updates == 36  # 0.03 x 600 steps x 2 updates
    reward = config.suite.reward
    assert (reward.kind, reward.max_length_tokens, reward.length_buffer_tokens) == ("shaped", 4096, 512)


@pytest.mark.parametrize("name", ["train-harnessrl-4b.yaml", "train-harnessrl-9b.yaml"])
def test_the_rubric_methods_scale_is_in_its_presets(name):
    """METHODS §3, objective and evaluation."""
    config = load_config(CONFIGS / name)
    (rl,) = (stage.rl for stage in config.strategy.rl_stages)
    assert (rl.prompts_per_step, rl.group_size, config.strategy.rollout_steps) == (512, 8, 500)
    assert (rl.learning_rate, rl.temperature, rl.top_p) == (1e-6, 1.0, 0.9)
    assert (rl.advantage, rl.aggregation, rl.clip_low, rl.clip_high, rl.beta) == (
        "grpo", "sequence_mean", 0.2, 0.2, 0.001
    )  # fmt: skip
    assert config.strategy.evaluation.temperature == 0  # greedy


def _planned(policy, **plan):
    raw = {
        "suite": {"type": "metro"},
        "strategy": {
            "type": "train",
            "stages": [
                {"type": "sft", "traces": 6, "sft": {"epochs": 2, "batch_size": 4, "max_tokens": 300,
                                                     "micro_batch_size": 2}},
                {"type": "rl", "rollout_steps": 9, "rl": {"prompts_per_step": 4, "group_size": 2, "beta": 0.1,
                                                          "updates_per_rollout_step": 2, "max_tokens": 100}},
            ],
        },
        "policy": {"type": "hf", "model": "an-owner/a-model", "device": "cuda", "dtype": "bfloat16", **policy},
        "plan": {"architecture": "smollm2-135m", "prompt_tokens": 50, "completion_tokens": 25,
                 "rollout_tokens_per_s": 10, "train_tflops": 0.5, **plan},
    }  # fmt: skip
    return plan_footprint(RunConfig.model_validate(raw), SUITE)


PARAMETERS, ADAPTERS, MATRIX = 134_515_008, 4_884_480, 134_479_872
"""Of SmolLM2-135M; adapters of rank 16 on 30 x 7 layers; all but the norms."""


def test_each_stages_numbers_are_those_of_the_formulas():
    sft, rl = _planned({}).stages
    # SFT: 2 x 6 / 4 updates of 4 samples; RL: 4 x 2 samples of 50 + 25 tokens
    assert (sft.steps, sft.samples, sft.tokens, sft.longest_tokens) == (3, 4, 300, 300)
    assert (rl.steps, rl.samples, rl.tokens, rl.longest_tokens) == (9, 8, 600, 150)
    # adapters: forward and back through frozen matrices, 2 x 2 x matrix a token
    assert sft.flops == 4 * MATRIX * 300
    # RL also scores its tokens under the old and the reference policy, 2 x 2 x matrix
    assert rl.flops == 8 * MATRIX * 600
    # one GPU samples and trains: 9 x 8 x 25 tokens at 10 a second; 9 x flops at 0.5e12
    assert rl.rollout_hours == pytest.approx(180 / 3600)
    assert rl.training_hours == pytest.approx(9 * 8 * MATRIX * 600 / 0.5e12 / 3600)
    assert rl.hours == rl.rollout_hours + rl.training_hours
    memory = rl.training
    assert (memory.weights, memory.adapters) == (2 * PARAMETERS, 4 * ADAPTERS)
    assert (memory.gradients, memory.optimizer) == (4 * ADAPTERS, 8 * ADAPTERS)
    # a mini-batch of 4 samples of 150 tokens, 30 layers of 34 bytes a token and unit; 4 x 100 scored tokens
    assert memory.activations == 30 * 34 * 4 * 150 * 576
    assert memory.logits == 8 * 4 * 100 * 49152
    # the model samples from a cache of its own: 32 rows x 150 tokens x 2 x 30 layers x 192 wide x 2 bytes
    assert memory.engine == 32 * 150 * 2 * 30 * 192 * 2


def test_processes_share_micro_batches_and_hours():
    one, two = _planned({}).stages[1], _planned({"executor": {"type": "accelerate", "num_processes": 2}}).stages[1]
    assert two.training.activations == one.training.activations / 2  # 2 of the 4 samples each
    assert (two.rollout_hours, two.training_hours) == (one.rollout_hours / 2, one.training_hours / 2)
    assert two.training.weights == one.training.weights
    cut = _planned({"executor": {"type": "accelerate", "num_processes": 2}}, sharding="fsdp2").stages[1]
    assert cut.training.weights == one.training.weights / 2


def test_servers_hold_weights_and_the_requests_in_flight_on_gpus_of_their_own():
    servers = {"type": "vllm_server", "urls": ["http://127.0.0.1:1", "http://127.0.0.1:2"], "max_concurrency": 3}
    planned = _planned({"engine": servers})
    rl = planned.stages[1]
    # 8 samples over 2 replicas are 4 each, 3 in flight: 150 tokens x 2 x 30 x 192 x 2 bytes
    cache = 3 * 150 * 2 * 30 * 192 * 2
    assert rl.rollout_gib == (2 * (PARAMETERS + ADAPTERS) + cache) / GIB
    assert (planned.gpus, planned.rollout_gpus, rl.training.engine) == (1, 2, 0)
    assert rl.rollout_hours == pytest.approx(180 / 2 / 3600)


def test_an_engine_in_the_training_process_takes_its_share_of_the_gpu():
    rl = _planned({"engine": {"type": "vllm_colocated", "gpu_memory_utilization": 0.25}}, gpu_memory_gib=8).stages[1]
    assert rl.training.engine == 2 * GIB


def test_a_stage_that_does_not_fit_is_named_with_what_would_help():
    (warning,) = _planned({}, gpu_memory_gib=0.8).warnings  # 0.72 GiB in the first stage, 0.90 in the second
    assert warning.startswith("stage 2 (rl): ") and "micro_batch_size" in warning


def test_without_weights_or_architecture_the_plan_says_that_it_is_without_them(capsys):
    raw = {"suite": {"type": "metro"}, "policy": {"type": "hf", "model": "an-owner/a-model"}}
    config = RunConfig.model_validate(raw)
    view = dry_run_view(config, make_plan(config, SUITE), SUITE)
    assert view["footprint"] is None
    show_dry_run(view)
    assert "an-owner/a-model is not on this machine and plan.architecture names none" in capsys.readouterr().out


def test_the_packaged_policy_is_counted_where_asked_and_left_out_of_the_dry_run():
    config = RunConfig.model_validate({"suite": {"type": "metro"}})
    assert "footprint" not in dry_run_view(config, make_plan(config, SUITE), SUITE)
    planned = plan_footprint(config, SUITE)
    assert planned is not None and planned.size.parameters == 1_115_904
