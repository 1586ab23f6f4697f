"""What every rollout engine promises, checked on every kind; the real vLLM is the slow case (make test-vllm)."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))
sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
from real_vllm import RealVllm
from tiny_policy import tiny_llama, tiny_tokenizer
from tiny_vllm import TinyVllm

from agents.llm.call import ModelServices
from graphs.api_policy import open_chat_engine
from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.config import ApiPolicyConfig
from policy.config_engine import VllmServerConfig
from policy.engines.api_engine import api_policy_id
from policy.engines.refill import RefillingEngine
from policy.engines.rollout_engine import speech_of
from policy.engines.transformers_engine import TransformersEngine
from policy.engines.vllm_server import VllmServerEngine
from policy.likelihood import completion_likelihood, token_batch
from policy.load import load_policy, pocket_folder
from policy.weights import all_weights_id

KINDS = ["transformers", "refill", "vllm_server", "api", pytest.param("real_vllm", marks=pytest.mark.slow)]
torch.set_num_threads(1)


@dataclass
class Case:
    """An engine and what it claims."""

    engine: object
    policy_id: str
    context: int
    model: object = None
    """The weights that answer, for engines that give token ids."""
    tokenizer: object = None

    @property
    def has_ids(self) -> bool:
        return self.model is not None


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def replicas(tokenizer):
    base = all_weights_id(tiny_llama(tokenizer))
    made = [TinyVllm(tiny_llama(tokenizer), tokenizer, base) for _ in range(2)]
    yield made
    for replica in made:
        replica.close()


@pytest.fixture(scope="module", params=KINDS)
def case(request, tokenizer, replicas, tmp_path_factory):
    model = tiny_llama(tokenizer)
    policy_id = all_weights_id(model)
    if request.param in ("transformers", "refill"):
        kind = TransformersEngine if request.param == "transformers" else RefillingEngine
        yield Case(kind(model, tokenizer, policy_id, batch_size=4), policy_id, 512, model, tokenizer)
    elif request.param == "api":
        config = ApiPolicyConfig(type="api", model=f"openai/{replicas[0].name}", api_base=f"{replicas[0].url}/v1")
        engine = open_chat_engine(config, ModelServices())
        yield Case(engine, api_policy_id(config), 512)
        engine.close()
    else:
        urls, server = tuple(replica.url for replica in replicas), None
        if request.param == "real_vllm":
            model, tokenizer = load_policy("pocket")
            policy_id = all_weights_id(model)
            server = RealVllm(pocket_folder(), policy_id, tmp_path_factory.mktemp("vllm") / "log")
            urls = (server.url,)
        engine = VllmServerEngine(
            VllmServerConfig(type="vllm_server", urls=urls, timeout_s=60),
            speech_of(model, tokenizer),
            policy_id=policy_id,
            base_id=policy_id,
        )
        yield Case(engine, policy_id, 512, model, tokenizer)
        engine.close()
        if server is not None:
            server.close()


def prompt(text, seed=0):
    return Prompt(messages=(Message(role="system", content="Find."), Message(role="user", content=text)), seed=seed)


def prompts(count=12):
    """Of three lengths, so that engines that sort have something to sort."""
    return [prompt(f"Find the route. {'K01 ' * (row % 3)}to K0{row % 10}", seed=row) for row in range(count)]


def test_answers_come_in_the_order_of_the_prompts(case):
    # Asked one by one there is no order to get wrong.
    sampling, asked = Sampling(temperature=0, max_tokens=6), prompts(6)
    together = [made.text for made in case.engine.generate(asked, sampling)]
    assert together == [case.engine.generate([one], sampling)[0].text for one in asked]
    assert len(set(together)) > 1


def test_an_empty_list_asks_nothing_and_answers_nothing(case, replicas):
    before = [len(replica.log) for replica in replicas]
    assert case.engine.generate([], Sampling()) == []
    assert [len(replica.log) for replica in replicas] == before


def test_every_answer_names_its_weights_and_counts_its_tokens(case):
    for made in case.engine.generate(prompts(5), Sampling(max_tokens=5, seed=1)):
        assert (made.error, made.policy_id) == ("", case.policy_id)
        assert made.usage.prompt_tokens > 0 and 0 < made.usage.completion_tokens <= 5
        if case.has_ids:
            counts = (len(made.prompt_token_ids), len(made.token_ids))
            assert (made.usage.prompt_tokens, made.usage.completion_tokens) == counts


def test_sampled_ids_have_the_log_probabilities_that_the_model_gives_them(case):
    if not case.has_ids:
        pytest.skip("an API gives no token ids")
    made = case.engine.generate(prompts(), Sampling(max_tokens=8, seed=2))
    sampled = [one.token_ids for one in made]
    batch = token_batch([one.prompt_token_ids for one in made], sampled, pad_token_id=case.tokenizer.pad_token_id)
    with torch.no_grad():
        expected = completion_likelihood(case.model, batch, temperature=1.0).log_probabilities
    for row, one in enumerate(made):
        assert len(one.log_probabilities) == len(one.token_ids)
        assert list(one.log_probabilities) == pytest.approx(expected[row, : len(one.token_ids)].tolist(), abs=2e-4)


def test_the_text_is_that_of_the_ids_and_the_prompt_is_that_of_the_tokenizer(case):
    if not case.has_ids:
        pytest.skip("an API gives no token ids")
    asked = prompts(4)
    for one, made in zip(asked, case.engine.generate(asked, Sampling(max_tokens=8, seed=3)), strict=True):
        chat = [message.as_chat() for message in one.messages]
        text = case.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert list(made.prompt_token_ids) == case.tokenizer(text, add_special_tokens=False)["input_ids"]
        body = made.token_ids[:-1] if made.finish_reason == "stop" else made.token_ids
        assert made.text == case.tokenizer.decode(list(body))


def test_an_answer_stops_at_the_end_token_or_at_the_limit(case):
    made = case.engine.generate(prompts(40), Sampling(temperature=1.0, max_tokens=24, seed=4))
    reasons = {one.finish_reason for one in made}
    assert reasons == {"stop", "length"} if case.has_ids else reasons <= {"stop", "length"}
    for one in made:
        assert one.finish_reason == "stop" or one.usage.completion_tokens == 24
        if case.has_ids:
            assert (one.token_ids[-1] == case.tokenizer.eos_token_id) == (one.finish_reason == "stop")
            assert case.tokenizer.eos_token_id not in one.token_ids[:-1]
    short = case.engine.generate(prompts(3), Sampling(temperature=0, max_tokens=1))
    assert [one.usage.completion_tokens for one in short] == [1, 1, 1]


def test_equal_seeds_give_equal_samples_and_other_seeds_give_others(case):
    sampling = Sampling(max_tokens=8, seed=5)
    texts = [made.text for made in case.engine.generate(prompts(), sampling)]
    assert texts == [made.text for made in case.engine.generate(prompts(), sampling)]
    assert texts != [made.text for made in case.engine.generate(prompts(), Sampling(max_tokens=8, seed=6))]
    group = case.engine.generate([prompt("Find the route.", seed=row) for row in range(8)], sampling)
    assert len({made.text for made in group}) > 1  # the rollouts of one prompt are not one rollout


def test_a_prompt_that_does_not_fit_is_an_error_and_never_cut(case):
    asked = [prompt("Find."), prompt("K01 " * 600), prompt("to K03")]
    made = case.engine.generate(asked, Sampling(temperature=0, max_tokens=4))
    assert [one.finish_reason == "error" for one in made] == [False, True, False]
    assert made[1].text == "" and made[1].token_ids == () and "tokens" in made[1].error


def test_progress_ends_at_the_number_of_prompts(case):
    seen = []
    case.engine.generate(prompts(9), Sampling(max_tokens=3), progress=seen.append)
    assert seen[-1] == 9 and seen == sorted(seen)
