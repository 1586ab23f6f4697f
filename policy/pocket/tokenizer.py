"""Build the pocket policy's tokenizer: byte-level BPE, whole tokens for codes and line labels.

Any text goes in: what the merges do not cover falls back to bytes. A station code or a directed
line label is always one token with its leading space, so that a code has one identity wherever it
stands; the normaliser inserts that space where the text lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from evals.suites.metro_network import LINE_NAMES

SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<reasoning>", "</reasoning>", "<response>", "</response>", "(transfer)")
_LABEL = "(?:" + "|".join(LINE_NAMES) + ")[+-]"
_CODE = r"K\d\d(?!\w)"
_SPLIT = rf" {_LABEL}| {_CODE}| ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]|\s"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def space_normalizer() -> normalizers.Normalizer:
    """Put one space before every code and directed label that has none.

    Matches are never empty: the library's offsets break on empty ones (tokenizers 0.22, index panic).
    """
    steps = [normalizers.Replace(Regex(r"(?<![\w ])K(?=\d\d(?!\w))"), " K")]
    for name in LINE_NAMES:
        steps.append(normalizers.Replace(Regex(rf"(?<![\w ]){name[0]}(?={name[1:]}[+-])"), f" {name[0]}"))
    return normalizers.Sequence(steps)


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int = 2048) -> PreTrainedTokenizerFast:
    """Train the tokenizer on ``texts``.

    Args:
        texts: training texts; rendered prompts and completions.
        vocabulary_size: tokens in all, bytes and specials included.
    """
    core = Tokenizer(models.BPE())
    core.normalizer = space_normalizer()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|pad|>", eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
