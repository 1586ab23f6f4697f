"""From a record to the tokens of its loss, checked token by token against the chat template in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import ImageFile, Message
from policy.errors import OverlongRecord, TemplateMismatch, TrainingError
from policy.sft.record import SftRecord
from policy.vision import VisionReader, chat_text, prompt_images

_SHOWN_TOKENS = 6


@dataclass(frozen=True)
class SftTokens:
    """One record as token ids; the loss counts the completion's, its end token included."""

    record_id: str
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    images: tuple[ImageFile, ...] = ()
    """Shown in the prompt; empty for a policy that sees text alone."""

    def __len__(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt) + len(self.completion)

    @property
    def mask(self) -> tuple[int, ...]:
        """Per token 1 where the loss counts it, else 0."""
        return (0,) * len(self.prompt) + (1,) * len(self.completion)


def encode_record(
    tokenizer: Any, record: SftRecord, *, stop_token_ids: Sequence[int], reader: VisionReader | None = None
) -> SftTokens:
    """Token ids of a record.

    Args:
        tokenizer: of the policy, with its chat template.
        record: sampled ids are taken as they are; text is encoded by :func:`completion_mask`.
        stop_token_ids: ids at which the policy's engine stops.
        reader: of a policy that sees images; None shows it text alone.

    Raises:
        TemplateMismatch: the template does not show prompt and completion as they were sampled.
        TrainingError: the sampled ids do not spell the completion.
    """
    if not record.token_ids:
        return completion_mask(tokenizer, record, stop_token_ids=stop_token_ids, reader=reader)
    messages = _shown(record.prompt, reader)
    prompt = _encode(tokenizer, chat_text(tokenizer, messages), messages, reader)
    ids, stops = record.token_ids, set(stop_token_ids)
    if ids[-1] not in stops or stops & set(ids[:-1]):
        raise TrainingError(
            f"record {record.record_id}: its sampled ids must end with the policy's only end token, one of "
            f"{sorted(stops)}; got {list(ids[-_SHOWN_TOKENS:])} at the end; leave out truncated samples"
        )
    spelled = tokenizer.decode(list(ids[:-1]), skip_special_tokens=False)
    if spelled != record.completion:
        raise TrainingError(
            f"record {record.record_id}: its sampled ids spell {spelled[:60]!r}, its text is "
            f"{record.completion[:60]!r}; the ids are of another tokenizer or another attempt; drop them"
        )
    return SftTokens(record.record_id, tuple(prompt), tuple(ids), prompt_images(messages))


def completion_mask(
    tokenizer: Any, record: SftRecord, *, stop_token_ids: Sequence[int], reader: VisionReader | None = None
) -> SftTokens:
    """Encode prompt and completion through the chat template and find the tokens of the completion.

    The prompt, encoded as the engine encodes it (with the opening of the assistant's turn), must be a prefix of prompt
    and completion, and these a prefix of the whole conversation, in text and in tokens; next must come an end token.
    A template that writes anything between them, trims the completion, or whose tokens merge across a border is
    refused: training would then teach tokens that the policy is never asked for.

    Args:
        tokenizer: of the policy, with its chat template.
        record: prompt and completion as text.
        stop_token_ids: ids at which the policy's engine stops.
        reader: of a policy that sees images; None shows it text alone.

    Returns:
        Ids of the prompt and of the completion with its end token; what a template writes after that token
        (a line feed, say) is left out, since no engine samples it.

    Raises:
        TemplateMismatch: names the record and shows where the two part.
    """
    if not record.completion:
        raise TrainingError(f"record {record.record_id} has an empty completion; there is nothing to learn; drop it")
    messages = _shown(record.prompt, reader)
    answer = Message(role="assistant", content=record.completion)
    opening = chat_text(tokenizer, messages)
    whole = chat_text(tokenizer, (*messages, answer), add_generation_prompt=False)
    _check_text(record, opening, whole)
    texts = (opening, opening + record.completion, whole)
    prompt, answered, ids = (_encode(tokenizer, text, messages, reader) for text in texts)
    _check_prefix(tokenizer, record, prompt, answered, "prompt")
    _check_prefix(tokenizer, record, answered, ids, "prompt and completion")
    stops, end = set(stop_token_ids), ids[len(answered) : len(answered) + 1]
    if not stops & set(end):
        raise TemplateMismatch(
            f"record {record.record_id}: after the completion the chat template writes "
            f"{_spell(tokenizer, ids[len(answered) :][:_SHOWN_TOKENS])}, expected one of the policy's end tokens "
            f"{_spell(tokenizer, sorted(stops))}; the policy would never learn to stop; use the template of its model"
        )
    if stops & set(answered[len(prompt) :]):
        raise TemplateMismatch(
            f"record {record.record_id}: its completion {record.completion[-60:]!r} holds an end token; an engine "
            "would stop there; correct or drop the record"
        )
    return SftTokens(
        record.record_id, tuple(prompt), tuple(ids[len(prompt) : len(answered) + 1]), prompt_images(messages)
    )


