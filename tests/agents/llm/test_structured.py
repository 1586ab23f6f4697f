import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from agents.llm.call import ModelServices
from agents.llm.failure import ModelCallFailed, StructuredFailed
from agents.llm.schema import json_schema, strict_schema
from agents.llm.structured import structured
from memory.store import Store

from .conftest import MESSAGES, ChatMaker, Server, reply, status


class Finding(BaseModel):
    fault: str
    count: int = Field(ge=1)
    notes: list[str] = []


GOOD = '{"fault": "missing_edge", "count": 3, "notes": []}'
VALUE = Finding(fault="missing_edge", count=3)
ALL_FORMS = {"json_schema": 400, "json_object_schema": 422, "json_object": 400}


def kinds(faults) -> list[str]:
    return [fault.kind for fault in faults]


async def test_the_first_rung_asks_for_the_strict_schema_and_nothing_else_is_needed(server: Server, make_chat, records):
    server.plan(reply(GOOD))
    answer = await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    assert (answer.value, answer.rung, answer.repairs, answer.faults) == (VALUE, "json_schema", 0, ())
    asked = server.requests[0]["body"]
    form = asked["response_format"]["json_schema"]
    assert form["strict"] and form["schema"]["required"] == ["fault", "count", "notes"]
    assert asked["messages"][-1]["content"] == "Say hello."  # the schema is not repeated in words
    assert records[-1].is_valid and records[-1].call_ids == (answer.replies[0].call_id,)


async def test_a_rejected_form_steps_down_and_the_working_rung_is_remembered(server: Server, make_chat: ChatMaker):
    server.plan(reply(GOOD), reject={"json_schema": 400})
    chat = make_chat()
    first = await structured(chat, MESSAGES, Finding, purpose="one")
    second = await structured(chat, MESSAGES, Finding, purpose="two")
    assert (first.rung, kinds(first.faults)) == ("json_object_schema", ["unsupported_format"])
    assert (second.rung, second.faults) == ("json_object_schema", ())
    assert [request["form"] for request in server.requests] == ["json_schema"] + ["json_object_schema"] * 2
    assert server.requests[1]["body"]["response_format"]["schema"] == json_schema(Finding)  # llama.cpp's form


async def test_a_500_for_the_form_counts_as_a_rejection(server: Server, make_chat: ChatMaker):
    # llama.cpp's Python server answers 500 to json_schema; a probe sends two requests, then steps down.
    server.plan(reply(GOOD), reject={"json_schema": 500})
    answer = await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    assert (answer.rung, kinds(answer.faults)) == ("json_object_schema", ["server_error", "unsupported_format"])
    assert [request["form"] for request in server.requests] == ["json_schema", "json_schema", "json_object_schema"]


