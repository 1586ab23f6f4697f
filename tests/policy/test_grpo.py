from __future__ import annotations

import math
import tempfile

import pytest
import torch
from datasets import Dataset
from tiny_policy import tiny_llama
from trl import GRPOTrainer

from harness.records import Scored, Unscored
from policy.config import RlConfig
from policy.errors import NonFiniteTraining, NoSignal
from policy.grpo import HarnessGrpoTrainer, Hooks
from policy.likelihood import completion_likelihood
from policy.mini_batch import micro_batches
from policy.rollout_record import RolloutAttempt, RolloutBatch, RolloutGroup
from policy.trl_argument import trl_arguments

REWARDS = [[1.0, 0.0, 0.3, 0.3], [0.2, 0.9, 0.9, 0.0]]
LENGTHS = [[5, 3, 4, 1], [2, 2, 6, 3]]


def rollout_batch(rewards=REWARDS, step=0, *, stop="", lost=()) -> RolloutBatch:
    generator = torch.Generator().manual_seed(step)
    groups = []
    for number, row in enumerate(rewards):
        attempts = []
        for index, reward in enumerate(row):
            ids = torch.randint(10, 60, (LENGTHS[number % 2][index],), generator=generator).tolist()
            verdict = Scored(parts={"exact": float(reward == 1.0)}, reward=reward)
            if (number, index) in lost:
                verdict = Unscored(boundary="engine", error="lost")
            attempts.append(
                RolloutAttempt(text="x", finish_reason="stop", token_ids=tuple(ids), seed=0, verdict=verdict)
            )
        prompt = (5, 6, 7, 20 + number) if number % 2 else (5, 6, 7, 20 + number, 30, 31)
        groups.append(
            RolloutGroup(
                task_id=f"t{number}",
                position=number,
                draw=0,
                prompt_token_ids=prompt,
                attempts=tuple(attempts),
                fate="trained",
            )
        )
    return RolloutBatch(
        step=step, policy_id="p", harness_id="h", groups=tuple(groups), next_position=len(groups), stop=stop
    )


def config(**changes) -> RlConfig:
    base = {"prompts_per_step": 2, "group_size": 4, "max_tokens": 8, "learning_rate": 0.1, "temperature": 0.9}
    return RlConfig(**{**base, **changes})


def trainer(model, tokenizer, rl, batches, *, steps=None, reference=None):
    """A trainer with plain SGD, so that a weight's change is its gradient times the rate."""
    queue, seen = list(batches), []
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rl.learning_rate)
    made = HarnessGrpoTrainer(
        model,
        tokenizer,
        rl,
        rollout_steps=steps or len(queue),
        hooks=Hooks(lambda: queue.pop(0), lambda batch, metrics: seen.append(metrics), reference),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1.0),
        output_dir=tempfile.mkdtemp(),
        seed=0,
    )
    return made, seen


def weights(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def trl_gradients(tokenizer, rl: RlConfig, loss_type: str) -> dict[str, torch.Tensor]:
    """Gradients of TRL's own loss on the same samples, in TRL's own layout."""
    model = tiny_llama(tokenizer)
    args = trl_arguments(rl, rollout_steps=1, output_dir=tempfile.mkdtemp(), seed=0, use_cpu=True)
    args.loss_type = loss_type
    plain = GRPOTrainer(
        model=model,
        reward_funcs=lambda **columns: [0.0],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["x"]}),
        processing_class=tokenizer,
    )
    batch = rollout_batch()
    pad = tokenizer.pad_token_id
    rows = [(group.prompt_token_ids, attempt.token_ids) for group in batch.groups for attempt in group.attempts]
    width, length = max(len(p) for p, _ in rows), max(len(c) for _, c in rows)
    advantages = []
    for row in REWARDS:
        values = torch.tensor(row, dtype=torch.float64)
        advantages += ((values - values.mean()) / (values.std() + 1e-6)).tolist()
    inputs = {
        "prompt_ids": torch.tensor([[pad] * (width - len(p)) + list(p) for p, _ in rows]),
        "prompt_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in rows]),
        "completion_ids": torch.tensor([list(c) + [pad] * (length - len(c)) for _, c in rows]),
        "completion_mask": torch.tensor([[1] * len(c) + [0] * (length - len(c)) for _, c in rows]),
        "advantages": torch.tensor(advantages, dtype=torch.float32),
        "num_items_in_batch": torch.tensor(float(sum(len(c) for _, c in rows))),
    }
    plain.current_gradient_accumulation_steps = 1
    plain.model.train()
    plain._compute_loss(plain.model, inputs).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("aggregation", "loss_type"), [("token_mean", "dapo"), ("sequence_mean", "grpo")])
