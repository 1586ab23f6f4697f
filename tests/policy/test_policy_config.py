from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from policy.config import HfPolicyConfig, PocketPolicyConfig, PolicyConfig, RlConfig
from policy.config_training import warmup_updates


def test_parsing_a_policy_config_imports_no_torch():
    code = (
        "import sys; from policy.config import RlConfig, PocketPolicyConfig; RlConfig(); PocketPolicyConfig(); "
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'datasets'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_policies_are_told_apart_by_type():
    adapter = TypeAdapter(PolicyConfig)
    assert isinstance(adapter.validate_python({"type": "pocket"}), PocketPolicyConfig)
    assert isinstance(adapter.validate_python({"type": "hf", "model": "somewhere"}), HfPolicyConfig)
    with pytest.raises(ValidationError, match="pocket"):
        adapter.validate_python({"type": "pokcet"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts_per_step": 8, "updates_per_rollout_step": 3}, "must divide prompts_per_step=8"),
        ({"dual_clip": 1.1}, "larger than 1 \\+ clip_high"),
        # 8 prompts * 8 rollouts / 2 updates = 32 samples, which 12 does not divide
        ({"updates_per_rollout_step": 2, "micro_batch_size": 12}, "mini-batch of 32 samples"),
        ({"warmup_updates": 3, "warmup_ratio": 0.03, "lifecycle_rollout_steps": 600}, "give one of them"),
        ({"warmup_ratio": 0.03}, "give lifecycle_rollout_steps"),
        ({"max_tokens": 256, "overlong": {"buffer": 512}}, "buffer=512 must be at most max_tokens=256"),
        ({"loss": "dapo"}, "Extra inputs"),
        ({"group_size": 1}, "greater than or equal to 2"),
        ({"temprature": 1.0}, "Extra inputs"),
    ],
)
def test_conflicts_raise_at_parse(settings, message):
    with pytest.raises(ValidationError, match=message):
        RlConfig(**settings)


def test_a_warmup_is_resolved_once_to_updates_of_the_whole_life():
    # 600 rollout steps of two updates: 0.03 * 1200 = 36, in every block of that life
    published = RlConfig(warmup_ratio=0.03, lifecycle_rollout_steps=600, updates_per_rollout_step=2)
    assert published.resolved_warmup_updates == 36
    assert RlConfig(warmup_updates=5).resolved_warmup_updates == 5
    assert RlConfig().resolved_warmup_updates == 0
    # rounded up: 0.03 * 50 = 1.5 -> 2; but 0.07 * 100 = 7.000000000000001 is 7
    assert warmup_updates(0.03, 50) == 2
    assert warmup_updates(0.07, 100) == 7


@pytest.mark.parametrize("name", ["config", "config_engine", "config_executor", "config_training"])
def test_every_field_says_what_it_does(name):
    import ast
    import importlib
    import inspect

    module = importlib.import_module(f"policy.{name}")
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) != "type":
                    is_docstring = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert is_docstring, f"{node.name}.{ast.unparse(field.target)}"
