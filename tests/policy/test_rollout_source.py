"""A policy in training is sampled on servers with the weights of each step, and evaluated there too."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
from scripted_engine import DictLedger
from tiny_policy import tiny_llama
from tiny_suite import HARNESS, LetterSuite, make_tasks
from tiny_vllm import TinyVllm

from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.config import HfPolicyConfig, LoraConfig, RlConfig
from policy.config_engine import VllmColocatedConfig, VllmServerConfig
from policy.errors import PolicyError, TooManyUnscored
from policy.trainer import BlockRequest, GrpoBlockTrainer, open_engine
from policy.weights import all_weights_id

CONFIG = RlConfig(prompts_per_step=2, group_size=4, learning_rate=5e-3, max_tokens=8, max_unscored_share=0.2)


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    made = tmp_path_factory.mktemp("tiny")
    tiny_llama(tokenizer).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture
def replica(tokenizer):
    model = tiny_llama(tokenizer)
    made = TinyVllm(model, tokenizer, all_weights_id(model))
    yield made
    made.close()


def policy(folder, engine=None):
    lora = LoraConfig(r=4, alpha=8, dropout=0.0)
    settings = {} if engine is None else {"engine": engine}
    return HfPolicyConfig(type="hf", model=str(folder), lora=lora, batch_size=8, **settings)


def request(steps):
    return BlockRequest(
        parent=None, harness=HARNESS, suite=LetterSuite(), tasks=make_tasks(), rollout_steps=steps, first_step=0,
        seed=1, config=CONFIG,
    )  # fmt: skip


def server(replica, **settings):
    return VllmServerConfig(type="vllm_server", urls=(replica.url,), timeout_s=30, **settings)


def test_each_rollout_step_is_answered_by_its_own_weights(folder, replica, tmp_path):
    served = policy(folder, server(replica))
    result = GrpoBlockTrainer(served, tmp_path).train(request(3), DictLedger())
    sampled = [step.policy_id for step in result.steps]
    assert len(set(sampled)) == 3
    asked = [body["model"] for body in replica.asked]
    assert list(dict.fromkeys(asked)) == sampled  # in this order, and by no other weights
    # Servers keep the newest adapters alone, and so does the disk.
    assert set(replica.adapters) == {sampled[-1]}
    assert [path.name for path in (tmp_path / "adapters" / "rollout").iterdir()] == [sampled[-1]]
    question = [Prompt(messages=(Message(role="user", content="Letter a number 0"),))]
    greedy = Sampling(temperature=0, max_tokens=8)
    (made,) = open_engine(served, result.checkpoint).generate(question, greedy)
    (expected,) = open_engine(policy(folder), result.checkpoint).generate(question, greedy)
    assert (made.policy_id, made.token_ids) == (result.policy_id, expected.token_ids)
    (base,) = open_engine(served).generate(question, greedy)
    assert (base.policy_id, base.error) == (replica.name, "")


def test_answers_that_never_come_are_no_zeros_and_too_many_of_them_stop_the_block(folder, replica, tmp_path):
    replica.plan = [{"do": "status", "code": 500}] * 1000
    with pytest.raises(TooManyUnscored, match="500"):
        GrpoBlockTrainer(policy(folder, server(replica, tries=1)), tmp_path).train(request(1), DictLedger())


def test_a_colocated_engine_says_what_it_needs(folder):
    with pytest.raises(PolicyError, match="vllm_colocated needs"):
        open_engine(policy(folder, VllmColocatedConfig(type="vllm_colocated")))
