"""The real vLLM: adapters swapped while it runs, a server that hangs, one that is killed, a block trained on it.

Slow: ``make test-vllm`` builds the environment and runs this file and the contract.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
from real_vllm import RealVllm
from scripted_engine import DictLedger
from tiny_suite import HARNESS, LetterSuite, make_tasks

from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.config import LoraConfig, PocketPolicyConfig, RlConfig
from policy.config_engine import VllmServerConfig
from policy.engines.adapter_file import export_adapter
from policy.engines.rollout_engine import speech_of
from policy.engines.vllm_server import VllmServerEngine
from policy.likelihood import completion_likelihood, token_batch
from policy.load import load_policy, pocket_folder
from policy.trainer import BlockRequest, GrpoBlockTrainer, open_engine
from policy.weights import all_weights_id, attach_lora, trained_parameters, weights_id

pytestmark = pytest.mark.slow
LORA = LoraConfig(r=8, alpha=16, dropout=0.0)


@pytest.fixture(scope="module")
def base_id():
    return all_weights_id(load_policy("pocket").model)


@pytest.fixture(scope="module")
def server(base_id, tmp_path_factory):
    made = RealVllm(pocket_folder(), base_id, tmp_path_factory.mktemp("vllm") / "log")
    yield made
    made.close()


def build(base_id, *servers, adapter=None, policy_id=None, **settings):
    model, tokenizer = load_policy("pocket")
    config = VllmServerConfig(type="vllm_server", urls=tuple(one.url for one in servers), **settings)
    return VllmServerEngine(
        config, speech_of(model, tokenizer), policy_id=policy_id or base_id, base_id=base_id, adapter=adapter
    )


def prompts(count=8):
    return [
        Prompt(messages=(Message(role="user", content=f"Red+ : K01 K02 K0{row % 9} ; question: K01 to K02"),), seed=row)
        for row in range(count)
    ]


def test_adapters_are_loaded_and_swapped_and_their_log_probabilities_are_those_of_peft(server, base_id, tmp_path):
    sampling = Sampling(max_tokens=16, seed=1)
    engine = build(base_id, server)
    seen = [[made.token_ids for made in engine.generate(prompts(), sampling)]]
    for seed in (1, 2):
        model = attach_lora(load_policy("pocket").model, LORA, seed=seed)
        with torch.no_grad():
            for parameter in trained_parameters(model).values():
                parameter.normal_(0, 0.05)
        policy_id = weights_id(trained_parameters(model), base_id=base_id)
        policy = PocketPolicyConfig(lora=LORA)
        folder = export_adapter(policy, trained_parameters(model), tmp_path / policy_id)
        started = time.monotonic()
        engine.load_weights(policy_id, folder)
        print(f"adapter loaded in {time.monotonic() - started:.2f} s")
        made = engine.generate(prompts(), sampling)
        assert {one.policy_id for one in made} == {policy_id}
        batch = token_batch([one.prompt_token_ids for one in made], [one.token_ids for one in made], pad_token_id=0)
        with torch.no_grad():
            expected = completion_likelihood(model.eval(), batch, temperature=1.0).log_probabilities
        for row, one in enumerate(made):
            assert list(one.log_probabilities) == pytest.approx(expected[row, : len(one.token_ids)].tolist(), abs=5e-4)
        seen.append([one.token_ids for one in made])
    assert seen[0] != seen[1] != seen[2] != seen[0]
    engine.close()


def test_a_server_that_hangs_and_one_that_is_killed_lose_no_row(server, base_id, tmp_path):
    other = RealVllm(pocket_folder(), base_id, tmp_path / "log")
    try:
        other.signal(signal.SIGSTOP)
        engine = build(base_id, other, server, timeout_s=20)
        made = engine.generate(prompts(), Sampling(max_tokens=8, seed=1))
        assert [one.error for one in made] == [""] * 8
        engine.close()
        other.signal(signal.SIGCONT)
        engine = build(base_id, other, server, timeout_s=60)
        alone = build(base_id, server).generate(prompts(48), Sampling(max_tokens=128, seed=1))
        seen = []

        def kill(count):
            seen.append(count)
            if len(seen) == 1:  # the first answer is here: the others are being written
                threading.Thread(target=other.signal, args=(signal.SIGKILL,)).start()

        made = engine.generate(prompts(48), Sampling(max_tokens=128, seed=1), progress=kill)
        assert [one.error for one in made] == [""] * 48
        equal = sum(one.token_ids == before.token_ids for one, before in zip(made, alone, strict=True))
        print(f"{equal} of 48 answers equal those of an undisturbed server")
        engine.close()
    finally:
        other.close()


def test_a_block_trains_on_rollouts_of_the_server_each_step_with_its_own_weights(server, base_id, tmp_path):
    policy = PocketPolicyConfig(lora=LORA, engine=VllmServerConfig(type="vllm_server", urls=(server.url,)))
    config = RlConfig(prompts_per_step=2, group_size=4, learning_rate=5e-3, max_tokens=12)
    request = BlockRequest(
        parent=None, harness=HARNESS, suite=LetterSuite(), tasks=make_tasks(), rollout_steps=3, first_step=0, seed=1,
        config=config,
    )  # fmt: skip
    result = GrpoBlockTrainer(policy, tmp_path).train(request, DictLedger())
    assert len({step.policy_id for step in result.steps}) == 3
    assert {trace.policy_id for trace in result.traces} == {step.policy_id for step in result.steps}
    assert all(trace.verdict.status == "scored" for trace in result.traces)
    engine = open_engine(policy, result.checkpoint)
    (made,) = engine.generate(prompts(1), Sampling(temperature=0, max_tokens=8))
    plain = open_engine(PocketPolicyConfig(lora=LORA), result.checkpoint)
    (expected,) = plain.generate(prompts(1), Sampling(temperature=0, max_tokens=8))
    assert (made.policy_id, made.token_ids) == (result.policy_id, expected.token_ids)
    assert os.listdir(tmp_path / "adapters" / "rollout")
