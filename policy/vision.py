"""What a vision-language policy sees: opening task images, prompts with image tokens, tensors for the model.

The prompt's token ids hold one placeholder per visual token, exactly as the model's own processor expands
them; these ids are sampled from, recorded and trained on. Pixels are never stored: they are read again
from the file, whose hash must still be the one that the task names.
Images go through the library's PIL backend everywhere, so a machine with torchvision sees the same pixels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.records import ImageFile, Message
from policy.errors import ImageError, PolicyLoadError
from policy.image_file import open_image

KEPT_IMAGES = 16
"""Processed images held in memory; the rollouts and the updates of a step read the same ones."""
IMAGE_INPUTS = ("pixel_values", "image_grid_thw")
"""What the models take: patches of all images, (patches, values), and per image its grid, (images, 3)."""


@dataclass(frozen=True)
class VisionReader:
    """Turns messages with images into what one model takes."""

    processor: Any
    """The model's own processor: image processor and tokenizer; videos are not read."""
    max_pixels: int
    _kept: OrderedDict[str, dict[str, Tensor]] = field(default_factory=OrderedDict, repr=False, compare=False)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a prompt, image tokens expanded, generation prompt included.

        Raises:
            ImageError: more than one image, an image that cannot be used, or a text that writes an image token.
        """
        return self.encode_text(chat_text(self.processor.tokenizer, messages), prompt_images(messages))

    def encode_text(self, text: str, images: tuple[ImageFile, ...]) -> list[int]:
        """Token ids of a rendered text whose placeholders stand for ``images``."""
        written = text.count(self.processor.image_token)
        if written != len(images):
            raise ImageError(
                f"the rendered prompt holds {written} image tokens {self.processor.image_token!r} for {len(images)} "
                "images; a chat template must place every image, and no text may write the token"
            )
        if images:
            sizes = self.inputs(images)
            text = text.replace(self.processor.image_token, self.processor.replace_image_token(sizes, 0))
        ids: list[int] = self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def inputs(self, images: tuple[ImageFile, ...]) -> dict[str, Tensor]:
        """Tensors of a prompt's images by argument name; the first axis joins images.

        Raises:
            ImageError: more than one image, or one that cannot be used.
        """
        if not images:
            return {}
        if len(images) > 1:
            raise ImageError(f"a prompt shows {len(images)} images; a vision policy takes one per prompt; join them")
        file = images[0]
        kept = self._kept.pop(file.sha256, None) or self._process(file)
        self._kept[file.sha256] = kept
        while len(self._kept) > KEPT_IMAGES:
            self._kept.popitem(last=False)
        return kept

    def token_types(self, token_ids: Sequence[int]) -> list[int]:
        """Per token: 1 where it stands for a piece of the image, else 0."""
        placeholders = set(self.processor.image_token_ids)
        return [int(token in placeholders) for token in token_ids]

    def _process(self, file: ImageFile) -> dict[str, Tensor]:
        processor = self.processor.image_processor
        longest = min(self.max_pixels, int(processor.size.longest_edge))
        size = {"shortest_edge": min(int(processor.size.shortest_edge), longest), "longest_edge": longest}
        try:
            made = processor([open_image(file)], size=size, return_tensors="pt")
        except ValueError as error:  # an aspect ratio that the processor refuses
            raise ImageError(f"cannot process image {file.path}: {error}; crop or pad it") from error
        return {name: made[name] for name in IMAGE_INPUTS}


def prompt_images(messages: Sequence[Message]) -> tuple[ImageFile, ...]:
    """All images of a conversation, in order."""
    return tuple(image for message in messages for image in message.images)


def chat_text(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """A conversation in the tokenizer's chat template; a message's images stand before its text.

    Native thinking is off: templates that know ``enable_thinking`` are told so, others ignore it.
    """
    chat = [_with_images(message) if message.images else message.as_chat() for message in messages]
    text: str = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=add_generation_prompt, enable_thinking=False
    )
    return text


def _with_images(message: Message) -> dict[str, Any]:
    parts: list[dict[str, str]] = [{"type": "image"} for _ in message.images]
    return {"role": message.role, "content": [*parts, {"type": "text", "text": message.content}]}


def read_vision(source: str, config: Any, tokenizer: Any, *, max_pixels: int, revision: str | None) -> VisionReader:
    """The processor of a checkpoint, without its video part, which would need torchvision.

    Args:
        source: directory or hub id.
        config: of the model.
        tokenizer: of the policy.
        max_pixels: budget of one image.
        revision: commit of a hub model.

    Raises:
        PolicyLoadError: the architecture reads no images, or reads them in a way that is not known here.
    """
    from transformers import AutoImageProcessor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    if type(config) not in PROCESSOR_MAPPING:
        raise PolicyLoadError(f"{source!r} ({config.model_type}) has no image processor in this library")
    made_by = PROCESSOR_MAPPING[type(config)]

    class ImageTextProcessor(made_by):  # type: ignore[misc, valid-type]
        """The architecture's processor; parts that are left out may be None."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return type(argument)

    images = AutoImageProcessor.from_pretrained(source, revision=revision, backend="pil")
    if "image_grid_thw" not in images.model_input_names or not getattr(images.size, "longest_edge", None):
        raise PolicyLoadError(
            f"{source!r} ({config.model_type}) reads images in a way this program does not know; expected patches with "
            "a grid, as in the Qwen-VL families; set policy.image to null to see text alone"
        )
    parts = {"image_processor": images, "tokenizer": tokenizer}
    settings, _ = ImageTextProcessor.get_processor_dict(source, revision=revision)
    arguments = [parts.get(name) for name in ImageTextProcessor.get_attributes()]
    return VisionReader(ImageTextProcessor.from_args_and_dict(arguments, settings), max_pixels)


