"""Rollouts and log-probabilities of policies that see, against the models' own whole forward passes."""

from __future__ import annotations

import pytest
import torch
from tiny_vision import (
    picture,
    save_vision_policy,
    tiny_qwen2_5_vl,
    tiny_qwen3_5,
    tiny_qwen3_5_text,
    tiny_qwen3_vl,
    vision_tokenizer,
)

from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy import likelihood
from policy.engines.decode import Batch
from policy.engines.transformers_engine import TransformersEngine
from policy.likelihood import completion_likelihood, token_batch
from policy.vision import Viewer, prompt_images, read_vision, see

SEEING = {"qwen3_vl": tiny_qwen3_vl, "qwen3_5": tiny_qwen3_5, "qwen2_5_vl": tiny_qwen2_5_vl}
TEMPERATURE = 0.9
SAMPLING = Sampling(temperature=TEMPERATURE, max_tokens=10, seed=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    return {
        "red": picture(folder / "red.png", 70, 50),
        "blue": picture(folder / "blue.png", 70, 50, "blue"),
        "wide": picture(folder / "wide.png", 120, 40, "green"),
    }


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Engines by architecture, each made once."""
    made: dict[str, TransformersEngine] = {}

    def engine(name: str) -> TransformersEngine:
        if name not in made:
            tokenizer = vision_tokenizer()
            model = {**SEEING, "qwen3_5_text": tiny_qwen3_5_text}[name](tokenizer)
            reader = None
            if name in SEEING:
                folder = save_vision_policy(tmp_path_factory.mktemp("policy"), model, tokenizer)
                reader = read_vision(str(folder), model.config, tokenizer, max_pixels=5000, revision=None)
            made[name] = TransformersEngine(model, tokenizer, "p", 4, vision=reader)
        return made[name]

    return engine


@pytest.fixture(params=[*SEEING, "qwen3_5_text"])
def engine(request, engines) -> TransformersEngine:
    return engines(request.param)


@pytest.fixture(params=[*SEEING])
def seeing(request, engines) -> TransformersEngine:
    return engines(request.param)


def prompts(engine, images) -> list[Prompt]:
    """Groups of one prompt, two images of one size, another size, and no image, of several lengths."""

    def prompt(text: str, seed: int, *names: str) -> Prompt:
        shown = tuple(images[name] for name in names) if engine.vision is not None else ()
        system = Message(role="system", content="Find the shortest route on the map and answer as asked. ")
        return Prompt(messages=(system, Message(role="user", content=text, images=shown)), seed=seed)

    groups = [prompt("K01 to K03", seed, "red") for seed in range(3)]
    groups += [prompt("K01 to K03", seed, "blue") for seed in range(3)]
    return [*groups, prompt("a longer question about K02", 7, "wide"), prompt("none to see", 8)]


def whole_forward(engine, prompt, answer) -> torch.Tensor:
    """Log-probabilities of the completion by the model itself: processor, position ids and all."""
    ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
    shown = prompt_images(prompt.messages)
    inputs = {}
    if shown:
        types = torch.tensor([engine.vision.token_types(ids[0].tolist())])
        inputs = {**engine.vision.inputs(shown), "mm_token_type_ids": types}
    with torch.no_grad():
        logits = engine.model(input_ids=ids, **inputs).logits[0] / TEMPERATURE
    start = len(answer.prompt_token_ids)
    return torch.log_softmax(logits, dim=-1)[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]


def batch_of(engine, asked, answers):
    viewer = Viewer(engine.vision, engine.model) if engine.vision is not None else None
    return token_batch(
        [answer.prompt_token_ids for answer in answers],
        [answer.token_ids for answer in answers],
        pad_token_id=engine.tokenizer.pad_token_id,
        images=[prompt_images(prompt.messages) for prompt in asked],
        viewer=viewer,
    )


def test_engine_likelihood_and_the_models_own_pass_agree(engine, images):
    asked = prompts(engine, images)
    answers = engine.generate(asked, SAMPLING)
    assert [answer.error for answer in answers] == [""] * len(asked)
    scores = completion_likelihood(engine.model, batch_of(engine, asked, answers), temperature=TEMPERATURE)
    special = engine.tokenizer.convert_tokens_to_ids("<|vision_start|>")
    compared = 0
    for row, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
        sampled = torch.tensor(answer.log_probabilities)
        assert torch.allclose(scores.log_probabilities[row, : len(sampled)], sampled, atol=1e-4)
        if max(answer.token_ids) < special:  # the model's own pass would take a sampled image token for an image
            assert torch.allclose(whole_forward(engine, prompt, answer), sampled, atol=1e-4)
            compared += 1
    assert compared >= 4


def test_passes_over_whole_samples_agree_too_and_give_the_same_gradient(engine, images, monkeypatch):
    asked = prompts(engine, images)
    answers = engine.generate(asked, SAMPLING)
    batch = batch_of(engine, asked, answers)
    gradients = []
    assert likelihood._can_share(engine.model), "both ways must be taken"
    for is_shared in (True, False):
        monkeypatch.setattr(likelihood, "_can_share", lambda model, value=is_shared: value)
        engine.model.zero_grad()
        scores = completion_likelihood(engine.model, batch, temperature=TEMPERATURE)
        (scores.log_probabilities * batch.completion_mask).sum().backward()
        decoder = engine.model.get_decoder()
        gradients.append({name: part.grad.clone() for name, part in decoder.named_parameters()})
        for row, answer in enumerate(answers):
            sampled = torch.tensor(answer.log_probabilities)
            assert torch.allclose(scores.log_probabilities[row, : len(sampled)], sampled, atol=1e-4)
    engine.model.zero_grad()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=2e-3, rtol=1e-3), name


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_completions_go_on_from_a_repeated_recurrent_state(engines, monkeypatch, length):
    """A single further token would be written into the state in place."""
    model = engines("qwen3_5_text").model
    prompts = [(5, 6, 7), (5, 6, 7), (5, 6, 7, 8, 9, 10, 11)]
    completions = [tuple(range(20 + row, 20 + row + length)) for row in range(3)]
    batch = token_batch(prompts, completions, pad_token_id=0)
    found = []
    for is_shared in (True, False):
        monkeypatch.setattr(likelihood, "_can_share", lambda model, value=is_shared: value)
        model.zero_grad()
        scores = completion_likelihood(model, batch, temperature=1.0).log_probabilities
        (scores * torch.arange(1, 4)[:, None]).sum().backward()
        found.append((scores.detach(), [part.grad.clone() for part in model.parameters()]))
    model.zero_grad()
    assert torch.allclose(found[0][0], found[1][0], atol=1e-4)
    for one, two in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(one, two, atol=2e-3, rtol=1e-3)


def decoded(engine, prompt, completion) -> list[float]:
    """Log-probabilities of a given completion, token by token behind the prompt's cache."""
    ids, shown = engine.vision.encode(prompt.messages), prompt_images(prompt.messages)
    seen = see(engine.vision, engine.model, [(ids, shown)])
    scores = []
    with torch.inference_mode():
        state = engine.decoder.prefill(Batch([ids], [0], torch.zeros(1, 1), seen), None, len(completion))
        for token in completion:
            scores.append(torch.log_softmax(state.logits[0], dim=-1)[token].item())
            state.step(engine.decoder, torch.tensor([token]))
    return scores


def test_a_sampled_image_token_is_scored_as_it_was_decoded(seeing, images, monkeypatch):
    placeholder = seeing.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    asked = [prompts(seeing, images)[index] for index in (0, 6)]
    completions = [(20, 21, placeholder, 22, 23), (30, placeholder, 31)]
    for is_shared in (True, False):
        monkeypatch.setattr(likelihood, "_can_share", lambda model, value=is_shared: value)
        batch = token_batch(
            [seeing.vision.encode(prompt.messages) for prompt in asked],
            completions,
            pad_token_id=0,
            images=[prompt_images(prompt.messages) for prompt in asked],
            viewer=Viewer(seeing.vision, seeing.model),
        )
        with torch.no_grad():
            scores = completion_likelihood(seeing.model, batch, temperature=1.0).log_probabilities
        for row, (prompt, completion) in enumerate(zip(asked, completions, strict=True)):
            expected = decoded(seeing, prompt, completion)
            assert scores[row, : len(completion)].tolist() == pytest.approx(expected, abs=1e-4)
    assert not seeing.model.get_input_embeddings()._forward_hooks, "the embedding is left as it was"


def test_the_answer_depends_on_the_image_and_a_sample_not_on_its_batch(seeing, images):
    asked = prompts(seeing, images)
    answers = seeing.generate(asked, SAMPLING)
    reds, blues = answers[:3], answers[3:6]
    assert [answer.prompt_token_ids for answer in reds] == [answer.prompt_token_ids for answer in blues]
    assert [answer.log_probabilities for answer in reds] != [answer.log_probabilities for answer in blues]
    turned = seeing.generate(asked[::-1], SAMPLING)[::-1]
    assert [answer.token_ids for answer in turned] == [answer.token_ids for answer in answers]


def test_an_image_that_cannot_be_shown_fails_its_rows_alone(seeing, images, tmp_path):
    gone = picture(tmp_path / "gone.png", 64, 32)
    (tmp_path / "gone.png").unlink()
    lost = Prompt(messages=(Message(role="user", content="?", images=(gone,)),))
    bad, good = seeing.generate([lost, prompts(seeing, images)[0]], SAMPLING)
    assert bad.finish_reason == "error" and "cannot read image" in bad.error
    assert good.finish_reason in ("stop", "length")


def test_rollouts_of_one_prompt_share_its_vision_encoding(seeing, images):
    encoded = []
    visual = seeing.model.model.visual
    handle = visual.register_forward_hook(
        lambda module, inputs, kwargs, output: encoded.append(kwargs["grid_thw"].tolist()), with_kwargs=True
    )
    seeing.generate(prompts(seeing, images)[:3], SAMPLING)
    handle.remove()
    assert encoded == [[[1, 6, 8]]], "three rollouts, one image encoded once"
