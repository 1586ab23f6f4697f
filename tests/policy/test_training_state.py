"""How a policy is opened: number types, recomputed activations, and what a parent may hand over."""

from __future__ import annotations

from pathlib import Path

import block_script
import pytest
import sft_script
import torch
from scripted_engine import DictLedger

from policy.errors import CheckpointError
from policy.likelihood import is_recomputing
from policy.merge import merge_checkpoint
from policy.schedule import Schedule
from policy.sft.block import SftBlockTrainer, SftRequest
from policy.trainer import open_engine
from policy.training_state import open_state
from policy.weights import trained_parameters


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("home")


def policy(home: Path, kind: str, **changes):
    return block_script.policy_config(home, kind).model_copy(update=changes)


def opened(policy):
    return open_state(policy, block_script.CONFIG, None, schedule=Schedule(), seed=0)


def sft(policy, home: Path):
    request = SftRequest(records=sft_script.make_records(), config=sft_script.CONFIG)
    return SftBlockTrainer(policy, home).train(request, DictLedger())


def test_the_configured_number_type_is_that_of_training_and_engine(home):
    half = policy(home, "lora", dtype="bfloat16")
    model = opened(half).model
    adapters = trained_parameters(model)
    base = {parameter.dtype for name, parameter in model.named_parameters() if name not in adapters}
    assert base == {torch.bfloat16}
    assert {parameter.dtype for parameter in adapters.values()} == {torch.float32}, "small updates are not lost"
    assert open_engine(half).model.dtype == torch.bfloat16
    assert opened(policy(home, "full")).model.dtype == torch.float32


def test_a_half_precision_stage_learns_and_merges(home):
    half = policy(home, "lora", dtype="bfloat16")
    result = sft(half, home)
    assert result.steps[-1].loss < result.steps[0].loss
    merged = merge_checkpoint(half, result.checkpoint, home)
    assert open_engine(half.model_copy(update={"model": str(merged.path)})).model.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_recomputing_activations_changes_no_loss_and_no_rollout(home, kind):
    saving = policy(home, kind, gradient_checkpointing=True)
    assert is_recomputing(opened(saving).model) and not is_recomputing(opened(policy(home, kind)).model)
    results = []
    # no dropout: GRPO lays prompts out whole where activations are recomputed, so equal draws would fall elsewhere
    still = {"lora": saving.lora and saving.lora.model_copy(update={"dropout": 0.0})}
    for one in (saving.model_copy(update=still), policy(home, kind, **still)):
        trainer, request = block_script.block(one, home, 0, 2, None)
        results.append(trainer.train(request, DictLedger()))
    recomputed, kept = results
    assert [trace.completion for trace in recomputed.traces] == [trace.completion for trace in kept.traces]
    for step, other in zip(recomputed.steps, kept.steps, strict=True):
        assert step.grad_norms == pytest.approx(other.grad_norms, rel=1e-2)
    # SFT lays its rows out in the same way in both, so dropout and even the rounding are the same
    assert [step.loss for step in sft(saving, home).steps] == [
        step.loss for step in sft(policy(home, kind), home).steps
    ]


def test_a_new_stage_takes_weights_alone(home):
    first = block_script.train(home, "full", 0, 1, None, DictLedger())
    arguments = {"schedule": Schedule(kind="linear", total_updates=5), "seed": 0, "stage": "sft"}
    state = open_state(policy(home, "full"), sft_script.CONFIG, first.checkpoint, **arguments, is_new_stage=True)
    assert state.policy_id == first.policy_id and state.base_id == first.base_id
    assert (state.progress.updates, state.rng, state.optimizer.state_dict()["state"]) == (0, None, {})
    with pytest.raises(CheckpointError, match="is of stage 'rl', training is 'sft'"):
        open_state(policy(home, "full"), sft_script.CONFIG, first.checkpoint, **arguments)
