from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from tiny_suite import make_tasks

from policy.loss import clipped_surrogate, sequence_mean
from policy.task_stream import TaskStream, WeightedStream, derive_seed, task_order


def test_each_pass_holds_every_task_once_in_a_new_order():
    tasks = make_tasks(12)
    stream = TaskStream(tasks, seed=3)
    passes = [[stream.at(number * 12 + index).task.task_id for index in range(12)] for number in range(2)]
    assert all(sorted(ids) == sorted(task.task_id for task in tasks) for ids in passes)
    assert passes[0] != passes[1]


def test_a_position_means_the_same_in_any_order_of_asking():
    asked = TaskStream(make_tasks(12), seed=3)
    late, early = asked.at(30).task.task_id, asked.at(2).task.task_id
    fresh = TaskStream(make_tasks(12), seed=3)
    assert (fresh.at(2).task.task_id, fresh.at(30).task.task_id) == (early, late)
    other = TaskStream(make_tasks(12), seed=4)
    assert [other.at(i).task.task_id for i in range(12)] != [fresh.at(i).task.task_id for i in range(12)]


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="pool is empty"):
        TaskStream((), seed=0)


def test_seeds_differ_by_every_part_and_fit_63_bits():
    seeds = {derive_seed("a", 1, 2), derive_seed("a", 12), derive_seed("a1", 2), derive_seed("a", 2, 1)}
    assert len(seeds) == 4 and all(0 <= seed < 2**63 for seed in seeds)


WEIGHTS = {"t0": 3.0, "t2": 0.5}


def test_weighted_draws_carry_the_weight_that_undoes_their_probability():
    stream = WeightedStream(make_tasks(3), WEIGHTS, seed=3)
    # w = 3, 1 (not named), 0.5: p = 2/3, 2/9, 1/9; u = 1 / (3 p) = 1/2, 3/2, 3
    assert stream.probabilities == pytest.approx((2 / 3, 2 / 9, 1 / 9))
    importance = {draw.task.task_id: draw.importance for draw in map(stream.at, range(100))}
    assert importance == pytest.approx({"t0": 0.5, "t1": 1.5, "t2": 3.0})


def test_weighted_draws_come_as_often_as_their_probability_says():
    stream = WeightedStream(make_tasks(3), WEIGHTS, seed=3)
    counts = Counter(stream.at(position).task.task_id for position in range(6000))
    # standard deviations of the shares: sqrt(p (1 - p) / 6000) is at most 0.0061; 0.025 is four of them
    shares = [counts[f"t{index}"] / 6000 for index in range(3)]
    assert shares == pytest.approx(stream.probabilities, abs=0.025)


def test_a_weighted_position_means_the_same_in_any_order_of_asking():
    forward, backward = (WeightedStream(make_tasks(12), WEIGHTS, seed=3) for _ in range(2))
    asked = {position: backward.at(position) for position in reversed(range(40))}
    assert [forward.at(position) for position in range(40)] == [asked[position] for position in range(40)]
    other = WeightedStream(make_tasks(12), WEIGHTS, seed=4)
    assert [other.at(position) for position in range(40)] != [asked[position] for position in range(40)]


def test_orders_are_told_apart_by_everything_that_decides_them():
    tasks = make_tasks(4)
    orders = [
        task_order(tasks, 3),
        task_order(tasks, 4),
        task_order(tasks[:3], 3),
        task_order(tasks, 3, {}),
        task_order(tasks, 3, {"t1": 2.0}),
        task_order(tasks, 4, {"t1": 2.0}),
    ]
    assert len({order.fingerprint for order in orders}) == 6
    assert task_order(tasks, 3, {"t1": 2.0}).fingerprint == orders[4].fingerprint


def test_weights_that_name_no_task_or_are_not_positive_are_refused():
    with pytest.raises(ValueError, match=r"names \['t9'\]"):
        WeightedStream(make_tasks(3), {"t9": 1.0}, seed=0)
    with pytest.raises(ValueError, match="must be positive; got 0.0"):
        WeightedStream(make_tasks(3), {"t1": 0.0}, seed=0)


def test_the_expected_gradient_of_weighted_draws_is_that_of_uniform_ones():
    """Exactly: the sum over all draws of a two-group step of probability times the gradient of its own loss."""
    stream = WeightedStream(make_tasks(3), WEIGHTS, seed=0)
    draws = {stream.at(position).task.task_id: stream.at(position).importance for position in range(100)}
    # per task a group of two samples of two tokens: how its log-ratios follow the parameter, and its advantages
    slopes = {
        "t0": torch.tensor([[1.0, -2.0], [0.5, 0.0]]),
        "t1": torch.tensor([[-1.0, 0.3], [2.0, 1.0]]),
        "t2": torch.tensor([[0.2, 0.2], [-3.0, 1.0]]),
    }
    advantages = {"t0": [1.0, -1.0], "t1": [0.5, -0.5], "t2": [-2.0, 2.0]}

    def gradient(groups: list[tuple[str, float]]) -> float:
        at = torch.tensor(0.1, requires_grad=True)
        ratio = torch.exp(at * torch.cat([slopes[name] for name, _ in groups]))
        advantage = torch.tensor([[value] for name, _ in groups for value in advantages[name]])
        weight = torch.tensor([[u] for _, u in groups for _ in range(2)])
        loss = sequence_mean(clipped_surrogate(ratio, advantage, weight=weight).loss, torch.ones_like(ratio))
        loss.backward()
        return at.grad.item()

    names = list(slopes)
    uniform = gradient([(name, 1.0) for name in names])
    chances = dict(zip(names, stream.probabilities, strict=True))
    expected = sum(
        chances[one] * chances[two] * gradient([(one, draws[one]), (two, draws[two])])
        for one, two in itertools.product(names, repeat=2)
    )
    assert expected == pytest.approx(uniform, rel=1e-5)
    biased = sum(
        chances[one] * chances[two] * gradient([(one, 1.0), (two, 1.0)])
        for one, two in itertools.product(names, repeat=2)
    )
    assert abs(biased - uniform) > 0.05 * abs(uniform), "without the weights it is another objective"
