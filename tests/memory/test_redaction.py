"""Secrets leave nothing behind, whatever field or text they hide in."""

import pytest

from memory.redaction import REDACTED, Redactor, redact


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcDEF1234567890abcd",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghij0123456789ABCD",
        "hf_abcdefghijklmnopqrstuvwx",
        "AIzaSyA0123456789abcdefghijklmnopqrstu",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_removed_by_its_shape_from_the_middle_of_any_text(secret: str) -> None:
    clean = Redactor().text(f"the call failed with {secret} as key")
    assert clean == f"the call failed with {REDACTED} as key"


def test_the_word_before_a_secret_stays() -> None:
    assert Redactor().text("Authorization: Bearer abcdef.123456") == f"Authorization: Bearer {REDACTED}"
    assert Redactor().text("postgresql://ada:pa55word@db/x") == f"postgresql://ada:{REDACTED}@db/x"
    assert Redactor().text("api_key=abcdefgh12345") == f"api_key={REDACTED}"


def test_values_of_secret_variables_are_removed_wherever_they_appear() -> None:
    redactor = Redactor.from_environment({"MY_API_KEY": "plainvalue123", "HOME": "/home/somebody", "DB_PASSWORD": "x"})
    value = redactor.value({"a": ["see plainvalue123!", {"plainvalue123": 1}], "home": "/home/somebody x"})
    # HOME is no secret; DB_PASSWORD is one character and would redact half of any text.
    assert value == {"a": [f"see {REDACTED}!", {REDACTED: 1}], "home": "/home/somebody x"}


def test_the_longer_of_two_overlapping_values_wins() -> None:
    redactor = Redactor(("secretvalue", "secretvalue-long"))
    assert redactor.text("secretvalue-long") == REDACTED


def test_the_real_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact("it is verysecretvalue") == "it is verysecretvalue"
    monkeypatch.setenv("COHELIX_TEST_TOKEN", "verysecretvalue")
    assert redact("it is verysecretvalue") == f"it is {REDACTED}"


def test_secret_fields_are_emptied_but_names_of_variables_and_token_counts_stay() -> None:
    value = {"api_key": "abc", "openai_api_key": "abc", "password": "x", "api_key_env": "OPENAI_API_KEY",
             "prompt_tokens": 12, "max_tokens": 5, "token_count": 3}  # fmt: skip
    assert redact(value) == {**value, "api_key": REDACTED, "openai_api_key": REDACTED, "password": REDACTED}


def test_ordinary_answers_pass_unchanged() -> None:
    text = "<reasoning>task-based risk-free, Red+ : a b c, https://example.org/a:b basic token</reasoning>"
    assert redact({"completion": text, "n": 0.0, "none": None, "list": [], "yes": True}) == {
        "completion": text, "n": 0.0, "none": None, "list": [], "yes": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "sentence",
    [
        "Keep to your basic responsibilities and the bearer standards.",
        "password: required; api_key: optional; a risk-averse-and-task-based-approach",
        "sk-1 is a short code, hf_x too",
    ],
)
def test_ordinary_sentences_are_not_taken_for_credentials(sentence: str) -> None:
    # A harness that looked like a credential would be refused, so a false alarm costs a run.
    assert Redactor().text(sentence) == sentence


def test_two_secret_keys_of_one_map_keep_both_items() -> None:
    clean = Redactor(("firstsecret", "secondsecret")).value({"firstsecret": 1, "secondsecret": 2})
    assert isinstance(clean, dict) and sorted(clean.values()) == [1, 2]  # type: ignore[type-var]
