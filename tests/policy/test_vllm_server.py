"""Faults of vLLM replicas end as other replicas' answers or as attempts without a score, never as a wrong number."""

import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
from tiny_policy import tiny_llama
from tiny_vllm import TinyVllm

from harness.errors import UserError
from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.config import HfPolicyConfig, LoraConfig
from policy.config_engine import VllmServerConfig
from policy.engines.adapter_file import export_adapter
from policy.engines.rollout_engine import speech_of
from policy.engines.vllm_server import VllmServerEngine
from policy.errors import CheckpointError, PolicyError
from policy.likelihood import completion_likelihood, token_batch
from policy.weights import all_weights_id, attach_lora, trained_parameters, weights_id

SAMPLING = Sampling(temperature=1.0, max_tokens=4, seed=1)
POLICY = HfPolicyConfig(type="hf", model="tiny", lora=LoraConfig(r=4, alpha=8, dropout=0.0))


@pytest.fixture(scope="module")
def base(tokenizer):
    return tiny_llama(tokenizer)


@pytest.fixture(scope="module")
def base_id(base):
    return all_weights_id(base)


@pytest.fixture
def replicas(tokenizer, base_id):
    made = [TinyVllm(tiny_llama(tokenizer), tokenizer, base_id) for _ in range(2)]
    yield made
    for replica in made:
        replica.close()


@pytest.fixture
def build(base, base_id, tokenizer, replicas):
    """An engine over the given replicas, both by default."""
    opened = []

    def make(*chosen, adapter=None, policy_id=None, **settings):
        urls = tuple(replica.url for replica in chosen or replicas)
        config = VllmServerConfig(type="vllm_server", urls=urls, **{"timeout_s": 20, **settings})
        engine = VllmServerEngine(
            config, speech_of(base, tokenizer), policy_id=policy_id or base_id, base_id=base_id, adapter=adapter
        )
        opened.append(engine)
        return engine

    yield make
    for engine in opened:
        engine.close()


def prompts(count=1):
    return [
        Prompt(messages=(Message(role="user", content=f"Find the route to K0{row}"),), seed=row) for row in range(count)
    ]


