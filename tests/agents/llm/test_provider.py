from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from agents.llm.config import PriceConfig, RoleModelConfig
from agents.llm.provider import classify, estimate_tokens, price_usd

CONFIG = RoleModelConfig(model="openai/tiny")


class Answered(Exception):
    """An error with a status and headers, as LiteLLM's are."""

    def __init__(self, status_code: int, **headers: str) -> None:
        super().__init__("scripted")
        self.status_code = status_code
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = httpx.Response(status_code, headers=named)


def test_retry_after_is_read_as_seconds_milliseconds_or_a_date():
    assert classify(Answered(429, Retry_After="7"), CONFIG).retry_after_s == 7.0
    assert classify(Answered(429, retry_after_ms="250"), CONFIG).retry_after_s == 0.25
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert classify(Answered(503, Retry_After=later), CONFIG).retry_after_s == pytest.approx(90, abs=2)
    assert classify(Answered(429, Retry_After="soon"), CONFIG).retry_after_s is None
    assert classify(Answered(429, Retry_After="-3"), CONFIG).retry_after_s == 0.0


@pytest.mark.parametrize(
    ("status", "is_permanent"),
    [(400, True), (401, True), (403, True), (404, True), (408, False), (409, False), (422, True), (425, False),
     (429, False), (500, False), (502, False), (503, False), (529, False)],
)  # fmt: skip
def test_which_statuses_are_worth_another_request(status: int, is_permanent: bool):
    assert classify(Answered(status), CONFIG).is_permanent is is_permanent


def test_a_provider_s_message_is_kept_without_the_key(monkeypatch):
    monkeypatch.setenv("MY_PROVIDER_VAR", "very-private-value")
    config = RoleModelConfig(model="openai/tiny", api_key_env="MY_PROVIDER_VAR")
    detail = classify(ValueError("bad key very-private-value here"), config).fault.detail
    assert "very-private-value" not in detail and "bad key" in detail


def test_tokens_are_guessed_from_bytes_so_that_other_scripts_count_more():
    # 8 per message and a third of the UTF-8 bytes: 8 + 2 ("hello" is 5 bytes), 8 + 2 ("駅前" is 6)
    assert estimate_tokens([{"content": "hello"}]) == 10
    assert estimate_tokens([{"content": "駅前"}]) == 10


def test_a_configured_price_replaces_the_table_and_an_unknown_model_has_none():
    price = PriceConfig(prompt_usd_per_million=2.0, completion_usd_per_million=10.0)
    # 500,000 * 2/1e6 + 100,000 * 10/1e6 = 1 + 1
    assert price_usd(RoleModelConfig(model="openai/tiny", price=price), 500_000, 100_000) == pytest.approx(2.0)
    assert price_usd(CONFIG, 10, 10) is None


def test_a_time_out_says_how_long_it_waited():
    detail = classify(TimeoutError(), RoleModelConfig(model="openai/x", timeout_s=1.5)).fault.detail
    assert "no whole reply within 1.5 s" in detail
