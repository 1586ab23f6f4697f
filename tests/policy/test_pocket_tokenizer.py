"""The pocket tokenizer takes any text and gives a code one identity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from policy.pocket.tokenizer import train_tokenizer

TOKENIZER: PreTrainedTokenizerFast = train_tokenizer(
    ["From K07 to K19.", "Red+ K07 K19", "<reasoning>Direct.</reasoning>", "Work out the route."], vocabulary_size=400
)


def _ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("text", ["plain words", "Zürich – 北京", "a\tb\n\nc", "emoji 🚇!", "XK07 K0711 Redx+"])
def test_any_text_comes_back_as_it_went_in(text: str) -> None:
    assert TOKENIZER.decode(_ids(text)) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="K<|"), max_size=40))
def test_arbitrary_unicode_comes_back(text: str) -> None:
    assert TOKENIZER.decode(_ids(text)).replace(" ", "") == text.replace(" ", "")


def test_a_code_is_the_same_token_after_a_space_a_dash_or_a_tag() -> None:
    alone = _ids(" K07")
    assert len(alone) == 1
    for text in ("x K07", "-K07", "<response>K07", "\nK07"):
        assert _ids(text)[-1:] == alone


def test_tags_survive_decoding_without_special_tokens() -> None:
    text = "<reasoning>Direct.</reasoning>"
    assert TOKENIZER.decode([*_ids(text), TOKENIZER.eos_token_id], skip_special_tokens=True) == text
