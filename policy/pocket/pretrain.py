"""Train the pocket policy from scratch: ``python -m policy.pocket.pretrain --out DIR``.

Recipe: a Llama of about 1.1 M parameters, loss on completions, Muon for weight matrices and AdamW
for embeddings and norms, an auxiliary copy task that fades out. One seed decides everything; the
bound is a step count, so a run is reproducible. Two processes of one thread each share every batch: on
two cores that is several times faster than one process of two threads. Resumable: the same command
goes on from the last state (every 200 steps).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from evals.suites.metro import suite_fingerprints
from policy.pocket.corpus import Example, draw_example
from policy.pocket.muon import Muon
from policy.pocket.tokenizer import train_tokenizer

TRAINING_SEED_RANGE = range(700_000_000, 800_000_000)
"""Seeds of training draws; suites draw from other ranges and their maps are refused besides."""


STATE_FILE = "training_state.safetensors"
HELD_OUT_SUITE_SEEDS = range(5)
"""Suites whose maps never enter training; the shipped configurations use these seeds."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    steps: int = 3000
    batch_size: int = 64
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    intermediate: int = 384
    embedding_std: float = 0.09
    matrix_std: float = 0.04
    lr_matrix: float = 3.5e-3
    lr_other: float = 1e-3
    warmup_steps: int = 50
    decay_share: float = 0.3
    repeat_steps: int = 300
    """Steps on rows to write again; cheap, and the look-up circuit forms here."""
    plain_steps: int = 1500
    """Steps up to which tasks come under a bare protocol; whole harnesses follow."""
    vocabulary_size: int = 2048
    seed: int = 0
    threads: int = 1
    """Per process; small kernels gain nothing from a second thread."""

    def shares(self, step: int) -> dict[str, float]:
        """Kinds of samples at a step."""
        if step < self.repeat_steps:
            return {"repeat": 0.8, "listing": 0.2}
        if step < self.plain_steps:
            return {"repeat": 0.1, "listing": max(0.1, 0.5 - 0.4 * step / self.plain_steps), "plain": 0.5}
        return {"listing": 0.05, "plain": 0.25, "harness": 0.7}


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
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, recipe.embedding_std if "embed" in name else recipe.matrix_std)
    return model


def example_text(tokenizer: PreTrainedTokenizerFast, example: Example) -> tuple[str, str]:
    """Prompt and completion texts of a sample, the completion closed by the end token."""
    messages = [message.as_chat() for message in example.messages]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return prompt, example.completion + tokenizer.eos_token


