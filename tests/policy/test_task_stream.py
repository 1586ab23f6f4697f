from __future__ import annotations

import pytest
from tiny_suite import make_tasks

from policy.task_stream import TaskStream, derive_seed


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
