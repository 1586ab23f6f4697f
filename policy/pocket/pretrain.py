"""Train the pocket policy from scratch: ``python -m policy.pocket.pretrain --out DIR``.

Recipe: a Llama of about 1.1 M parameters, loss on completions, Muon for weight matrices and AdamW
for embeddings and norms, an auxiliary copy task that fades out. One seed decides everything; the
wall-clock bound is a step count, so a run is reproducible. Resumable: a checkpoint every
``--save-every`` steps is picked up by the same command.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from policy.pocket.corpus import COPY_STEPS, Example, draw_example
from policy.pocket.muon import Muon
from policy.pocket.tokenizer import train_tokenizer

TRAINING_SEED_RANGE = range(700_000_000, 800_000_000)
"""Seeds of training draws; suites draw from other ranges and their maps are refused besides."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    steps: int = 2600
    batch_size: int = 64
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    intermediate: int = 384
    lr_matrix: float = 4e-3
    lr_other: float = 3e-3
    warmup_steps: int = 100
    vocabulary_size: int = 2048
    seed: int = 0
    threads: int = 2


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A fresh Llama of the recipe's size."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.02,
    )
    return LlamaForCausalLM(config)


def example_text(tokenizer: PreTrainedTokenizerFast, example: Example) -> tuple[str, str]:
    """Prompt and completion texts of a sample, the completion closed by the end token."""
    messages = [message.model_dump() for message in example.messages]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return prompt, example.completion + tokenizer.eos_token


def draw_batch(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, step: int, held_out: frozenset[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the samples of one step: token ids and labels, both (batch, length); -100 is ignored."""
    rng = random.Random(TRAINING_SEED_RANGE.start + recipe.seed * 1_000_000 + step)
    copy_share = max(0.0, 0.6 * (1 - step / COPY_STEPS))
    examples: list[Example] = []
    while len(examples) < recipe.batch_size:
        example = draw_example(rng, copy_share=copy_share)
        if example.fingerprint not in held_out:
            examples.append(example)
    texts = [example_text(tokenizer, example) for example in examples]
    prompts = tokenizer([prompt for prompt, _ in texts], add_special_tokens=False)["input_ids"]
    answers = tokenizer([answer for _, answer in texts], add_special_tokens=False)["input_ids"]
    length = max(len(one) + len(two) for one, two in zip(prompts, answers, strict=True))
    ids = torch.full((len(texts), length), tokenizer.pad_token_id)
    labels = torch.full((len(texts), length), -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def completion_loss(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over completion tokens; logits are computed for those positions only."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    chosen = targets != -100
    logits = model.lm_head(hidden[chosen])
    return torch.nn.functional.cross_entropy(logits, targets[chosen])


def learning_rate_scale(recipe: Recipe, step: int) -> float:
    """Linear warmup, then cosine to a tenth... of the peak."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))


def build_optimizers(recipe: Recipe, model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name or "lm_head" in name]
    return [
        Muon(matrices, lr=recipe.lr_matrix, weight_decay=0.01),
        torch.optim.AdamW(others, lr=recipe.lr_other, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def tokenizer_texts(recipe: Recipe, count: int = 6000) -> list[str]:
    """Texts that the tokenizer is trained on."""
    rng = random.Random(TRAINING_SEED_RANGE.start + 900_000 + recipe.seed)
    texts: list[str] = []
    for _ in range(count):
        example = draw_example(rng)
        texts += [message.content for message in example.messages]
        texts.append(example.completion)
    return texts


def train(recipe: Recipe, out: Path, *, held_out: frozenset[str], log_every: int = 50, save_every: int = 200) -> None:
    """Train and write weights, tokenizer and ``recipe.json`` under ``out``."""
    torch.set_num_threads(recipe.threads)
    out.mkdir(parents=True, exist_ok=True)
    state_file = out / "training_state.pt"
    if (out / "tokenizer.json").exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    else:
        tokenizer = train_tokenizer(tokenizer_texts(recipe), vocabulary_size=recipe.vocabulary_size)
        tokenizer.save_pretrained(out)
    model = build_model(recipe, tokenizer)
    optimizers = build_optimizers(recipe, model)
    first = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = state["step"]
    base_rates = [[group["lr"] if first == 0 else group["base_lr"] for group in o.param_groups] for o in optimizers]
    for optimizer, rates in zip(optimizers, base_rates, strict=True):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["base_lr"] = rate
    print(f"parameters {sum(p.numel() for p in model.parameters()):,}; vocabulary {len(tokenizer)}", flush=True)
    started, losses = time.monotonic(), []
    model.train()
    for step in range(first, recipe.steps):
        ids, labels = draw_batch(recipe, tokenizer, step, held_out)
        order = (ids != tokenizer.pad_token_id).sum(1).argsort()
        total = int((labels != -100).sum())
        loss_sum = 0.0
        for part in order.chunk(4):
            width = int((ids[part] != tokenizer.pad_token_id).sum(1).max())
            piece_ids, piece_labels = ids[part, :width], labels[part, :width]
            share = int((piece_labels != -100).sum()) / total
            loss = completion_loss(model, piece_ids, piece_labels) * share
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * learning_rate_scale(recipe, step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss_sum)
        if (step + 1) % log_every == 0:
            rate = (step + 1 - first) / (time.monotonic() - started)
            mean = sum(losses[-log_every:]) / len(losses[-log_every:])
            print(f"step {step + 1} loss {mean:.4f} {rate:.2f} steps/s width {ids.shape[1]}", flush=True)
        if (step + 1) % save_every == 0 or step + 1 == recipe.steps:
            state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step + 1}
            torch.save(state, state_file.with_suffix(".tmp"))
            state_file.with_suffix(".tmp").replace(state_file)
            model.save_pretrained(out)
    model.half().save_pretrained(out / "fp16")
    tokenizer.save_pretrained(out / "fp16")
    (out / "fp16" / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    options = parser.parse_args(arguments)
    recipe = Recipe(steps=options.steps, threads=options.threads, seed=options.seed)
    train(recipe, options.out, held_out=frozenset())


if __name__ == "__main__":
    main()
