"""Load a policy: one path for the packaged pocket weights and for any transformers model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from policy.config import AnyPolicyConfig
from policy.errors import PolicyLoadError


class LoadedPolicy(NamedTuple):
    """A causal language model in fp32 on CPU (or the dtype asked for) and its tokenizer."""

    model: Any
    tokenizer: Any


def pocket_folder() -> Path:
    """The packaged folder of the pocket policy's weights and tokenizer."""
    return Path(str(files("policy.pocket") / "weights"))


def policy_source(config: AnyPolicyConfig) -> str:
    """Directory or hub id that a configuration names."""
    return str(pocket_folder()) if config.type == "pocket" else config.model


def load_policy(
    path: str | Path, *, revision: str | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> LoadedPolicy:
    """Load model and tokenizer from a directory or hub id.

    Args:
        path: directory, hub id, or ``pocket`` for the packaged weights.
        revision: commit of a hub model.
        device: torch device.
        dtype: of the weights; fp32 on CPU, where half precision is slower.

    Raises:
        PolicyLoadError: nothing loadable at ``path``, its tokenizer has no chat template or end token, or the device
            is not there.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise PolicyLoadError(
            f"policy.device is {device!r} and torch {torch.__version__} finds no CUDA device here; "
            "set policy.device to cpu, or install a CUDA build of torch and its driver"
        )
    source = str(pocket_folder()) if str(path) == "pocket" else str(path)
    try:
        with _without_bars():
            tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
            model = AutoModelForCausalLM.from_pretrained(source, revision=revision, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise PolicyLoadError(
            f"cannot load a policy from {source!r}: {error}; "
            "give a directory with config, weights and tokenizer, or a hub id that can be reached"
        ) from error
    check_tokenizer(tokenizer, source)
    model.to(device)
    model.eval()
    return LoadedPolicy(model, tokenizer)


@contextmanager
def _without_bars() -> Iterator[None]:
    """The library draws a progress bar per load; this program shows its own progress."""
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def check_tokenizer(tokenizer: Any, source: str) -> None:
    """Set left padding and refuse a tokenizer that cannot render or end a chat turn."""
    if not getattr(tokenizer, "chat_template", None):
        raise PolicyLoadError(
            f"tokenizer of {source!r} has no chat template; a harness renders to chat messages; use an instruct model"
        )
    if tokenizer.eos_token_id is None:
        raise PolicyLoadError(f"tokenizer of {source!r} has no end-of-text token; completions could never stop")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
