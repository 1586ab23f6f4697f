"""Every expected number is worked by hand on a model small enough to hold in the head."""

import pytest

from policy.footprint import (
    GpuMemory,
    ModelSize,
    activation_bytes,
    cache_bytes,
    forward_flops,
    logit_bytes,
    training_bytes,
    update_flops,
    visual_tokens,
)

SMALL = ModelSize(
    model_type="small", parameters=1000, vision=200, trainable=40, matrix=600, layers=3, cached_layers=2, hidden=8,
    vocabulary=50, key_value_width=4, state_elements=5,
)  # fmt: skip
FULL = SMALL.model_copy(update={"trainable": 1000})


def test_shares_and_language_follow_from_the_counts():
    assert SMALL.language == 800  # 1000 - 200
    assert SMALL.trainable_share == 40 / 1040  # adapters stand beside the frozen weights
    assert FULL.trainable_share == 1.0


# adapters: 1000 frozen x 2 bytes, 40 trained x 4, gradients 40 x 4, two moments 80 x 4
@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("ddp", (2000, 160, 160, 320)),
        ("zero2", (2000, 160, 40, 80)),  # gradients and moments over 4
        ("zero3", (500, 40, 40, 80)),  # weights too
        ("fsdp2", (500, 40, 40, 80)),
    ],
)
def test_each_sharding_cuts_what_it_says(sharding, expected):
    assert training_bytes(SMALL, weight_bytes=2, trained_bytes=4, sharding=sharding, gpus=4) == expected


def test_full_training_has_no_adapters_and_a_part_of_a_byte_is_a_whole_one():
    # 1000 x 4 weights, gradients, 2 x 1000 x 4 moments; over 3: 1333.3 and 2666.7
    assert training_bytes(FULL, weight_bytes=2, trained_bytes=4, sharding="zero3", gpus=3) == (1334, 0, 1334, 2667)


def test_gradient_checkpointing_keeps_each_layers_input_and_one_layers_inside():
    common = {"layers": 3, "hidden": 8, "tokens": 10}
    # 34 bytes at 16 bit x 10 tokens x 8 units = 2720 a layer
    assert activation_bytes(**common, element_bytes=2, gradient_checkpointing=False) == 3 * 2720
    # 2 x 10 x 8 = 160 a layer's input, three of them, and one layer of 2720
    assert activation_bytes(**common, element_bytes=2, gradient_checkpointing=True) == 480 + 2720
    assert activation_bytes(**common, element_bytes=4, gradient_checkpointing=True) == 960 + 5440


def test_logits_and_their_gradient_are_two_fp32_tables():
    assert logit_bytes(tokens=10, vocabulary=50) == 4000  # 2 x 4 x 10 x 50


def test_a_cache_grows_with_tokens_in_attention_layers_alone():
    # per token: key and value, 2 layers x 4 wide x 2 bytes = 32; per sequence 7 x 32 + 5 x 2 = 234
    assert cache_bytes(SMALL, sequences=3, tokens=7, element_bytes=2) == 3 * 234


def test_adapters_save_the_gradient_of_the_frozen_matrices():
    assert forward_flops(SMALL, tokens=10) == 12_000  # 2 x 600 x 10
    assert update_flops(SMALL, tokens=10, gradient_checkpointing=False) == 24_000  # forward, and back to the inputs
    assert update_flops(FULL, tokens=10, gradient_checkpointing=False) == 36_000  # and to the weights
    assert update_flops(FULL, tokens=10, gradient_checkpointing=True) == 48_000  # and forward again


def test_an_image_at_its_pixel_budget_is_one_token_per_merged_square():
    assert visual_tokens(max_pixels=1_000_000, patch=16, merge=2) == 977  # 1e6 / 1024 = 976.6
    assert visual_tokens(max_pixels=1024, patch=16, merge=2) == 1


def test_the_total_is_the_sum_of_the_parts_and_is_written_with_them():
    memory = GpuMemory(weights=1, adapters=2, gradients=4, optimizer=8, activations=16, logits=32, engine=64)
    assert memory.total == 127
    assert memory.model_dump()["total"] == 127
