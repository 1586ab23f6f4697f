"""Tiny real policies for tests: a random Llama and a tokenizer trained on the spot."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from policy.pocket.tokenizer import train_tokenizer


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    made = train_tokenizer(
        ["Find the route. Red+ : K01 K02 K03 ; question: K01 to K03", "<response>K01-K02</response> yes no maybe"],
        vocabulary_size=300,
    )
    made.padding_side = "left"
    return made


def tiny_llama(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, context: int = 512) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval()
