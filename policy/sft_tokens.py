"""From a record to the tokens of its loss, checked token by token against the chat template in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import ImageFile, Message
from policy.errors import OverlongRecord, TemplateMismatch, TrainingError
from policy.sft_record import SftRecord
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

    The prompt, encoded as the engine encodes it (with the opening of the assistant's turn), must be a prefix of the
    whole conversation in text and in tokens, and what follows must be the completion and an end token. A template
    that writes anything between them, trims the completion, or whose tokens merge across the border is refused:
    training would then teach tokens that the policy is never asked for.

    Args:
        tokenizer: of the policy, with its chat template.
        record: prompt and completion as text.
        stop_token_ids: ids at which the policy's engine stops.
        reader: of a policy that sees images; None shows it text alone.

    Returns:
        Ids of the prompt and of the completion with its first end token; what a template writes after that token
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
    prompt, ids = (_encode(tokenizer, text, messages, reader) for text in (opening, whole))
    _check_prefix(tokenizer, record, prompt, ids)
    rest, stops = ids[len(prompt) :], set(stop_token_ids)
    end = next((index for index, token in enumerate(rest) if token in stops), None)
    if end is None:
        raise TemplateMismatch(
            f"record {record.record_id}: the chat template ends the assistant's turn with "
            f"{whole[len(opening) + len(record.completion) :]!r}, which holds none of the policy's end tokens "
            f"{sorted(stops)}; the policy would never learn to stop; give the tokenizer the template of its model"
        )
    spelled = tokenizer.decode(rest[:end], skip_special_tokens=False)
    if spelled != record.completion:
        raise TemplateMismatch(
            f"record {record.record_id}: the tokens before the end token spell {spelled[-60:]!r}, the completion ends "
            f"with {record.completion[-60:]!r}; a completion must not hold an end token, and its text must survive "
            "the tokenizer; correct or drop the record"
        )
    return SftTokens(record.record_id, tuple(prompt), tuple(rest[: end + 1]), prompt_images(messages))


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


def _check_prefix(tokenizer: Any, record: SftRecord, prompt: list[int], ids: list[int]) -> None:
    if ids[: len(prompt)] == prompt:
        return
    place = next(index for index, token in enumerate(prompt) if index >= len(ids) or ids[index] != token)
    shown = slice(max(0, place - 2), place + _SHOWN_TOKENS - 2)
    raise TemplateMismatch(
        f"record {record.record_id}: the prompt's {len(prompt)} tokens are no prefix of the conversation's; at token "
        f"{place} the prompt has {_spell(tokenizer, prompt[shown])}, the conversation {_spell(tokenizer, ids[shown])}; "
        "the completion's first characters merge with the prompt's last; end the template's assistant opening with a "
        "special token or a line feed"
    )


def _spell(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(piece) for piece in tokenizer.convert_ids_to_tokens(list(ids))]
