"""An API policy: calls bounded, failures without a score, spending limits obeyed; the model here is scripted."""

import asyncio

import pytest

from harness.errors import SpendLimitReached, UserError
from harness.protocols import ChatReply, Prompt
from harness.records import ImageFile, Message, Sampling, Usage
from policy.config import ApiPolicyConfig
from policy.engines.api_engine import ChatEngine, api_policy_id


class Script:
    """A chat model that does what ``answer(user text)`` says: a reply, or an exception to raise."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []
        self.active = self.peak = 0

    async def complete(self, messages, *, purpose, replicate=0):
        self.calls.append((messages[-1].content, purpose, replicate))
        self.active += 1
        self.peak = max(self.peak, self.active)
        await asyncio.sleep(0.01)
        self.active -= 1
        made = self.answer(messages[-1].content)
        if isinstance(made, Exception):
            raise made
        return made


def reply(text, **more):
    return ChatReply(text=text, model="m", usage=Usage(prompt_tokens=3, completion_tokens=2, cost_usd=0.5), **more)


def prompts(*texts):
    return [Prompt(messages=(Message(role="user", content=text),), seed=row) for row, text in enumerate(texts)]


@pytest.fixture
def build():
    opened = []

    def make(answer, places=2):
        script = Script(answer)
        engine = ChatEngine(lambda sampling: script, "policy-x", max_concurrency=places)
        opened.append(engine)
        return script, engine

    yield make
    for engine in opened:
        engine.close()


def test_replies_become_generations_in_order_with_reason_and_usage(build):
    script, engine = build(lambda text: reply(text.upper(), finish_reason="length" if text == "b" else "stop"))
    seen = []
    made = engine.generate(prompts("a", "b", "c"), Sampling(), progress=seen.append)
    assert [(one.text, one.finish_reason) for one in made] == [("A", "stop"), ("B", "length"), ("C", "stop")]
    assert {one.policy_id for one in made} == {"policy-x"} and seen == [1, 2, 3]
    assert sum(one.usage.cost_usd for one in made) == 1.5
    assert made[0].token_ids == () and made[0].log_probabilities == ()


def test_no_more_calls_are_in_flight_than_allowed(build):
    script, engine = build(lambda text: reply(text), places=3)
    engine.generate(prompts(*"abcdefghij"), Sampling())
    assert script.peak == 3


def test_equal_prompts_of_other_seeds_are_other_calls_and_of_equal_seeds_the_same(build):
    script, engine = build(lambda text: reply(text))
    same = prompts("a")[0]
    engine.generate([same, same, *prompts("z", "a")[1:]], Sampling(seed=1))
    first, second, third = [replicate for _, _, replicate in script.calls]
    assert first == second != third
    engine.generate([same], Sampling(seed=2))
    assert script.calls[-1][2] != first


def test_a_call_that_fails_is_an_attempt_without_a_score(build):
    script, engine = build(lambda text: RuntimeError("down") if text == "b" else reply(text))
    made = engine.generate(prompts("a", "b"), Sampling())
    assert [one.finish_reason for one in made] == ["stop", "error"]
    assert made[1].error == "RuntimeError: down" and made[1].text == ""


def test_an_image_is_refused_and_not_left_out(build):
    script, engine = build(lambda text: reply(text))
    image = ImageFile(path="map.png", sha256="0" * 64)
    (made,) = engine.generate([Prompt(messages=(Message(role="user", content="a", images=(image,)),))], Sampling())
    assert "images" in made.error and script.calls == []


@pytest.mark.parametrize("error", [SpendLimitReached("model_call", "used up"), UserError("no key")])
def test_a_limit_or_a_users_mistake_ends_the_call_and_no_new_one_begins(build, error):
    script, engine = build(lambda text: error if text == "b" else reply(text), places=1)
    with pytest.raises(type(error)):
        engine.generate(prompts("a", "b", "c", "d"), Sampling())
    assert [text for text, _, _ in script.calls] == ["a", "b"]


def test_the_identity_is_model_and_settings_and_neither_limits_nor_prices():
    config = ApiPolicyConfig(type="api", model="openai/x")
    same = {"max_concurrency": 2, "timeout_s": 5, "api_key_env": "KEY"}
    price = {"prompt_usd_per_million": 1.0, "completion_usd_per_million": 2.0}
    assert api_policy_id(config.model_copy(update=same | price)) == api_policy_id(config)
    for other in (
        {"model": "openai/y"},
        {"api_base": "http://127.0.0.1:1/v1"},
        {"omit": ("seed",)},
        {"extra": {"a": 1}},
    ):
        assert api_policy_id(config.model_copy(update=other)) != api_policy_id(config)


def test_half_a_price_is_refused():
    with pytest.raises(ValueError, match="set both"):
        ApiPolicyConfig(type="api", model="openai/x", prompt_usd_per_million=1.0)