def adapters(tokenizer, folder, seed):
    """A model with real, random adapters, their id and their PEFT folder."""
    base = tiny_llama(tokenizer)
    base_id = all_weights_id(base)
    model = attach_lora(base, POLICY.lora, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in trained_parameters(model).values():
            parameter.normal_(0, 0.3)
    policy_id = weights_id(trained_parameters(model), base_id=base_id)
    return model.eval(), policy_id, export_adapter(POLICY, trained_parameters(model), folder / policy_id)


TRANSIENT = {
    "503": {"do": "status", "code": 503},
    "429 with Retry-After": {"do": "status", "code": 429, "headers": {"Retry-After": "0.1"}},
    "a body that breaks off": {"do": "hang_up"},
    "no JSON": {"do": "garbage"},
}


@pytest.mark.parametrize("name", TRANSIENT)
def test_a_fault_on_one_replica_is_answered_by_the_other(build, replicas, name):
    right = build(replicas[1]).generate(prompts(), SAMPLING)
    replicas[1].log.clear()
    replicas[0].plan = [TRANSIENT[name]]
    made = build().generate(prompts(), SAMPLING)
    assert made == right
    assert [len(replica.asked) for replica in replicas] == [1, 1]


@pytest.mark.parametrize("name", TRANSIENT)
def test_a_lone_replica_is_asked_again(build, replicas, name):
    replicas[0].plan = [TRANSIENT[name]]
    (made,) = build(replicas[0]).generate(prompts(), SAMPLING)
    assert made.error == "" and len(replicas[0].asked) == 2


def test_tries_are_bounded_and_the_attempt_then_has_no_score(build, replicas):
    for replica in replicas:
        replica.plan = [{"do": "status", "code": 500}] * 9
    (made,) = build(tries=2).generate(prompts(), SAMPLING)
    assert (made.finish_reason, made.text, made.token_ids) == ("error", "", ())
    assert "after 2 tries" in made.error and all(replica.url in made.error for replica in replicas)
    assert sum(len(replica.asked) for replica in replicas) == 2


def drop_an_id(answer):
    answer["choices"][0]["token_ids"].pop()


def drop_a_score(answer):
    answer["choices"][0]["logprobs"]["token_logprobs"].pop()


def drop_the_ids(answer):
    del answer["choices"][0]["token_ids"]


def break_a_score(answer):
    answer["choices"][0]["logprobs"]["token_logprobs"][0] = None


def name_other_weights(answer):
    answer["model"] = "policy-0000000000000000"


def read_another_prompt(answer):
    answer["choices"][0]["prompt_token_ids"][0] += 1


def count_wrongly(answer):
    answer["usage"]["completion_tokens"] += 1


def abort(answer):
    answer["choices"][0]["finish_reason"] = "abort"


def lose_the_choice(answer):
    answer["choices"] = []


def name_an_id_beyond_the_vocabulary(answer):
    answer["choices"][0]["token_ids"][0] = 999_999


def score_above_certainty(answer):
    answer["choices"][0]["logprobs"]["token_logprobs"][0] = 3.0


CHANGES = [
    name_an_id_beyond_the_vocabulary, score_above_certainty, drop_an_id, drop_a_score, drop_the_ids, break_a_score,
    name_other_weights, read_another_prompt, count_wrongly, abort, lose_the_choice,
]  # fmt: skip


def test_a_token_that_is_named_and_not_set_is_asked_for(build, monkeypatch):
    monkeypatch.delenv("SERVERS_TOKEN", raising=False)
    with pytest.raises(UserError, match="token_env=SERVERS_TOKEN, which is not set"):
        build(token_env="SERVERS_TOKEN")


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_that_is_not_whole_is_refused(build, replicas, change):
    replicas[0].plan = [{"do": "change", "with": change}] * 2
    (made,) = build(replicas[0], tries=2).generate(prompts(), SAMPLING)
    assert made.finish_reason == "error" and made.error.count("bad answer") == 2
    right = build(replicas[1]).generate(prompts(), SAMPLING)
    replicas[0].plan = [{"do": "change", "with": change}]
    assert build().generate(prompts(), SAMPLING) == right


def test_a_permanent_refusal_is_not_sent_again(build, replicas):
    for replica in replicas:
        replica.plan = [{"do": "status", "code": 422}]
    (made,) = build().generate(prompts(), SAMPLING)
    assert made.finish_reason == "error" and "422" in made.error
    assert sum(len(replica.asked) for replica in replicas) == 1


def test_a_replica_that_hangs_gets_no_more_work_in_that_call(build, replicas):
    replicas[0].plan = [{"do": "stall", "seconds": 10}] * 9
    made = build(timeout_s=3, max_concurrency=1).generate(prompts(8), SAMPLING)
    assert [one.error for one in made] == [""] * 8
    assert len(replicas[0].asked) == 1 and len(replicas[1].asked) == 8
    replicas[0].plan = []
    build().generate(prompts(8), SAMPLING)
    assert len(replicas[0].asked) > 1  # the next call opens it again


def test_a_replica_that_dies_in_the_middle_loses_no_row(build, replicas):
    # Its four rows in flight break off; three faults, each begun after the one before, end its work in this call.
    replicas[0].plan = [{"do": "hang_up", "after": 0.05}] * 99
    made = build(max_concurrency=4).generate(prompts(24), SAMPLING)
    assert [one.error for one in made] == [""] * 24
    assert len(replicas[1].asked) == 24


def test_work_goes_to_the_replica_with_less_of_it(build, replicas):
    # The slow one keeps its two rows for a while; the other answers the rest.
    replicas[0].plan = [{"do": "answer", "after": 1.0}] * 99
    made = build(max_concurrency=2).generate(prompts(12), SAMPLING)
    assert [one.error for one in made] == [""] * 12
    assert len(replicas[0].asked) < len(replicas[1].asked)
    replicas[0].plan = []


def test_a_pause_that_is_asked_for_is_kept(build, replicas):
    replicas[0].plan = [{"do": "status", "code": 429, "headers": {"Retry-After": "1"}}]
    started = time.monotonic()
    (made,) = build(replicas[0]).generate(prompts(), SAMPLING)
    assert made.error == "" and time.monotonic() - started >= 1


def test_a_pause_longer_than_the_limit_closes_the_replica(build, replicas):
    replicas[0].plan = [{"do": "status", "code": 429, "headers": {"Retry-After": "3600"}}]
    (made,) = build(replicas[0]).generate(prompts(), SAMPLING)
    assert made.finish_reason == "error" and "429" in made.error and len(replicas[0].asked) == 1


def test_a_server_of_another_model_is_asked_nothing(build, base, tokenizer, replicas):
    stranger = TinyVllm(tiny_llama(tokenizer, seed=9), tokenizer, "some/model")
    (made,) = build(stranger).generate(prompts(), SAMPLING)
    assert "serves ['some/model'], not the base" in made.error and "--served-model-name" in made.error
    (made,) = build(stranger, replicas[0]).generate(prompts(), SAMPLING)
    assert made.error == "" and stranger.asked == []
    stranger.close()


def test_a_server_that_is_not_there_is_an_error_that_names_it(build, replicas):
    replicas[0].close()
    (made,) = build(replicas[0]).generate(prompts(), SAMPLING)
    assert made.finish_reason == "error" and replicas[0].url in made.error


def test_adapters_are_loaded_swapped_and_dropped_and_answer_as_their_own_weights(build, replicas, tokenizer, tmp_path):
    plain = build().generate(prompts(6), SAMPLING)
    first, first_id, first_folder = adapters(tokenizer, tmp_path, seed=1)
    second, second_id, second_folder = adapters(tokenizer, tmp_path, seed=2)
    engine = build(adapter=first_folder, policy_id=first_id)
    answers = {}
    for model, policy_id, folder in ((first, first_id, first_folder), (second, second_id, second_folder)):
        engine.load_weights(policy_id, folder)
        made = answers[policy_id] = engine.generate(prompts(6), SAMPLING)
        assert {one.policy_id for one in made} == {policy_id}
        batch = token_batch([one.prompt_token_ids for one in made], [one.token_ids for one in made], pad_token_id=0)
        with torch.no_grad():
            expected = completion_likelihood(model, batch, temperature=1.0).log_probabilities
        for row, one in enumerate(made):
            assert list(one.log_probabilities) == pytest.approx(expected[row, : len(one.token_ids)].tolist(), abs=1e-4)
        assert [set(replica.adapters) for replica in replicas] == [{policy_id}] * 2
    ids = [[one.token_ids for one in made] for made in (plain, *answers.values())]
    assert ids[0] != ids[1] != ids[2]


def test_a_replica_that_lost_its_adapters_takes_them_again(build, replicas, tokenizer, tmp_path):
    _, policy_id, folder = adapters(tokenizer, tmp_path, seed=1)
    engine = build(replicas[0], adapter=folder, policy_id=policy_id)
    before = engine.generate(prompts(2), SAMPLING)
    replicas[0].adapters.clear()  # as after a restart
    assert engine.generate(prompts(2), SAMPLING) == before


def test_adapters_of_the_same_name_from_another_folder_are_replaced_in_place(build, replicas, tokenizer, tmp_path):
    _, policy_id, folder = adapters(tokenizer, tmp_path / "a", seed=1)
    _, _, wrong = adapters(tokenizer, tmp_path / "b", seed=2)
    replicas[0].load(policy_id, str(wrong))
    engine = build(replicas[0], adapter=folder, policy_id=policy_id)
    engine.generate(prompts(), SAMPLING)
    assert replicas[0].adapters == {policy_id: str(folder)}
    loads = [body for path, body in replicas[0].log if path == "/v1/load_lora_adapter"]
    assert [body["load_inplace"] for body in loads] == [True]


def test_adapters_that_no_replica_takes_stop_the_trainer(build, replicas, tokenizer, tmp_path):
    _, policy_id, folder = adapters(tokenizer, tmp_path, seed=1)
    engine = build(replicas[0], adapter=folder, policy_id=policy_id)
    replicas[0].close()
    with pytest.raises(PolicyError, match="failed on every replica"):
        engine.load_weights(policy_id, folder)


def test_weights_that_are_no_adapters_are_not_exported(base, tmp_path):
    with pytest.raises(CheckpointError, match="not adapters' weights"):
        export_adapter(POLICY, dict(base.named_parameters()), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mode", "temperature", "count"), [("raw", 0.5, 0), ("processed", 0.5, 4), ("raw", 0.0, 4)])
def test_raw_log_probabilities_are_used_only_where_they_are_the_sampling_distributions(build, mode, temperature, count):
    # Raw ones ignore the temperature; at 0 the distribution has one token, whose log-probability is 0.
    sampling = Sampling(temperature=temperature, max_tokens=4, seed=3)
    (made,) = build(logprobs=mode).generate(prompts(), sampling)
    assert len(made.token_ids) == 4 and len(made.log_probabilities) == count
    if temperature == 0:
        assert made.log_probabilities == (0.0,) * 4