def draw_batch(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, step: int, held_out: frozenset[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the samples of one step: token ids and labels, both (batch, length); -100 is ignored."""
    rng = random.Random(TRAINING_SEED_RANGE.start + recipe.seed * 1_000_000 + step)
    shares = recipe.shares(step)
    examples: list[Example] = []
    while len(examples) < recipe.batch_size:
        example = draw_example(shares, rng)
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


def sum_gradients(model: LlamaForCausalLM, world: int) -> None:
    """Add up the gradients of all processes; each saw its share of the batch."""
    if world == 1:
        return
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    torch.distributed.all_reduce(flat)
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def token_accuracy(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of completion tokens that the model ranks first."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    chosen = targets != -100
    return float((model.lm_head(hidden[chosen]).argmax(-1) == targets[chosen]).float().mean())


def learning_rate_scale(recipe: Recipe, step: int) -> float:
    """Linear warmup, constant, then linear decay to zero over the last ``decay_share`` of the steps."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    return min(1.0, (recipe.steps - step) / (recipe.decay_share * recipe.steps))


def build_optimizers(recipe: Recipe, model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    matrices = [
        p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "lm_head" not in name
    ]
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
        example = draw_example({"harness": 1.0}, rng)
        texts += [message.content for message in example.messages]
        texts.append(example.completion)
    return texts


@dataclass
class Session:
    """A training run in one of ``world`` processes; every process holds the same weights."""

    recipe: Recipe
    out: Path
    tokenizer: PreTrainedTokenizerFast
    model: LlamaForCausalLM
    optimizers: list[torch.optim.Optimizer]
    rank: int
    world: int
    step: int = 0

    def update(self, ids: torch.Tensor, labels: torch.Tensor) -> float:
        """One optimizer update; returns the mean loss over this process's completion tokens."""
        lengths = (ids != self.tokenizer.pad_token_id).sum(1)
        total = int((labels != -100).sum())
        loss_sum = 0.0
        for part in lengths.argsort()[self.rank :: self.world].chunk(4):
            width = int(lengths[part].max())
            piece_ids, piece_labels = ids[part, :width], labels[part, :width]
            share = int((piece_labels != -100).sum()) / total
            loss = completion_loss(self.model, piece_ids, piece_labels) * share
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
        sum_gradients(self.model, self.world)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        scale = learning_rate_scale(self.recipe, self.step)
        rates = (self.recipe.lr_matrix, self.recipe.lr_other)
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss_sum * self.world

    def save(self) -> None:
        """Write the resumable state and, beside it, the weights so far; atomic."""
        tensors = {
            f"model.{name}": value for name, value in self.model.state_dict().items() if name != "lm_head.weight"
        }
        for number, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{number}.{index}.{key}": value for key, value in state.items()}
        file = self.out / STATE_FILE
        scratch = file.with_suffix(".tmp")
        save_file({name: value.contiguous() for name, value in tensors.items()}, scratch, {"step": str(self.step)})
        scratch.replace(file)
        self.model.save_pretrained(self.out)

    def restore(self) -> None:
        """Take up the saved state, where there is one."""
        file = self.out / STATE_FILE
        if not file.exists():
            return
        with safe_open(file, framework="pt") as stored:
            self.step = int(stored.metadata()["step"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        self.model.load_state_dict(weights, strict=False)
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, torch.Tensor]] = {}
            for name, value in tensors.items():
                kind, *rest = name.split(".")
                if kind == "optimizer" and rest[0] == str(number):
                    state.setdefault(int(rest[1]), {})[rest[2]] = value
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

    def export(self) -> None:
        """Write the shipped folder: fp16 weights, tokenizer and recipe."""
        folder = self.out / "fp16"
        self.model.half().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / "recipe.json").write_text(json.dumps(asdict(self.recipe), indent=2) + "\n", encoding="utf-8")


def open_session(recipe: Recipe, out: Path) -> Session:
    """Join the processes, build or resume the run."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        torch.distributed.init_process_group("gloo")
    torch.set_num_threads(recipe.threads)
    transformers_logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(tokenizer_texts(recipe), vocabulary_size=recipe.vocabulary_size)
    model = build_model(recipe, tokenizer)
    session = Session(recipe, out, tokenizer, model, build_optimizers(recipe, model), rank, world)
    session.restore()
    return session


def train(recipe: Recipe, out: Path, *, held_out: frozenset[str], log_every: int = 50, save_every: int = 200) -> None:
    """Train and write weights, tokenizer and ``recipe.json`` under ``out/fp16``.

    Args:
        recipe: everything that decides the weights.
        out: folder of the run; an interrupted run in it is resumed.
        held_out: fingerprints of maps that must not be drawn.
        log_every: steps between log lines.
        save_every: steps between resumable states.
    """
    session = open_session(recipe, out)
    started, first, losses = time.monotonic(), session.step, []
    session.model.train()
    while session.step < recipe.steps:
        ids, labels = draw_batch(recipe, session.tokenizer, session.step, held_out)
        losses.append(session.update(ids, labels))
        if session.rank:
            continue
        if session.step % log_every == 0:
            accuracy = token_accuracy(session.model, ids, labels)
            rate = (session.step - first) / (time.monotonic() - started)
            mean = sum(losses[-log_every:]) / len(losses[-log_every:])
            print(f"step {session.step} loss {mean:.4f} accuracy {accuracy:.3f} {rate:.2f} steps/s", flush=True)
        if session.step % save_every == 0 or session.step == recipe.steps:
            session.save()
    if session.rank == 0:
        session.export()


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run ``count`` processes of this module, each on a core of its own; returns the first non-zero exit code."""
    cores = sorted(os.sched_getaffinity(0))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    processes = []
    for rank in range(count):
        environment = {**shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "policy.pocket.pretrain", *arguments]
        processes.append(subprocess.Popen(command, env=environment))
        os.sched_setaffinity(processes[-1].pid, {cores[rank % len(cores)]})
    return next((code for process in processes if (code := process.wait())), 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; the same command resumes it")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--plain-steps", type=int, default=Recipe.plain_steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--processes", type=int, default=2, help="data-parallel processes, one core each")
    options = parser.parse_args(words)
    if options.processes > 1 and "RANK" not in os.environ:
        raise SystemExit(launch(options.processes, words))
    recipe = Recipe(steps=options.steps, plain_steps=options.plain_steps, seed=options.seed)
    held_out = suite_fingerprints("pocket", HELD_OUT_SUITE_SEEDS, counts={"val": 3000, "test": 1000})
    train(recipe, options.out, held_out=held_out)


if __name__ == "__main__":
    main()
