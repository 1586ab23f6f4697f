from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_policy import tiny_llama, tiny_tokenizer
from tiny_vision import save_vision_policy, tiny_qwen3_5, tiny_qwen3_vl, vision_tokenizer

from policy.config import HfPolicyConfig, ImageConfig, PocketPolicyConfig
from policy.errors import PolicyLoadError
from policy.load import load_policy, load_vision, pocket_folder, policy_source
from policy.weights import vision_parameters


def save(folder, *, template=True):
    tokenizer = tiny_tokenizer()
    if not template:
        tokenizer.chat_template = None
    model = tiny_llama(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def test_half_precision_files_load_as_fp32_with_left_padding(tmp_path):
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    model, tokenizer = load_policy(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert tokenizer.padding_side == "left" and not model.training
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_policy_without_a_chat_template_is_refused(tmp_path):
    save(tmp_path, template=False)
    with pytest.raises(PolicyLoadError, match="no chat template"):
        load_policy(tmp_path)


def test_an_empty_folder_is_refused_by_name(tmp_path):
    with pytest.raises(PolicyLoadError, match=str(tmp_path)):
        load_policy(tmp_path)


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_torn_weights_are_refused_by_name(tmp_path, size):
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(PolicyLoadError, match=str(tmp_path)):
        load_policy(tmp_path)


def test_weights_of_another_shape_than_the_config_says_are_refused(tmp_path):
    save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"intermediate_size": 64', '"intermediate_size": 48'))
    with pytest.raises(PolicyLoadError, match=str(tmp_path)):
        load_policy(tmp_path)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_with_both_numbers(tmp_path):
    tokenizer = tiny_tokenizer()
    known = tokenizer.vocab_size  # beside it stand added tokens, which may never come up
    model = tiny_llama(tokenizer)
    model.resize_token_embeddings(known - 20)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(PolicyLoadError, match=f"{known} tokens and the model has embeddings for {known - 20}"):
        load_policy(tmp_path)


def test_a_chat_template_that_cannot_be_rendered_is_refused(tmp_path):
    save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for x in %}")
    with pytest.raises(PolicyLoadError, match="TemplateSyntaxError"):
        load_policy(tmp_path)


def test_configs_name_their_source():
    assert policy_source(HfPolicyConfig(type="hf", model="some/model")) == "some/model"
    assert policy_source(PocketPolicyConfig()) == str(pocket_folder())


@pytest.mark.skipif(not (pocket_folder() / "config.json").exists(), reason="the pocket weights are not built yet")
def test_the_packaged_policy_loads_by_name_and_is_small():
    model, tokenizer = load_policy("pocket")
    assert sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000
    assert sum(path.stat().st_size for path in pocket_folder().iterdir()) <= 8_000_000
    assert tokenizer.decode(tokenizer("any text: Zürich, 北京, ☃", add_special_tokens=False)["input_ids"]) != ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_named_before_anything_is_loaded(tmp_path):
    with pytest.raises(PolicyLoadError, match="policy.device is 'cuda'.*set policy.device to cpu"):
        load_policy(tmp_path / "nothing", device="cuda")


def test_a_vision_language_checkpoint_is_loaded_whole_or_as_its_language_model(tmp_path):
    tokenizer = vision_tokenizer()
    model = tiny_qwen3_5(tokenizer)
    save_vision_policy(tmp_path, model, tokenizer)
    whole, text = load_policy(tmp_path, sees=True).model, load_policy(tmp_path).model
    assert vision_parameters(whole) and not vision_parameters(text)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.allclose(whole(input_ids=ids).logits, text(input_ids=ids).logits, atol=1e-5)
        assert torch.allclose(whole(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)


def test_what_cannot_be_loaded_as_asked_is_refused_with_what_to_set(tmp_path):
    tokenizer = vision_tokenizer()
    save_vision_policy(tmp_path / "seeing", tiny_qwen3_vl(tokenizer), tokenizer)
    with pytest.raises(PolicyLoadError, match="vision-language model.*set policy.image"):
        load_policy(tmp_path / "seeing")
    save(tmp_path / "plain")
    with pytest.raises(PolicyLoadError, match="reads text alone; set policy.image to null"):
        load_policy(tmp_path / "plain", sees=True)


def test_a_checkpoint_without_all_weights_is_refused_rather_than_filled_with_random_ones(tmp_path):
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(PolicyLoadError, match="lacks the weights.*model.layers.1.mlp.up_proj.weight"):
        load_policy(tmp_path)


def test_a_vision_policy_without_an_image_processor_is_refused(tmp_path):
    tokenizer = vision_tokenizer()
    save_vision_policy(tmp_path, tiny_qwen3_vl(tokenizer), tokenizer)
    config = HfPolicyConfig(type="hf", model=str(tmp_path), image=ImageConfig(max_pixels=4096))
    reader = load_vision(config, tokenizer)
    assert reader is not None and reader.max_pixels == 4096
    assert load_vision(config.model_copy(update={"image": None}), tokenizer) is None
    assert load_vision(PocketPolicyConfig(), tokenizer) is None
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(PolicyLoadError, match="preprocessor_config.json"):
        load_vision(config, tokenizer)