@pytest.mark.parametrize("micro_batch_size", [0, 2])
def test_one_update_is_trls_own_update_on_the_same_samples(tokenizer, aggregation, loss_type, micro_batch_size):
    rl = config(aggregation=aggregation, micro_batch_size=micro_batch_size, max_grad_norm=1e9)
    expected = trl_gradients(tokenizer, config(aggregation=aggregation), loss_type)
    model = tiny_llama(tokenizer)
    before = weights(model)
    made, seen = trainer(model, tokenizer, rl, [rollout_batch()])
    made.train()
    for name, parameter in model.named_parameters():
        change = (before[name] - parameter.detach()) / rl.learning_rate
        assert torch.allclose(change, expected[name], atol=2e-4, rtol=1e-3), name
    (metrics,) = seen
    assert metrics.trained_groups == 2 and len(metrics.losses) == 1 and metrics.clip_share == 0.0


def test_a_lost_attempt_changes_nothing_whatever_it_said(tokenizer):
    results = []
    for reward in (0.0, 1.0):
        rewards = [[1.0, 0.0, 0.3, reward], REWARDS[1]]
        model = tiny_llama(tokenizer)
        made, _ = trainer(model, tokenizer, config(), [rollout_batch(rewards, lost={(0, 3)})])
        made.train()
        results.append(weights(model))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_a_second_update_measures_its_ratio_against_the_sampling_weights(tokenizer):
    # one group per update; after a large first step the second update's ratios leave 1
    rl = config(updates_per_rollout_step=2, learning_rate=0.5)
    made, seen = trainer(tiny_llama(tokenizer), tokenizer, rl, [rollout_batch()])
    made.train()
    assert len(seen[0].losses) == len(seen[0].grad_norms) == 2
    assert seen[0].clip_share > 0


def test_every_rollout_step_samples_once_and_trains_the_full_prompt_count(tokenizer):
    rl = config(updates_per_rollout_step=2, micro_batch_size=2, learning_rate=1e-3)
    made, seen = trainer(tiny_llama(tokenizer), tokenizer, rl, [rollout_batch(step=step) for step in range(3)])
    made.train()
    assert [metrics.step for metrics in seen] == [0, 1, 2]
    assert all(metrics.trained_groups == 2 and len(metrics.losses) == 2 for metrics in seen)
    assert made.state.global_step == 6


def test_rollouts_come_from_the_weights_after_the_last_update(tokenizer):
    model, sampled = tiny_llama(tokenizer), []
    batches = [rollout_batch(step=step) for step in range(3)]

    def collect() -> RolloutBatch:
        sampled.append(model.lm_head.weight.detach().clone())
        return batches[len(sampled) - 1]

    after = []
    made, _ = trainer(model, tokenizer, config(), batches)
    made._hooks = Hooks(collect, lambda batch, metrics: after.append(model.lm_head.weight.detach().clone()))
    made.train()
    assert torch.equal(sampled[1], after[0]) and torch.equal(sampled[2], after[1])
    assert not torch.equal(sampled[0], sampled[1])


def test_the_kl_term_pulls_towards_the_reference(tokenizer):
    # all advantages are 0, so the only force is the KL term; at the reference itself it is none
    flat = [[0.5, 0.5, 0.5, 0.5]] * 2
    model = tiny_llama(tokenizer)
    before = weights(model)

    def reference(micro):
        return torch.full(micro.tokens.completion.shape, -1.0)

    made, seen = trainer(model, tokenizer, config(beta=0.1), [rollout_batch(flat)], reference=reference)
    made.train()
    assert seen[0].kl > 0 and any(not torch.equal(before[n], p) for n, p in model.named_parameters())


def test_no_signal_stops_with_a_type(tokenizer):
    made, seen = trainer(tiny_llama(tokenizer), tokenizer, config(), [rollout_batch(stop="the pool has no signal")])
    with pytest.raises(NoSignal, match="no signal"):
        made.train()
    assert seen == []


def test_broken_weights_stop_with_a_type_before_anything_is_kept(tokenizer):
    model = tiny_llama(tokenizer)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = math.nan
    made, seen = trainer(model, tokenizer, config(), [rollout_batch()])
    with pytest.raises(NonFiniteTraining, match="loss of update 0 is nan"):
        made.train()
    assert seen == []


def test_an_update_that_breaks_the_weights_stops_with_a_type(tokenizer):
    # rewards of a million make gradients over 1; times 3e38 they pass the largest float
    rl = config(advantage="centred", learning_rate=3e38, max_grad_norm=1e9)
    rewards = [[1e6 * reward for reward in row] for row in REWARDS]
    made, seen = trainer(tiny_llama(tokenizer), tokenizer, rl, [rollout_batch(rewards)])
    with pytest.raises(NonFiniteTraining, match="weights after rollout step 0"):
        made.train()
    assert seen == []


def altered(batch: RolloutBatch, number: int | None = None, *, attempt=None, **group) -> RolloutBatch:
    """A copy of a batch with fields of one group (or all) and, by a function, of its attempts changed."""
    groups = []
    for index, one in enumerate(batch.groups):
        if number in (None, index):
            fields = dict(group)
            if attempt is not None:
                fields["attempts"] = tuple(made.model_copy(update=attempt(made)) for made in one.attempts)
            one = one.model_copy(update=fields)
        groups.append(one)
    return batch.model_copy(update={"groups": tuple(groups)})


