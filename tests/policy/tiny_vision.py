"""Tiny random policies that see: current architectures, with a tokenizer and a processor built on the spot."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from tiny_policy import tiny_tokenizer
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from harness.records import ImageFile

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
VISION_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PATCH_PIXELS = 8
"""Side of a vision patch; two by two patches make one token."""


def vision_tokenizer() -> PreTrainedTokenizerFast:
    made = tiny_tokenizer()
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in VISION_TOKENS], special_tokens=True)
    made.chat_template = VISION_TEMPLATE
    return made


def _text(tokenizer: Any, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,
        **more,
    }


def _vision() -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": PATCH_PIXELS,
        "temporal_patch_size": 1,
        "spatial_merge_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "initializer_range": 0.2,
    }


def _ids(tokenizer: Any) -> dict[str, int]:
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return dict(zip(names, tokenizer.convert_tokens_to_ids(list(VISION_TOKENS)), strict=True))


def _hybrid(tokenizer: Any) -> dict[str, Any]:
    return _text(
        tokenizer,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )


def tiny_qwen3_vl(tokenizer: Any, *, seed: int = 0) -> Any:
    """Full attention, deepstack, interleaved M-RoPE."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config=_text(tokenizer, num_hidden_layers=2, rope_parameters=rope),
        vision_config={**_vision(), "deepstack_visual_indexes": [0]},
        tie_word_embeddings=True,
        **_ids(tokenizer),
    )
    torch.manual_seed(seed)
    return Qwen3VLForConditionalGeneration(config).eval()


def tiny_qwen3_5(tokenizer: Any, *, seed: int = 0) -> Any:
    """Gated delta-rule layers among full attention, seeing."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    config = Qwen3_5Config(text_config=_hybrid(tokenizer), vision_config=_vision(), **_ids(tokenizer))
    torch.manual_seed(seed)
    return Qwen3_5ForConditionalGeneration(config).eval()


def tiny_qwen3_5_text(tokenizer: Any, *, seed: int = 0) -> Any:
    """The language model of the same architecture alone."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(seed)
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**_hybrid(tokenizer))).eval()


def tiny_qwen2_5_vl(tokenizer: Any, *, seed: int = 0) -> Any:
    """The names of its vision tower's layers are those of its language model's."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = _text(tokenizer, num_hidden_layers=2)
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    vision = {**_vision(), "window_size": 4 * PATCH_PIXELS, "fullatt_block_indexes": [1]}
    vision.pop("num_position_embeddings")
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **_ids(tokenizer))
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def save_vision_policy(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Model, tokenizer and image processor as a checkpoint folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    side = 2 * PATCH_PIXELS
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH_PIXELS,
        temporal_patch_size=1,
        merge_size=2,
        size={"shortest_edge": side * side, "longest_edge": 4096 * side * side},
    )
    settings = {**json.loads(processor.to_json_string()), "image_processor_type": "Qwen2VLImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def picture(path: Path, width: int, height: int, colour: str = "red") -> ImageFile:
    """A drawn PNG file and its record."""
    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).line([(2, 2), (width - 3, height - 3)], fill=colour, width=4)
    image.save(path)
    return ImageFile(path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())
