from __future__ import annotations

import hashlib

import pytest
import torch
from PIL import Image
from tiny_vision import PATCH_PIXELS, picture, save_vision_policy, tiny_qwen3_vl, vision_tokenizer

from harness.records import ImageFile, Message
from policy.errors import ImageError
from policy.image_file import open_image
from policy.vision import IMAGE_INPUTS, VisionReader, read_vision, see, text_prefix


@pytest.fixture(scope="module")
def model():
    return tiny_qwen3_vl(vision_tokenizer())


@pytest.fixture(scope="module")
def reader(tmp_path_factory, model) -> VisionReader:
    tokenizer = vision_tokenizer()
    folder = save_vision_policy(tmp_path_factory.mktemp("policy"), model, tokenizer)
    return read_vision(str(folder), model.config, tokenizer, max_pixels=20_000, revision=None)


def message(text: str, *images: ImageFile) -> tuple[Message, ...]:
    return (Message(role="user", content=text, images=images),)


def test_an_image_that_changed_since_the_task_was_made_is_refused(tmp_path):
    file = picture(tmp_path / "a.png", 40, 30)
    assert open_image(file).size == (40, 30)
    picture(tmp_path / "a.png", 40, 30, "blue")
    with pytest.raises(ImageError, match=f"has changed.*{file.sha256[:16]}"):
        open_image(file)
    (tmp_path / "a.png").unlink()
    with pytest.raises(ImageError, match="cannot read image"):
        open_image(file)


def test_only_whole_png_and_jpeg_files_are_opened(tmp_path):
    image = Image.new("RGB", (20, 20), "red")
    for name, works in (("a.jpg", True), ("a.gif", False), ("a.png", False)):
        path = tmp_path / name
        image.save(path)
        if name == "a.png":
            path.write_bytes(path.read_bytes()[:60])
        file = ImageFile(path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        if works:
            assert open_image(file).mode == "RGB"
        else:
            with pytest.raises(ImageError, match="whole PNG or JPEG"):
                open_image(file)


def test_an_image_over_the_budget_is_scaled_down_and_a_small_one_is_left(tmp_path, reader):
    # 400 x 200 = 80,000 pixels are four times 20,000, so sides are halved to 200 x 100 and cut to multiples of 16:
    # 192 x 96 pixels, in patches of 8: 12 rows of 24
    large = reader.inputs((picture(tmp_path / "large.png", 400, 200),))
    assert large["image_grid_thw"].tolist() == [[1, 12, 24]]
    assert large["pixel_values"].shape == (12 * 24, 3 * PATCH_PIXELS * PATCH_PIXELS)
    small = reader.inputs((picture(tmp_path / "small.png", 64, 32),))
    assert small["image_grid_thw"].tolist() == [[1, 4, 8]]


def test_a_prompt_holds_the_placeholders_that_the_models_own_processor_writes(tmp_path, reader):
    file = picture(tmp_path / "a.png", 64, 32)
    ids = reader.encode(message("K01 to K03", file))
    tokenizer = reader.processor.tokenizer
    start, end, placeholder = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"])
    # 4 x 8 patches, 2 x 2 of them to a token
    assert ids[ids.index(start) : ids.index(end) + 1] == [start, *[placeholder] * 8, end]
    text = "<|user|><|vision_start|><|image_pad|><|vision_end|>K01 to K03<|end|><|assistant|>"
    assert ids == reader.processor(images=[open_image(file)], text=[text], add_special_tokens=False)["input_ids"][0]
    assert sum(reader.token_types(ids)) == 8


def test_a_prompt_without_an_image_is_what_the_tokenizer_alone_makes(reader):
    ids = reader.encode(message("K01 to K03"))
    assert ids == reader.processor.tokenizer("<|user|>K01 to K03<|end|><|assistant|>")["input_ids"]


def test_two_images_and_texts_that_write_an_image_token_are_refused(tmp_path, reader):
    file = picture(tmp_path / "a.png", 64, 32)
    with pytest.raises(ImageError, match="one per prompt"):
        reader.encode(message("?", file, picture(tmp_path / "b.png", 64, 32, "blue")))
    with pytest.raises(ImageError, match="2 image tokens .* for 1 images"):
        reader.encode(message("look at <|image_pad|>", file))


def test_an_aspect_ratio_that_the_processor_refuses_is_an_image_error(tmp_path, reader):
    with pytest.raises(ImageError, match="aspect ratio"):
        reader.inputs((picture(tmp_path / "long.png", 2100, 10),))


def test_images_of_a_batch_follow_their_prompts_and_can_be_repeated(tmp_path, reader, model):
    one, two = picture(tmp_path / "a.png", 64, 32), picture(tmp_path / "b.png", 32, 32, "blue")
    prompts = [(reader.encode(message("?", *files)), files) for files in ((one,), (), (two,))]
    seen = see(reader, model, prompts)
    assert seen is not None and seen.counts == (1, 0, 1) and seen.grids.tolist() == [[1, 4, 8], [1, 4, 4]]
    again = seen.repeated([2, 1, 0, 2])
    expected = [reader.inputs((file,)) for file in (two, one, two)]
    for name in IMAGE_INPUTS:
        assert torch.equal(again[name], torch.cat([tensors[name] for tensors in expected]))
    # <|user|><|vision_start|> stand before the first image
    assert text_prefix(prompts, reader) == 2
    assert see(reader, model, prompts[1:2]) is None and see(None, model, prompts) is None


def test_position_ids_run_over_the_rows_and_columns_of_an_image(tmp_path, reader, model):
    file = picture(tmp_path / "a.png", 64, 32)
    ids = reader.encode(message("?", file))
    seen = see(reader, model, [(ids, (file,))])
    assert seen is not None
    # two text tokens, then 2 rows of 4 tokens from place 2 on, then text after the largest place, 2 + 4 - 1
    assert seen.positions[0][0, :12].tolist() == [0, 1, *[2] * 8, 6, 7]
    assert seen.positions[0][1, :12].tolist() == [0, 1, *[2] * 4, *[3] * 4, 6, 7]
    assert seen.positions[0][2, :12].tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7]
    assert seen.last_positions().item() == 6 + len(ids) - 10 - 1
