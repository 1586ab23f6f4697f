"""Pretraining of the pocket policy: resumable to the bit, shipped files complete, processes agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from policy.pocket.pretrain import Recipe, draw_batch, launch, learning_rate_scale, open_session, train

TINY = Recipe(
    steps=4, batch_size=8, hidden=16, layers=1, heads=2, intermediate=32, repeat_steps=1, plain_steps=2,
    vocabulary_size=700, warmup_steps=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    train(TINY, out, held_out=frozenset())
    return out


def _weights(out: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(out / "fp16", dtype=torch.float32).state_dict()


def test_a_resumed_training_ends_in_the_same_bits(unbroken: Path, tmp_path: Path) -> None:
    session = open_session(TINY, tmp_path)
    session.model.train()
    for _ in range(2):
        session.update(*draw_batch(TINY, session.tokenizer, session.step, frozenset()))
    session.save()
    train(TINY, tmp_path, held_out=frozenset())
    one, two = _weights(unbroken), _weights(tmp_path)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_shipped_folder_holds_half_precision_weights_and_the_recipe(unbroken: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(unbroken / "fp16")
    assert model.dtype == torch.float16
    assert json.loads((unbroken / "fp16" / "recipe.json").read_text())["steps"] == 4


def test_the_rate_rises_stays_and_falls_to_zero() -> None:
    recipe = Recipe(steps=100, warmup_steps=10, decay_share=0.3)
    # warmup: (4 + 1) / 10; middle: 1; decay over the last 30 steps: at 85, 15 / 30.
    assert [learning_rate_scale(recipe, step) for step in (4, 50, 85, 100)] == [0.5, 1.0, 0.5, 0.0]


def test_held_out_maps_are_never_drawn(unbroken: Path) -> None:
    tokenizer = open_session(TINY, unbroken).tokenizer
    plain, _ = draw_batch(TINY, tokenizer, 3, frozenset())
    from policy.pocket.corpus import draw_example
    from policy.pocket.pretrain import TRAINING_SEED_RANGE, random

    rng = random.Random(TRAINING_SEED_RANGE.start + 3)
    first = draw_example(TINY.shares(3), rng).fingerprint
    filtered, _ = draw_batch(TINY, tokenizer, 3, frozenset({first}))
    assert first and not torch.equal(plain[:, : filtered.shape[1]], filtered[:, : plain.shape[1]])


def test_an_unknown_option_of_a_process_is_reported(tmp_path: Path) -> None:
    assert launch(2, ["--out", str(tmp_path), "--no-such-option"]) == 2
