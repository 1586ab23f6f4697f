from __future__ import annotations

import math
import tempfile

import pytest
import torch
from datasets import Dataset
from tiny_policy import tiny_llama
from trl import GRPOTrainer

from policy.config import RlConfig
from policy.loss import (
    clipped_surrogate,
    engine_correction,
    entropy,
    k3_divergence,
    sequence_mean,
    sequence_sum,
    token_mean,
    token_sum,
)
from policy.trl_argument import trl_arguments


def surrogate(ratio: float, advantage: float, **options: float) -> tuple[float, str]:
    result = clipped_surrogate(torch.tensor([[ratio]]), torch.tensor([[advantage]]), **options)
    places = [name for name in ("low", "high", "dual") if getattr(result, f"is_{name}").item()]
    return result.loss.item(), "".join(places)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "place"),
    [
        (1.1, 2.0, -2.2, ""),  # inside the clip: -1.1 * 2
        (1.5, 2.0, -2.4, "high"),  # min(3.0, 1.2 * 2) = 2.4
        (0.5, 2.0, -1.0, ""),  # min(1.0, 0.8 * 2) = 1.0: a fall in a good token is never clipped
        (0.5, -2.0, 1.6, "low"),  # min(-1.0, 0.8 * -2) = -1.6
        (1.5, -2.0, 3.0, ""),  # min(-3.0, -2.4) = -3.0
        (5.0, -2.0, 10.0, ""),  # unbounded without the dual clip
        (5.0, 0.0, 0.0, ""),  # nothing to clip where the advantage is 0
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, place):
    got, clipped = surrogate(ratio, advantage)
    assert got == pytest.approx(loss, abs=1e-6) and clipped == place


def test_dual_clip_bounds_bad_tokens_only():
    # c = 3: for A = -2 the objective is at least -6
    assert surrogate(5.0, -2.0, dual_clip=3.0) == (pytest.approx(6.0), "dual")
    assert surrogate(2.0, -2.0, dual_clip=3.0) == (pytest.approx(4.0), "")
    assert surrogate(0.5, -2.0, dual_clip=3.0) == (pytest.approx(1.6), "low")
    assert surrogate(5.0, 2.0, dual_clip=3.0) == (pytest.approx(-2.4), "high")


def test_a_weight_stands_outside_the_clip():
    # 0.5 * min(1.5 * 2, 1.2 * 2) = 1.2; a weight inside the ratio would give min(0.75, 0.75 or 0.8) * 2
    assert surrogate(1.5, 2.0, weight=0.5) == (pytest.approx(-1.2), "high")
    # one weight per sample: rows of ratio 1 and advantage 1 give -2 and -3
    result = clipped_surrogate(torch.ones(2, 3), torch.ones(2, 1), weight=torch.tensor([[2.0], [3.0]]))
    assert result.loss.tolist() == [[-2.0] * 3, [-3.0] * 3]
    # the same as scaling the advantage, which is what METHODS 3 states
    ratio, advantage = torch.tensor([[0.5, 1.1, 1.6, 4.0]]), torch.tensor([[-1.0, 2.0, 1.0, -1.0]])
    weighted = clipped_surrogate(ratio, advantage, dual_clip=3.0, weight=2.5)
    scaled = clipped_surrogate(ratio, 2.5 * advantage, dual_clip=3.0)
    assert torch.allclose(weighted.loss, scaled.loss)


def test_engine_correction_by_hand():
    # exp(ln 0.3 - ln 0.2) = 1.5; exp(ln 0.1 - ln 0.4) = 0.25; exp(ln 0.9 - ln 0.1) = 9, capped at 2
    old = torch.log(torch.tensor([[0.3, 0.1, 0.9]])).requires_grad_()
    sampled = torch.log(torch.tensor([[0.2, 0.4, 0.1]]))
    weight = engine_correction(old, sampled, cap=2.0)
    assert weight.tolist()[0] == pytest.approx([1.5, 0.25, 2.0]) and not weight.requires_grad


def test_entropy_by_hand():
    # uniform over 4: ln 4 = 1.386294; 0.5, 0.25, 0.25: 0.5 ln 2 + 2 * 0.25 ln 4 = 1.5 ln 2 = 1.039721
    logits = torch.log(torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.25, 1e-30]])).requires_grad_()
    values = entropy(logits)
    assert values.tolist() == pytest.approx([1.386294, 1.039721], abs=1e-5)
    # dH/dlogit_i = -p_i (ln p_i + H): for the second row's first, -0.5 * (-0.693147 + 1.039721) = -0.173287
    values[1].backward()
    assert logits.grad[1, 0].item() == pytest.approx(-0.173287, abs=1e-5)


