"""A fresh store per test and small real records."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.model import Harness, Protocol
from memory.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def harness() -> Harness:
    return Harness(family="metro", input_template="{question}", output_contract="Answer with the route.")


@pytest.fixture
def candidate(harness: Harness) -> Harness:
    return harness.model_copy(update={"protocol": Protocol(execution="Go hop by hop.")})
