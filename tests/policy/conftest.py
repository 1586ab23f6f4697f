"""Fixtures shared by the policy tests."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from tiny_policy import tiny_llama, tiny_tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture
def llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return tiny_llama(tokenizer)