def test_asymmetric_clip_and_no_gradient_where_clipped():
    ratio = torch.tensor([[1.25, 1.4]], requires_grad=True)
    result = clipped_surrogate(ratio, torch.tensor([[1.0]]), clip_high=0.28)
    result.loss.sum().backward()
    # 1.25 < 1.28 passes with gradient -1; 1.4 is clipped to 1.28
    assert ratio.grad is not None and ratio.grad.tolist() == [[-1.0, 0.0]]
    assert result.loss.tolist() == [[pytest.approx(-1.25), pytest.approx(-1.28)]]


def test_k3_by_hand():
    # d = ln(0.5) - ln(0.25) = ln 2: 2 - 0.693147 - 1 = 0.306853; equal: 0; d = -ln 2: 0.5 + 0.693147 - 1 = 0.193147
    policy = torch.log(torch.tensor([0.25, 0.4, 0.5]))
    reference = torch.log(torch.tensor([0.5, 0.4, 0.25]))
    assert k3_divergence(policy, reference).tolist() == pytest.approx([0.306853, 0.0, 0.193147], abs=1e-5)


VALUES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


def test_token_mean_and_sequence_mean_weigh_lengths_differently():
    # tokens: (1 + 2 + 3 + 10) / 4 = 4; sequences: (2 + 10) / 2 = 6
    assert token_mean(VALUES, MASK).item() == pytest.approx(4.0)
    assert sequence_mean(VALUES, MASK).item() == pytest.approx(6.0)


def test_parts_of_a_mini_batch_add_up_to_its_mean():
    parts = [token_sum(VALUES[i : i + 1], MASK[i : i + 1], tokens=4) for i in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(4.0)
    parts = [sequence_sum(VALUES[i : i + 1], MASK[i : i + 1], samples=2) for i in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(6.0)


def test_a_sample_out_of_the_loss_changes_neither_mean():
    values = torch.cat([VALUES, torch.tensor([[50.0, 50.0, 50.0]])])
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=MASK.dtype)])
    assert token_mean(values, mask).item() == pytest.approx(4.0)
    assert sequence_mean(values, mask).item() == pytest.approx(6.0)
    assert not math.isnan(sequence_mean(values, mask).item())


CURRENT = torch.log(torch.tensor([[0.50, 0.30, 0.20, 0.10], [0.90, 0.05, 0.40, 0.60]]))
OLD = torch.log(torch.tensor([[0.40, 0.30, 0.30, 0.10], [0.30, 0.10, 0.10, 0.60]]))
REFERENCE = torch.log(torch.tensor([[0.45, 0.20, 0.30, 0.20], [0.60, 0.10, 0.20, 0.50]]))
SAMPLED = torch.log(torch.tensor([[0.35, 0.35, 0.30, 0.05], [0.20, 0.10, 0.15, 0.60]]))
ENTROPY = torch.tensor([[1.0, 0.5, 2.0, 0.1], [0.3, 0.7, 0.2, 0.9]])
ADVANTAGE = torch.tensor([1.5, -0.5])
TOKENS = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])


@pytest.fixture(scope="module")
def trl(tokenizer):
    """TRL's own loss on the tensors above, in place of a model's; ``trl(loss_type, setting=...)``."""
    arguments = trl_arguments(
        RlConfig(prompts_per_step=1, group_size=2), rollout_steps=1, output_dir=tempfile.mkdtemp(), seed=0, use_cpu=True
    )
    made = GRPOTrainer(
        model=tiny_llama(tokenizer),
        reward_funcs=lambda **columns: [0.0],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["x"]}),
        processing_class=tokenizer,
    )
    made.current_gradient_accumulation_steps = 1
    made.args.use_bias_correction_kl = (
        False  # on by default in 1.16: multiplies the KL by the ratio; METHODS has no such factor
    )
    made._get_per_token_logps_and_entropies = lambda *a, **k: (CURRENT, ENTROPY, None)
    made.model.train()

    def loss(loss_type, *, high=0.2, delta=None, beta=0.0, entropy_weight=0.0, correction=None):
        made.loss_type, made.epsilon_high, made.args.delta, made.beta = loss_type, high, delta, beta
        made._entropy_bonus_enabled, made.entropy_coef = entropy_weight > 0, entropy_weight
        made.use_vllm = correction is not None
        made._metrics["train"].clear()
        inputs = {
            "prompt_ids": torch.zeros(2, 1, dtype=torch.long),
            "prompt_mask": torch.ones(2, 1, dtype=torch.long),
            "completion_ids": torch.zeros(2, 4, dtype=torch.long),
            "completion_mask": TOKENS,
            "advantages": ADVANTAGE,
            "old_per_token_logps": OLD,
            "ref_per_token_logps": REFERENCE,
            "importance_sampling_ratio": correction,
            "num_items_in_batch": TOKENS.sum().float(),
        }
        value = made._compute_loss(made.model, inputs).item()
        made.use_vllm = False
        return value, {name: numbers[-1] for name, numbers in made._metrics["train"].items()}

    return loss


