"""Load a policy: one path for the packaged pocket weights and for any transformers model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging

from policy.config import AnyPolicyConfig, HfPolicyConfig
from policy.errors import PolicyLoadError
from policy.vision import VisionReader, read_vision


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
    path: str | Path,
    *,
    revision: str | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    sees: bool = False,
) -> LoadedPolicy:
    """Load model and tokenizer from a directory or hub id.

    Args:
        path: directory, hub id, or ``pocket`` for the packaged weights.
        revision: commit of a hub model.
        device: torch device.
        dtype: of the weights; fp32 on CPU, where half precision is slower.
        sees: load a vision-language model whole; False takes its language model alone.

    Raises:
        PolicyLoadError: nothing loadable at ``path``, weights are missing there, its tokenizer has no chat template or
            end token, it cannot be loaded with or without vision as asked, or the device is not there.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise PolicyLoadError(
            f"policy.device is {device!r} and torch {torch.__version__} finds no CUDA device here; "
            "set policy.device to cpu, or install a CUDA build of torch and its driver"
        )
    source = str(pocket_folder()) if str(path) == "pocket" else str(path)
    try:
        with without_bars():
            tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
            config = AutoConfig.from_pretrained(source, revision=revision)
            made_by = _model_class(config, source, sees=sees)
            model, report = made_by.from_pretrained(source, revision=revision, dtype=dtype, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise PolicyLoadError(
            f"cannot load a policy from {source!r}: {error}; "
            "give a directory with config, weights and tokenizer, or a hub id that can be reached"
        ) from error
    if report["missing_keys"]:
        raise PolicyLoadError(
            f"{source!r} lacks the weights {sorted(report['missing_keys'])[:3]}; they would be random; "
            "give a checkpoint that is whole"
        )
    check_tokenizer(tokenizer, source)
    rows = model.get_input_embeddings().num_embeddings
    needed = max(tokenizer.vocab_size, tokenizer.eos_token_id + 1, tokenizer.pad_token_id + 1)
    if needed > rows:  # tokens added beyond these may never come up
        raise PolicyLoadError(
            f"tokenizer of {source!r} knows {needed} tokens and the model has embeddings for {rows}; "
            "give the tokenizer that the model was trained with"
        )
    model.to(device)
    model.eval()
    return LoadedPolicy(model, tokenizer)


def load_vision(config: AnyPolicyConfig, tokenizer: Any) -> VisionReader | None:
    """What turns task images into the policy's inputs; None for a policy that sees text alone.

    Raises:
        PolicyLoadError: the checkpoint holds no image processor that is known here.
    """
    if not isinstance(config, HfPolicyConfig) or config.image is None:
        return None
    try:
        found = AutoConfig.from_pretrained(config.model, revision=config.revision)
        return read_vision(config.model, found, tokenizer, max_pixels=config.image.max_pixels, revision=config.revision)
    except (OSError, ValueError, KeyError) as error:
        raise PolicyLoadError(
            f"cannot load the image processor of {config.model!r}: {error}; "
            "give a vision-language checkpoint with its preprocessor_config.json, or set policy.image to null"
        ) from error


def _model_class(config: Any, source: str, *, sees: bool) -> Any:
    """The loader that fits an architecture and the wish to see."""
    has_vision = getattr(config, "vision_config", None) is not None
    if sees and not has_vision:
        raise PolicyLoadError(
            f"policy.image is set and {source!r} ({config.model_type}) reads text alone; set policy.image to null, or "
            "name a vision-language model"
        )
    if sees:
        return AutoModelForImageTextToText
    if has_vision and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise PolicyLoadError(
            f"{source!r} ({config.model_type}) is a vision-language model that this library does not load without "
            "its vision part; set policy.image, for example to {max_pixels: 1000000}; text-only tasks work then too"
        )
    return AutoModelForCausalLM


@contextmanager
def without_bars() -> Iterator[None]:
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
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise PolicyLoadError(
            f"chat template of {source!r} cannot render a user message: {type(error).__name__}: {error}; mend it"
        ) from error
    if tokenizer.eos_token_id is None:
        raise PolicyLoadError(f"tokenizer of {source!r} has no end-of-text token; completions could never stop")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
