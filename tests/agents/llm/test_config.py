import subprocess
import sys

import pytest
from pydantic import ValidationError

from agents.llm.config import RoleModelConfig, RolesConfig


def test_every_role_plays_by_rules_until_a_model_is_named():
    roles = RolesConfig.model_validate({"proposer": {"model": "openai/gpt-4o"}})
    assert not roles.of("proposer").is_rules and roles.of("teacher").is_rules


def test_a_key_written_where_its_variable_s_name_belongs_is_refused_and_not_shown():
    with pytest.raises(ValidationError, match="NAME of an environment variable") as caught:
        RolesConfig.model_validate({"teacher": {"model": "openai/gpt-4o", "api_key_env": "sk-not-a-name-1234"}})
    assert "sk-not-a-name" not in str(caught.value)


@pytest.mark.parametrize("name", ["api_key", "Authorization", "client_secret", "max_tokens", "stream"])
def test_extra_takes_neither_secrets_nor_what_has_a_field(name: str):
    with pytest.raises(ValidationError, match=name):
        RoleModelConfig(model="openai/x", extra={name: "value"})


def test_a_secret_deep_inside_extra_is_found_and_its_value_not_shown():
    with pytest.raises(ValidationError, match="Authorization") as caught:
        RoleModelConfig(model="openai/x", extra={"headers": [{"Authorization": "s3cret-value"}]})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@127.0.0.1:80/v1", "http://s3cret@127.0.0.1/v1", "http://127.0.0.1/v1?api_key=s3cret",
        "http://127.0.0.1/v1#s3cret", "ftp://s3cret/v1", "127.0.0.1:8000", "http://", "http://x:99999999/", "a b", "",
        "http://[::1/v1",
    ],
)  # fmt: skip
def test_a_server_is_a_plain_url_which_is_not_repeated_when_it_is_not(url: str):
    with pytest.raises(ValidationError, match="api_base takes a plain URL") as caught:
        RoleModelConfig(model="openai/x", api_base=url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://llm.example.org", "http://[::1]:8000/v1/"])
def test_a_plain_url_is_taken_as_it_is(url: str):
    assert RoleModelConfig(model="openai/x", api_base=url).api_base == url


def test_extra_passes_provider_parameters():
    assert RoleModelConfig(model="openai/x", extra={"reasoning_effort": "low"}).extra == {"reasoning_effort": "low"}


def test_a_server_for_the_rules_backend_is_a_mistake():
    with pytest.raises(ValidationError, match="'rules' is offline but"):
        RoleModelConfig(api_base="http://127.0.0.1:1/v1")


@pytest.mark.parametrize("role", ["explorer", "gate"])
def test_no_language_model_stands_in_for_the_policy_or_the_measurement(role: str):
    with pytest.raises(ValidationError, match=f"roles.{role}.model"):
        RolesConfig.model_validate({role: {"model": "openai/gpt-4o"}})


def test_unknown_settings_are_refused():
    with pytest.raises(ValidationError, match="modle"):
        RoleModelConfig.model_validate({"modle": "openai/x"})


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("agents.llm.config", ("litellm", "torch", "langchain_core")),
        ("agents.llm.structured", ("litellm", "torch")),  # litellm takes seconds: only a call loads it
    ],
)
def test_importing_loads_nothing_heavy(module: str, forbidden: tuple[str, ...]):
    program = f"import sys, {module}; print([name for name in {forbidden!r} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