def ours(aggregate, *, high=0.2, dual_clip=None, beta=0.0, entropy_weight=0.0, weight=1.0):
    made = clipped_surrogate(
        torch.exp(CURRENT - OLD), ADVANTAGE[:, None], clip_high=high, dual_clip=dual_clip, weight=weight
    )
    values = made.loss + beta * k3_divergence(CURRENT, REFERENCE) - entropy_weight * ENTROPY
    return aggregate(values, TOKENS).item(), made


def test_the_hand_made_tensors_meet_every_kind_of_clip():
    # ratios: 1.25, 1, 0.667, - | 3, 0.5, 4, 1 with advantages 1.5 | -0.5; high clip 1.2, low 0.8, dual 3.5
    _, made = ours(token_mean, dual_clip=3.5)
    assert made.is_high.tolist() == [[True, False, False, False], [False] * 4]
    assert made.is_low.tolist() == [[False] * 4, [False, True, False, False]]
    assert made.is_dual.tolist() == [[False] * 4, [False, False, True, False]]
    # losses: -1.8, -1.5, -1.0 | 1.5, 0.4, 1.75, 0.5; mean over 7 tokens = -0.15 / 7
    assert token_mean(made.loss, TOKENS).item() == pytest.approx(-0.15 / 7, abs=1e-6)
    # means of samples: -4.3 / 3 and 4.15 / 4
    assert sequence_mean(made.loss, TOKENS).item() == pytest.approx((-4.3 / 3 + 4.15 / 4) / 2, abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"high": 0.28}, {"beta": 0.1}, {"entropy_weight": 0.05}], ids=str)
@pytest.mark.parametrize("dual_clip", [None, 3.5])
def test_token_mean_is_trls_dapo_where_one_batch_is_one_update(trl, settings, dual_clip):
    # TRL's normaliser spans the generation batch; with one update of one micro-batch the two are the same
    expected, metrics = trl("dapo", delta=dual_clip, **settings)
    value, made = ours(token_mean, dual_clip=dual_clip, **settings)
    assert value == pytest.approx(expected, abs=1e-6)
    assert metrics["clip_ratio/high_mean"] == pytest.approx(token_mean(made.is_high.float(), TOKENS).item())
    assert metrics["clip_ratio/low_mean"] == pytest.approx(token_mean(made.is_low.float(), TOKENS).item())
    if "beta" in settings:
        assert metrics["kl"] == pytest.approx(token_mean(k3_divergence(CURRENT, REFERENCE), TOKENS).item())


@pytest.mark.parametrize("settings", [{}, {"high": 0.28}, {"beta": 0.1}], ids=str)
def test_sequence_mean_is_trls_grpo(trl, settings):
    assert ours(sequence_mean, **settings)[0] == pytest.approx(trl("grpo", **settings)[0], abs=1e-6)


def test_the_entropy_term_of_sequence_mean_is_a_mean_of_samples_and_trls_of_tokens(trl):
    # per token: (1 + 0.5 + 2 + 0.3 + 0.7 + 0.2 + 0.9) / 7 = 0.8; per sample: (3.5 / 3 + 2.1 / 4) / 2 = 0.845833
    plain, theirs = trl("grpo")[0], trl("grpo", entropy_weight=0.05)[0]
    assert plain - theirs == pytest.approx(0.05 * 0.8, abs=1e-6)
    change = ours(sequence_mean)[0] - ours(sequence_mean, entropy_weight=0.05)[0]
    assert change == pytest.approx(0.05 * 0.845833, abs=1e-6)


def test_the_engine_correction_is_trls_token_truncation_and_leaves_the_kl_alone(trl):
    weight = engine_correction(OLD, SAMPLED, cap=2.0)
    assert weight[0, 3].item() == pytest.approx(2.0), "the ratio 0.10 / 0.05 is the cap itself"
    theirs = trl("dapo", beta=0.1, correction=torch.clamp(torch.exp(OLD - SAMPLED), max=2.0))[0]
    assert ours(token_mean, beta=0.1, weight=weight)[0] == pytest.approx(theirs, abs=1e-6)
