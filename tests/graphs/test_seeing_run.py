"""A run on pictures: what a configuration may ask for, and a pair measured on drawn maps."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))

from tiny_vision import save_vision_policy, tiny_qwen3_5, vision_tokenizer

from graphs.loading import parse_config
from graphs.single import PairChoice, evaluate_pair
from harness.errors import UserError

SUITE = {"type": "metro", "train": 8, "val": 3, "test": 1, "image": "only_map"}
SEEING = {"type": "hf", "model": "somewhere", "image": {"max_pixels": 4096}, "batch_size": 4}


def config(policy, suite=SUITE):
    strategy = {"type": "vace", "condition": "static", "rl": {"max_tokens": 4, "prompts_per_step": 2}}
    return parse_config({"strategy": strategy, "suite": suite, "policy": policy}, source="test")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"type": "pocket"}, "sees text alone"),
        (SEEING | {"image": None}, "sees text alone"),
        (SEEING | {"engine": {"type": "vllm_server", "urls": ["http://127.0.0.1:1"]}}, "sends token ids alone"),
    ],
)
def test_pictures_that_nobody_would_be_shown_are_refused(policy, message):
    with pytest.raises(UserError, match=message):
        config(policy)


def test_text_tasks_need_no_policy_that_sees():
    assert config({"type": "pocket"}, SUITE | {"image": "none"}).suite.image == "none"
    assert config(SEEING, SUITE | {"image": "none"}).policy.image.max_pixels == 4096


def test_a_pair_is_measured_on_pictures_below_the_home(tmp_path):
    tokenizer = vision_tokenizer()
    folder = save_vision_policy(tmp_path / "policy", tiny_qwen3_5(tokenizer), tokenizer)
    home = tmp_path / "home"
    found = evaluate_pair(config(SEEING | {"model": str(folder)}), PairChoice(split="val"), home=home)
    # a random policy answers nothing right, and every attempt was made
    assert (found["tasks"], found["unscored"], found["mean"]) == (3, 0, 0.0)
    pictures = sorted((home / "images").iterdir())
    # the suite's fingerprint reads all 8 + 3 + 1 tasks
    assert len(pictures) == 12
    assert all(path.name == f"metro-{hashlib.sha256(path.read_bytes()).hexdigest()[:32]}.png" for path in pictures)