async def test_the_last_rung_needs_no_format_at_all(server: Server, make_chat: ChatMaker):
    server.plan(reply(GOOD), reject=ALL_FORMS)
    answer = await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    assert (answer.rung, kinds(answer.faults)) == ("prompt", ["unsupported_format"] * 3)
    assert [fault.rung for fault in answer.faults] == ["json_schema", "json_object_schema", "json_object"]
    asked = server.requests[-1]["body"]
    assert "response_format" not in asked and '"fault"' in asked["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("bad", "kind", "rung", "said"),
    [
        (reply(json.dumps(Finding.model_json_schema())), "schema_echo", "prompt", "instead of an instance"),
        (reply(""), "empty_content", "prompt", "no content"),
        (reply("The fault is a missing edge."), "invalid_json", "prompt", "Expecting value"),
        (reply(GOOD[:30], finish_reason="length"), "truncated_json", "json_schema", "more briefly"),
        (reply('{"fault": "missing_ed'), "truncated_json", "json_schema", "stops after 21 characters"),
        (reply('{"fault": "x", "count": 0}'), "validation_error", "json_schema", "greater than or equal to 1; got 0"),
        (reply('{"count": 2}'), "validation_error", "json_schema", "fault: Field required"),
        (reply("I'm sorry, but I cannot help with that."), "refusal", "json_schema", "fill a form"),
        ({"do": "refusal", "text": "Not today."}, "refusal", "json_schema", "Not today."),
        (reply("", finish_reason="content_filter"), "refusal", "json_schema", "content filter"),
    ],
)
async def test_a_reply_that_does_not_fit_is_named_and_repaired(
    server: Server, make_chat, records, bad, kind, rung, said
):
    server.plan(bad, reply(GOOD))
    answer = await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    assert (answer.value, answer.repairs, kinds(answer.faults)) == (VALUE, 1, [kind])
    assert answer.rung == rung  # a form that is taken but not enforced is left for plain words
    feedback = server.requests[1]["body"]["messages"][-1]["content"]
    assert kind in feedback and said in feedback  # the exact error goes back
    assert kinds(records[-1].faults) == [kind] and records[-1].is_valid


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"```json\n{GOOD}\n```", "fenced"),
        (f"Here it is:\n\n```\n{GOOD}\n```\nAnything else?", "fenced"),
        (f"Sure! {GOOD} I hope this helps {{}}.", "wrapped"),
    ],
)
async def test_a_fence_or_words_around_the_json_cost_no_repair(server: Server, make_chat: ChatMaker, text, kind):
    server.plan(reply(text))
    answer = await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    assert (answer.value, answer.repairs, kinds(answer.faults)) == (VALUE, 0, [kind])


async def test_thinking_before_the_answer_is_set_aside(server: Server, make_chat: ChatMaker):
    server.plan(reply(f'<think>{{"fault": "a draft"}}</think>\n{GOOD}'))
    answer = await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    assert (answer.value, answer.faults) == (VALUE, ())


async def test_after_three_repairs_every_failure_is_in_the_error_and_the_record(server, make_chat, records):
    server.plan(reply(""), reply("no"), reply('{"count": 1}'), reply(GOOD[:9]))
    with pytest.raises(StructuredFailed, match="gave no Finding in 4 replies") as caught:
        await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    expected = ["empty_content", "invalid_json", "validation_error", "truncated_json"]
    assert kinds(caught.value.faults) == kinds(records[-1].faults) == expected
    assert (caught.value.boundary, len(server.requests), records[-1].is_valid) == ("model_call", 4, False)


async def test_equal_bad_replies_are_asked_anew_not_replayed(server: Server, make_chat: ChatMaker, store: Store):
    server.plan(reply('{"count": 1}'))
    chat = make_chat(services=ModelServices(store.ledger("run-1")))
    with pytest.raises(StructuredFailed):
        await structured(chat, MESSAGES, Finding, purpose="diagnose")
    assert len(server.requests) == 4


async def test_max_repairs_zero_asks_once(server: Server, make_chat: ChatMaker):
    server.plan(reply("no"), reply(GOOD))
    with pytest.raises(StructuredFailed):
        await structured(make_chat(), MESSAGES, Finding, purpose="diagnose", max_repairs=0)
    assert len(server.requests) == 1


async def test_a_retried_request_is_named_among_the_faults(server: Server, make_chat: ChatMaker):
    server.plan(status(429, Retry_After="0"), reply(GOOD))
    answer = await structured(make_chat(), MESSAGES, Finding, purpose="diagnose")
    assert (kinds(answer.faults), answer.rung) == (["rate_limited"], "json_schema")


async def test_a_stall_or_a_bad_key_ends_the_climb_and_is_recorded(server: Server, make_chat: ChatMaker, records):
    quick: dict[str, Any] = {"timeout_s": 0.2, "retry": {"max_attempts": 1}}
    for step, kind in (({"do": "stall", "seconds": 1}, "timeout"), (status(401), "authentication")):
        server.plan(step)
        with pytest.raises(ModelCallFailed) as caught:
            await structured(make_chat(**quick), MESSAGES, Finding, purpose=kind)
        assert not isinstance(caught.value, StructuredFailed)
        assert kinds(caught.value.faults) == kinds(records[-1].faults) == [kind]
        assert len(server.requests) == 1