def changes(tokenizer, rl, batch, *, reference=None) -> dict[str, torch.Tensor]:
    """How far one update moved every weight, over the rate: its gradient."""
    model = tiny_llama(tokenizer)
    before = weights(model)
    made, _ = trainer(model, tokenizer, rl, [batch], reference=reference)
    made.train()
    return {name: (before[name] - after.detach()) / rl.learning_rate for name, after in model.named_parameters()}


def assert_close(got, expected) -> None:
    for name in expected:
        assert torch.allclose(got[name], expected[name], atol=2e-4, rtol=2e-3), name


FREE = {"max_grad_norm": 1e9}


def test_a_tasks_importance_scales_its_surrogate_and_no_kl(tokenizer):
    rl, batch = config(**FREE), rollout_batch()
    whole = changes(tokenizer, rl, batch)
    second = changes(tokenizer, rl, altered(batch, 0, importance=0.0))
    # group 0 weighs three times as much: its part of the gradient, whole - second, twice more
    scaled = changes(tokenizer, rl, altered(batch, 0, importance=3.0))
    assert_close(scaled, {name: whole[name] + 2 * (whole[name] - second[name]) for name in whole})

    def reference(micro):
        return torch.full(micro.tokens.completion.shape, -1.0)

    flat, only_kl = rollout_batch([[0.5] * 4] * 2), config(beta=0.1, **FREE)
    plain = changes(tokenizer, only_kl, flat, reference=reference)
    assert_close(changes(tokenizer, only_kl, altered(flat, importance=3.0), reference=reference), plain)
    assert max(change.abs().max() for change in plain.values()) > 0


def test_the_engine_correction_multiplies_the_surrogate_up_to_its_cap(tokenizer):
    batch = rollout_batch()
    (micro,) = micro_batches(batch, config(), pad_token_id=tokenizer.pad_token_id)
    with torch.no_grad():
        own = completion_likelihood(tiny_llama(tokenizer), micro.tokens, temperature=0.9).log_probabilities
    rows = iter(own.tolist())

    def from_engine(attempt):
        # an engine that gave every sampled token half the probability that the trainer gives it
        halved = [value - math.log(2) for value in next(rows)[: len(attempt.token_ids)]]
        return {"log_probabilities": tuple(halved)}

    sampled = altered(batch, attempt=from_engine)
    plain = changes(tokenizer, config(**FREE), batch)
    corrected = changes(tokenizer, config(engine_correction_cap=4.0, **FREE), sampled)
    assert_close(corrected, {name: 2 * change for name, change in plain.items()})
    capped = changes(tokenizer, config(engine_correction_cap=1.5, **FREE), sampled)
    assert_close(capped, {name: 1.5 * change for name, change in plain.items()})
    assert_close(changes(tokenizer, config(**FREE), sampled), plain)


def test_an_entropy_bonus_raises_the_entropy_and_nothing_else_does(tokenizer):
    # flat rewards: no surrogate; the same rows in both steps, so the entropies compare
    flat = [rollout_batch([[0.5] * 4] * 2), rollout_batch([[0.5] * 4] * 2)]
    for weight in (0.0, 0.05):
        made, seen = trainer(tiny_llama(tokenizer), tokenizer, config(entropy_weight=weight, **FREE), flat)
        made.train()
        assert (seen[1].entropy > seen[0].entropy) == (weight > 0)
    assert seen[0].losses[0] == pytest.approx(-0.05 * seen[0].entropy, rel=1e-4)


def test_a_tools_tokens_and_a_masked_truncated_attempt_are_not_trained_on(tokenizer):
    batch = rollout_batch()
    tools = altered(batch, attempt=lambda made: {"token_mask": (0,) + (1,) * (len(made.token_ids) - 1)})
    made, seen = trainer(tiny_llama(tokenizer), tokenizer, config(), [tools])
    made.train()
    # lengths 5 3 4 1 and 2 2 6 3 sum to 26, one less in each of 8 attempts
    assert seen[0].trained_tokens == seen[0].sampled_tokens == 18
    cut = altered(batch, 1, attempt=lambda made: {"finish_reason": "length"})
    made, seen = trainer(tiny_llama(tokenizer), tokenizer, config(mask_truncated=True), [cut])
    made.train()
    assert seen[0].trained_tokens == 13 and seen[0].sampled_tokens == 26 and seen[0].truncated_share == 0.5


def test_clipped_shares_are_told_apart_by_side(tokenizer):
    rl = config(updates_per_rollout_step=2, learning_rate=0.5, dual_clip=1.3)
    made, seen = trainer(tiny_llama(tokenizer), tokenizer, rl, [rollout_batch()])
    made.train()
    (metrics,) = seen
    sides = (metrics.clip_low_share, metrics.clip_high_share, metrics.dual_clip_share)
    assert sum(sides) == pytest.approx(metrics.clip_share) and sum(side > 0 for side in sides) >= 2