@dataclass(frozen=True)
class SeenBatch:
    """Images of a batch of distinct prompts, ready for the model."""

    pixel_values: Tensor
    """(patches, values) of all images, in the order of the prompts."""
    grids: Tensor
    """(images, 3), patches of each image as frames, rows, columns."""
    counts: tuple[int, ...]
    """Images of each prompt: 0 or 1."""
    positions: tuple[Tensor, ...]
    """Per prompt its position ids, (3, tokens): those of an image run over its rows and columns."""
    placeholders: tuple[int, ...]
    """Token ids that stand for pieces of an image."""

    @property
    def arguments(self) -> dict[str, Tensor]:
        """What the model takes besides tokens, for one pass over all prompts."""
        return {"pixel_values": self.pixel_values, "image_grid_thw": self.grids}

    def padded_positions(self, start: int, width: int) -> Tensor:
        """(3, prompts, width) position ids of every prompt from token ``start`` on, padded on the left."""
        padded = torch.zeros(3, len(self.positions), width, dtype=torch.long, device=self.grids.device)
        for row, position in enumerate(self.positions):
            own = position[:, start:]
            padded[:, row, width - own.shape[1] :] = own
        return padded

    def last_positions(self) -> Tensor:
        """(prompts, 1) the position that the next token follows: text goes on after the largest of an image."""
        return torch.stack([position.max() for position in self.positions])[:, None]

    def repeated(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """As ``arguments``, for a pass over prompts ``rows``, repeats allowed."""
        pieces = iter(torch.split(self.pixel_values, self.grids.prod(dim=-1).tolist()))
        grids = iter(self.grids)
        images = [(next(pieces), next(grids)) if count else None for count in self.counts]
        wanted = [image for row in rows if (image := images[row]) is not None]
        return {
            "pixel_values": torch.cat([pixels for pixels, _ in wanted]),
            "image_grid_thw": torch.stack([grid for _, grid in wanted]),
        }


def see(
    reader: VisionReader | None,
    model: Any,
    prompts: Sequence[tuple[Sequence[int], tuple[ImageFile, ...]]],
) -> SeenBatch | None:
    """Process the images of distinct prompts; None where the policy sees text alone or no prompt has an image.

    Args:
        reader: of the policy; None for one that sees text alone, to which images are not shown.
        model: whose position ids count, possibly wrapped.
        prompts: token ids and images of each.

    Raises:
        ImageError: an image cannot be used any more, or is not the one that the ids were made with.
    """
    if reader is None or not any(images for _, images in prompts):
        return None
    inputs = [reader.inputs(images) for _, images in prompts]
    rope_index = base_model(model).get_rope_index
    positions = [
        _positions(rope_index, ids, reader.token_types(ids), tensors)
        for (ids, _), tensors in zip(prompts, inputs, strict=True)
    ]
    shown = [tensors for tensors in inputs if tensors]
    device = model.device
    return SeenBatch(
        pixel_values=torch.cat([tensors["pixel_values"] for tensors in shown]).to(device),
        grids=torch.cat([tensors["image_grid_thw"] for tensors in shown]).to(device),
        counts=tuple(len(images) for _, images in prompts),
        positions=tuple(position.to(device) for position in positions),
        placeholders=tuple(reader.processor.image_token_ids),
    )


def _positions(rope_index: Any, ids: Sequence[int], types: Sequence[int], tensors: Mapping[str, Tensor]) -> Tensor:
    if not tensors:
        return torch.arange(len(ids))[None].expand(3, -1)
    found: Tensor = rope_index(
        torch.tensor([list(ids)]),
        mm_token_type_ids=torch.tensor([list(types)]),
        image_grid_thw=tensors["image_grid_thw"],
    )[0]
    return found[:, 0]


def text_prefix(prompts: Sequence[tuple[Sequence[int], tuple[ImageFile, ...]]], reader: VisionReader | None) -> int:
    """How many leading tokens of every prompt are text: what stands before any image may be shared."""
    if reader is None:
        return min(len(ids) for ids, _ in prompts)
    return min([*reader.token_types(ids), 1].index(1) for ids, _ in prompts)


@dataclass(frozen=True)
class Viewer:
    """A reader and the model that it reads for: what training needs to show recorded images again."""

    reader: VisionReader
    model: Any

    def see(self, prompts: Sequence[tuple[Sequence[int], tuple[ImageFile, ...]]]) -> SeenBatch | None:
        """As :func:`see`."""
        return see(self.reader, self.model, prompts)

    def text_prefix(self, prompts: Sequence[tuple[Sequence[int], tuple[ImageFile, ...]]]) -> int:
        """As :func:`text_prefix`."""
        return text_prefix(prompts, self.reader)


def text_alone(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages as a policy that does not see is shown them."""
    return tuple(message.model_copy(update={"images": ()}) if message.images else message for message in messages)


@contextmanager
def sampled_placeholders(model: Any, is_sampled: Tensor, placeholder: int) -> Iterator[None]:
    """While it lasts, embed the marked tokens of the next passes as image tokens that a policy has sampled.

    A policy may sample an image token: decoding then embeds it as any other token, while a pass over a whole sample
    would take it for a piece of the image. Such a pass is given another id there, and this puts the embedding right.

    Args:
        model: possibly wrapped.
        is_sampled: (rows, tokens) bool, where a token was sampled as a placeholder.
        placeholder: its id.
    """

    def restore(module: Any, arguments: Any, output: Tensor) -> Tensor:
        return torch.where(is_sampled[..., None], module.weight[placeholder].to(output.dtype), output)

    handle = base_model(model).get_input_embeddings().register_forward_hook(restore)
    try:
        yield
    finally:
        handle.remove()


def base_model(model: Any) -> Any:
    """The headless model inside a causal model, under adapters and a distributed wrapper or not."""
    inner = getattr(model, "module", model)
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    return inner.base_model