async def test_an_outage_on_a_rung_that_works_is_an_outage(server: Server, make_chat: ChatMaker):
    chat = make_chat(retry={"max_attempts": 2, "backoff_base_s": 0.01})
    server.plan(reply(GOOD), status(500))
    await structured(chat, MESSAGES, Finding, purpose="one")
    with pytest.raises(ModelCallFailed, match="server_error"):
        await structured(chat, MESSAGES, Finding, purpose="two")
    assert {request["form"] for request in server.requests} == {"json_schema"}


async def test_a_restart_takes_the_same_path_and_sends_nothing(server: Server, make_chat: ChatMaker, store: Store):
    # First sitting: json_schema fails twice by accident, the next rung's reply needs one repair.
    server.plan(status(500), status(500), reply('{"count": 1}'), reply(GOOD))
    chat = make_chat(services=ModelServices(store.ledger("run-1")))
    first = await structured(chat, MESSAGES, Finding, purpose="diagnose")
    server.plan(reply('{"fault": "another answer", "count": 1}'))  # the server is well again
    chat = make_chat(services=ModelServices(store.ledger("run-1")))
    second = await structured(chat, MESSAGES, Finding, purpose="diagnose")
    assert (second.value, second.rung, second.repairs) == (first.value, "json_object_schema", 1)
    assert server.requests == []


async def test_a_restart_begins_where_the_first_sitting_began(server: Server, make_chat: ChatMaker, store: Store):
    # Two answers at once, both unaware of what works: each pays a useless reply on the top rung, then mends it. In the
    # second sitting they run one after the other, and the second could know better than it did.
    server.plan(reply("no"), reply("no"), reply(GOOD))
    chat = make_chat(services=ModelServices(store.ledger("run-1")))
    await asyncio.gather(*(structured(chat, MESSAGES, Finding, purpose=name) for name in ("a", "b")))
    server.plan(reply(GOOD))
    chat = make_chat(services=ModelServices(store.ledger("run-1")))
    for name in ("a", "b"):
        assert (await structured(chat, MESSAGES, Finding, purpose=name)).repairs == 1
    assert server.requests == []


async def test_replicates_are_independent_answers(server: Server, make_chat: ChatMaker, store: Store):
    server.plan(reply(GOOD))
    chat = make_chat(services=ModelServices(store.ledger("run-1")))
    for replicate in (0, 1, 1):
        await structured(chat, MESSAGES, Finding, purpose="grade", replicate=replicate)
    assert len(server.requests) == 2


async def test_swapping_the_model_is_one_string(server: Server, make_chat: ChatMaker):
    server.plan(reply(GOOD))
    for model in ("openai/tiny", "hosted_vllm/other", "llamafile/third"):
        answer = await structured(make_chat(model=model), MESSAGES, Finding, purpose="diagnose")
        assert answer.value == VALUE
    assert [request["body"]["model"] for request in server.requests] == ["tiny", "other", "third"]


def test_an_object_with_free_keys_is_not_asked_for_strictly():
    class Loose(BaseModel):
        counts: dict[str, int]

    body, is_strict = strict_schema(Loose)
    assert not is_strict and body == json_schema(Loose)


def test_a_field_named_title_or_default_survives_the_cleaning_of_the_schema():
    class Skill(BaseModel):
        title: str
        default: str = "x"

    properties = json_schema(Skill)["properties"]
    assert properties == {"title": {"type": "string"}, "default": {"type": "string"}}


async def test_a_schema_with_a_field_named_properties_is_no_echo(server: Server, make_chat: ChatMaker):
    class Described(BaseModel):
        properties: dict[str, str]

    server.plan(reply('{"properties": {"colour": "red"}}'))
    answer = await structured(make_chat(), MESSAGES, Described, purpose="describe")
    assert answer.value.properties == {"colour": "red"}
