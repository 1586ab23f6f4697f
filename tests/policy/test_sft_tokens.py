"""Which tokens the SFT loss counts, token by token, and the templates that are refused."""

from __future__ import annotations

import pytest

from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.engines.transformers_engine import TransformersEngine, stop_token_ids
from policy.errors import OverlongRecord, TemplateMismatch, TrainingError
from policy.load import load_policy
from policy.sft.record import SftRecord
from policy.sft.tokens import SftTokens, check_lengths, encode_record

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace(
    "{{ message.content }}",
    "{% if message.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ message.content }}",
)
TRIMMING = CHATML.replace("{{ message.content }}", "{{ message.content | trim }}")
SILENT_END = CHATML.replace("<|im_end|>\n", "\n")
RENAMED = CHATML.replace("{{ message.role }}\n", "{{ 'bot' if message.role == 'assistant' else message.role }}\n")


def record(completion: str = "<response>K01-K02</response>", **changes) -> SftRecord:
    prompt = (Message(role="system", content="Be short."), Message(role="user", content="K01 to K02?"))
    return SftRecord(**{"record_id": "trace-7", "prompt": prompt, "completion": completion, **changes})


@pytest.fixture(scope="module")
def pocket():
    """Model and tokenizer of the packaged policy."""
    return load_policy("pocket")


@pytest.fixture
def chatml(tokenizer):
    """The tiny tokenizer with ChatML's marks, one token each, and a template of the test's choice."""
    import copy

    made = copy.deepcopy(tokenizer)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>"})

    def with_template(template: str):
        made.chat_template = template
        return made, (made.eos_token_id,)

    return with_template


def test_the_pocket_policys_completion_is_masked_token_by_token(pocket):
    made = encode_record(pocket.tokenizer, record(), stop_token_ids=stop_token_ids(*pocket[:2]))
    names = pocket.tokenizer.convert_ids_to_tokens(list(made.prompt + made.completion))
    counted = [name for name, flag in zip(names, made.mask, strict=True) if flag]
    # everything after the opening of the assistant's turn, and the end token once
    assert names[names.index("<|assistant|>") + 1 :] == counted
    assert counted[-1] == pocket.tokenizer.eos_token and counted.count(pocket.tokenizer.eos_token) == 1
    assert "<|assistant|>" not in counted and len(made) == len(made.mask)


def test_the_prompt_is_the_one_that_the_engine_samples_from(pocket):
    engine = TransformersEngine(pocket.model, pocket.tokenizer, "p", 1)
    made = encode_record(pocket.tokenizer, record(), stop_token_ids=stop_token_ids(*pocket[:2]))
    (answer,) = engine.generate([Prompt(messages=record().prompt)], Sampling(max_tokens=2))
    assert answer.prompt_token_ids == made.prompt


def test_what_a_template_writes_after_the_end_token_is_not_learned(chatml):
    tokenizer, stops = chatml(CHATML)
    made = encode_record(tokenizer, record("K02"), stop_token_ids=stops)
    whole = tokenizer(
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nK01 to K02?<|im_end|>\n"
        "<|im_start|>assistant\nK02<|im_end|>\n",
        add_special_tokens=False,
    )["input_ids"]
    # the line feed after <|im_end|> is the template's, no engine samples it
    assert list(made.prompt + made.completion) == whole[:-1]
    assert made.completion == (*tokenizer("K02", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)


@pytest.mark.parametrize(
    ("template", "completion", "words"),
    [
        (THINKING, "K02", r"trace-7: the chat template does not write prompt and completion.*'<think>"),
        (TRIMMING, " K02 ", r"trace-7: the chat template does not write.*it writes 'K02"),
        (RENAMED, "K02", r"trace-7: the chat template does not write.*it writes 'bot"),
        (
            SILENT_END,
            "K02",
            r"trace-7: after the completion the chat template writes .*expected one of the policy's end",
        ),
        (CHATML, "K02<|im_end|>K03", "trace-7: its completion 'K02<|im_end|>K03' holds an end token"),
    ],
)
def test_a_template_that_breaks_the_prefix_is_refused_and_the_place_is_shown(chatml, template, completion, words):
    tokenizer, stops = chatml(template)
    with pytest.raises(TemplateMismatch, match=words.replace("|", r"\|")):
        encode_record(tokenizer, record(completion), stop_token_ids=stops)


class Merging:
    """A tokenizer whose tokens are pairs of characters, so a completion's first merges with the prompt's last."""

    def apply_chat_template(self, chat, *, tokenize, add_generation_prompt, **more):
        return ">".join(message["content"] for message in chat) + (">" if add_generation_prompt else "#")

    def __call__(self, text, *, add_special_tokens):
        return {"input_ids": [sum(map(ord, text[start : start + 2])) for start in range(0, len(text), 2)]}

    def convert_ids_to_tokens(self, ids):
        return ids


def test_tokens_that_merge_across_the_border_are_refused():
    # "ab>" is [ab, >], with the answer "ab>" + "xy#" is [ab, >x, y#]
    odd = SftRecord(record_id="odd", prompt=(Message(role="user", content="ab"),), completion="xy")
    with pytest.raises(TemplateMismatch, match="odd: the 2 tokens of prompt are no prefix .* at token 1"):
        encode_record(Merging(), odd, stop_token_ids=[ord("#")])


def test_sampled_ids_are_trained_as_they_were_sampled(tokenizer):
    end = tokenizer.eos_token_id
    # the text of these ids encodes to fewer tokens: the policy chose another spelling, and that is what it learns
    pieces = tokenizer.convert_tokens_to_ids(["K", "0", "1"])
    assert None not in pieces and len(tokenizer("K01", add_special_tokens=False)["input_ids"]) != 3
    text = tokenizer.decode(pieces, skip_special_tokens=False)
    sampled = record(text, token_ids=(*pieces, end))
    made = encode_record(tokenizer, sampled, stop_token_ids=[end])
    assert made.completion == (*pieces, end)
    with pytest.raises(TrainingError, match="trace-7: its sampled ids spell"):
        encode_record(tokenizer, record("K9", token_ids=(*pieces, end)), stop_token_ids=[end])
    with pytest.raises(TrainingError, match="trace-7: its sampled ids must end with"):
        encode_record(tokenizer, record(text, token_ids=tuple(pieces)), stop_token_ids=[end])


def test_an_empty_completion_is_refused(tokenizer):
    with pytest.raises(TrainingError, match="trace-7 has an empty completion"):
        encode_record(tokenizer, record(""), stop_token_ids=[tokenizer.eos_token_id])


def test_overlong_records_are_named_with_length_and_limit():
    made = [SftTokens(f"r{length}", (1,) * (length - 2), (2, 3)) for length in (5, 9, 7)]
    check_lengths(made, limit=9, reason="sft.max_tokens")
    with pytest.raises(OverlongRecord, match=r"2 of 3 records are longer than 6 tokens \(x\): r9 has 9, r7 has 7"):
        check_lengths(made, limit=6, reason="x")