def check_lengths(records: Sequence[SftTokens], *, limit: int, reason: str) -> None:
    """Refuse records that are too long, before anything is trained; nothing is ever cut.

    Args:
        records: all records of a stage.
        limit: tokens of prompt and completion together.
        reason: where the limit comes from, for the message.

    Raises:
        OverlongRecord: names the records, their lengths and the limit.
    """
    long = sorted((record for record in records if len(record) > limit), key=len, reverse=True)
    if long:
        named = ", ".join(f"{record.record_id} has {len(record)}" for record in long[:3])
        raise OverlongRecord(
            f"{len(long)} of {len(records)} records are longer than {limit} tokens ({reason}): {named}; nothing was "
            "trained and nothing is cut; raise the limit, shorten the harness, or drop these records"
        )


def _shown(messages: Sequence[Message], reader: VisionReader | None) -> tuple[Message, ...]:
    """The messages as the policy's engine shows them: a policy without a reader is shown no image."""
    if reader is not None:
        return tuple(messages)
    return tuple(message.model_copy(update={"images": ()}) for message in messages)


def _encode(tokenizer: Any, text: str, messages: Sequence[Message], reader: VisionReader | None) -> list[int]:
    if reader is not None:
        return reader.encode_text(text, prompt_images(messages))
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _check_text(record: SftRecord, opening: str, whole: str) -> None:
    expected = opening + record.completion
    if whole.startswith(expected):
        return
    place = next(
        (index for index, (one, other) in enumerate(zip(expected, whole, strict=False)) if one != other),
        min(len(expected), len(whole)),
    )
    raise TemplateMismatch(
        f"record {record.record_id}: the chat template does not write prompt and completion as they were sampled; at "
        f"character {place} it writes {whole[place : place + 40]!r}, expected {expected[place : place + 40]!r} "
        f"(after {expected[max(0, place - 20) : place]!r}); use a template that adds nothing and trims nothing"
    )


def _check_prefix(tokenizer: Any, record: SftRecord, first: list[int], whole: list[int], name: str) -> None:
    if whole[: len(first)] == first:
        return
    place = next(index for index, token in enumerate(first) if index >= len(whole) or whole[index] != token)
    shown = slice(max(0, place - 2), place + _SHOWN_TOKENS - 2)
    raise TemplateMismatch(
        f"record {record.record_id}: the {len(first)} tokens of {name} are no prefix of what follows; at token {place} "
        f"they are {_spell(tokenizer, first[shown])}, with the rest of the conversation "
        f"{_spell(tokenizer, whole[shown])}: characters merge across the border, so the policy would be trained on "
        "tokens it never meets; end the template's opening with a special token or a line feed"
    )


def _spell(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(piece) for piece in tokenizer.convert_ids_to_tokens(list(ids))]
