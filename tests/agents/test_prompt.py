"""Every shipped prompt fills from exactly its placeholders."""

import pytest

from agents.prompt import fill_prompt, read_prompt
from harness.render import placeholders

PROMPTS = {
    "diagnoser": {"harness", "errors"},
    "proposer": {"harness", "findings", "history", "limits"},
    "selector": {"pairs"},
    "teacher": {"prompt", "style"},
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_holds_its_placeholders_and_fills(name):
    assert set(placeholders(read_prompt(name))) == PROMPTS[name]
    system, user = fill_prompt(name, **{key: f"<{key}>" for key in PROMPTS[name]})
    assert (system.role, user.role) == ("system", "user")
    assert all(f"<{key}>" in system.content + user.content for key in PROMPTS[name])


def test_a_missing_and_an_unused_value_are_refused():
    with pytest.raises(ValueError, match=r"got values \[\]; expected \['pairs'\]"):
        fill_prompt("selector")
    with pytest.raises(ValueError, match="expected"):
        fill_prompt("selector", pairs="x", extra="y")


def test_values_are_never_scanned_for_placeholders():
    assert fill_prompt("selector", pairs="{harness} {pairs}")[1].content.endswith("{harness} {pairs}")
