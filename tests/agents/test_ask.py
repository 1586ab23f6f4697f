"""Typed answers that a role checks: what was paid is counted, whether or not an answer came of it."""

from scripted_model import scripted

from agents.ask import ask_checked
from harness.records import Message, Record


class Word(Record):
    word: str


async def accept(_: Word) -> list[str]:
    return []


async def test_replies_that_never_fit_are_paid_all_the_same():
    model = scripted("proposer", *[("", "no JSON here")] * 4)
    answer = await ask_checked(model, [Message(role="user", content="Say it.")], Word, purpose="test", check=accept)
    assert answer.value is None and len(answer.refusals) == 1
    # one reply and three repairs at 100 prompt and 10 completion tokens and 0.001 USD each
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (400, 40)
    assert round(answer.usage.cost_usd, 6) == 0.004
