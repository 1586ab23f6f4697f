"""Count a model's parameters on the meta device: the real architecture, without memory and without weights."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from policy.config import LoraConfig
from policy.errors import PolicyLoadError
from policy.footprint import ModelSize

VISION_WORDS = ("visual", "vision_tower", "vision_model", "multi_modal_projector")
"""Parts of a module's path that belong to what turns pixels into tokens."""
HEAD = "lm_head"


def architecture_file(name: str) -> Path:
    """An architecture by name (a file of this package), or by path."""
    packaged = Path(str(files("policy") / "architectures" / f"{name}.json"))
    return packaged if packaged.is_file() else Path(name)


def measure_architecture(source: str | Path, lora: LoraConfig | None, *, sees: bool = True) -> ModelSize:
    """Build an architecture on the meta device and count it.

    Args:
        source: name or path of a ``config.json``, or a folder with one.
        lora: adapters to train; None trains all weights.
        sees: count a vision-language model whole; False counts its language model alone, as it is loaded for text.

    Raises:
        PolicyLoadError: there is no such file, or the library knows no such model.
    """
    path = architecture_file(str(source))
    path = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        config = AutoConfig.for_model(raw.pop("model_type"), **raw)
        with torch.device("meta"):
            model = _build(config if sees else config.get_text_config())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise PolicyLoadError(
            f"cannot plan with the architecture {str(source)!r}: {type(error).__name__}: {error}; "
            "give a model's config.json, its folder, or one of the packaged names"
        ) from error
    model.tie_weights()
    return _size(model, config, lora)


def _build(config: Any) -> Any:
    builder = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    return builder.from_config(config)


def _size(model: Any, config: Any, lora: LoraConfig | None) -> ModelSize:
    text = config.get_text_config()
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    total, vision = sum(counts.values()), sum(count for name, count in counts.items() if is_vision(name))
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    language = {name: module for name, module in linear.items() if not is_vision(name)}
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    linear_layers = sum(kind == "linear_attention" for kind in kinds)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return ModelSize(
        model_type=config.model_type,
        parameters=total,
        vision=vision,
        trainable=total if lora is None else adapter_parameters(language, lora),
        matrix=sum(module.weight.numel() for module in language.values()),
        layers=text.num_hidden_layers,
        cached_layers=text.num_hidden_layers - linear_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        key_value_width=heads * head_dim,
        state_elements=linear_layers * _state_elements(text) if linear_layers else 0,
    )


def is_vision(name: str) -> bool:
    """Whether a parameter or module belongs to the vision tower or its projector."""
    return any(word in name.split(".") for word in VISION_WORDS)


def adapter_parameters(linear: dict[str, Any], lora: LoraConfig) -> int:
    """Parameters of adapters on linear layers: ``r`` times inputs plus outputs of each.

    Args:
        linear: the language model's linear layers by path; the head gets no adapter.
        lora: its targets are the last parts of paths; empty takes every layer.
    """
    chosen = [
        module
        for name, module in linear.items()
        if name.split(".")[-1] != HEAD and (not lora.targets or name.split(".")[-1] in lora.targets)
    ]
    return sum(lora.r * (module.in_features + module.out_features) for module in chosen)


def _state_elements(text: Any) -> int:
    """Of one linear-attention layer and sequence: a key by value matrix per head, and the convolution's window."""
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    matrix = text.linear_num_value_heads * text.linear_key_head_dim * text.linear_value_head_dim
    return int(matrix + (2 * keys + values) * (text.linear_conv_kernel_dim - 1))
