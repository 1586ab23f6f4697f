"""Rollout engine over vLLM inside the training process, through TRL's ``VLLMGeneration``. CUDA only.

TRL builds the engine and copies the training model's weights into it (adapters merged for the copy, and
taken out again). Requests are made here, not by TRL's own ``generate``: it has one sampling seed for all
rows, so the rollouts of one prompt would all be the same.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any

from harness.protocols import Prompt
from harness.records import Generation, Sampling, Usage
from policy.config_engine import VllmColocatedConfig
from policy.engines.row_key import row_key
from policy.engines.vllm_server import SEED_BITS, Speech
from policy.errors import PolicyError


class VllmColocatedEngine:
    """A :class:`harness.protocols.RolloutEngine` on the GPU of the model that is trained.

    Args:
        model: a causal language model whose ``name_or_path`` holds its base weights, or one wrapped by peft.
        speech: tokenizer, end tokens and context of the policy.
        policy_id: content id of the weights.
        config: memory share, tensor parallelism, length.
        batch_size: most rows decoded at once.
        accelerator: of the training loop; None makes one.

    Raises:
        PolicyError: vLLM is not installed, or there is no CUDA device.
    """

    def __init__(
        self,
        model: Any,
        speech: Speech,
        policy_id: str,
        config: VllmColocatedConfig,
        *,
        batch_size: int,
        accelerator: Any = None,
    ) -> None:
        check_colocated(model.device.type)
        from accelerate import Accelerator
        from trl.generation.vllm_generation import VLLMGeneration

        self.policy_id = policy_id
        self._speech = speech
        self._limit = min(config.max_model_len, speech.context_tokens)
        self._vllm = VLLMGeneration(
            model,
            accelerator or Accelerator(),
            speech.tokenizer,
            mode="colocate",
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_model_length=self._limit,
            max_num_seqs=batch_size,
        )
        self._lock = threading.Lock()
        self.load_weights(policy_id)

    def load_weights(self, policy_id: str) -> None:
        """Take over the training model's weights as they are now; ``policy_id`` is their content id."""
        with self._lock:
            self._vllm.sync_weights()
            self.policy_id = policy_id

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order; one that cannot be answered is a generation with an error."""
        limit = self._limit - sampling.max_tokens
        encoded = [self._speech.encode(prompt.messages) for prompt in prompts]
        faults = [_fault(prompt, len(ids), limit) for prompt, ids in zip(prompts, encoded, strict=True)]
        rows = [row for row, fault in enumerate(faults) if not fault]
        with self._lock:
            answers = self._ask(
                [encoded[row] for row in rows],
                sampling,
                [row_key(sampling, prompts[row]) % 2**SEED_BITS for row in rows],
            )
        made = dict(zip(rows, answers, strict=True))
        if progress is not None:
            progress(len(prompts))
        return [
            made[row] if row in made else Generation(text="", finish_reason="error", error=fault)
            for row, fault in enumerate(faults)
        ]

    def _ask(self, encoded: Sequence[tuple[int, ...]], sampling: Sampling, seeds: Sequence[int]) -> list[Generation]:
        if not encoded:
            return []
        from vllm import SamplingParams

        asked = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=seed,
                logprobs=0,
                stop_token_ids=list(self._speech.stop_token_ids),
                skip_special_tokens=False,
            )
            for seed in seeds
        ]
        try:
            outputs = self._vllm.llm.generate(
                [{"prompt_token_ids": list(ids)} for ids in encoded], asked, use_tqdm=False
            )
        except (RuntimeError, ValueError) as error:  # the engine boundary: out of memory, a prompt it refuses
            failed = Generation(text="", finish_reason="error", error=f"{type(error).__name__}: {error}")
            return [failed for _ in encoded]
        return [self._read(ids, output, sampling) for ids, output in zip(encoded, outputs, strict=True)]

    def _read(self, prompt_ids: tuple[int, ...], output: Any, sampling: Sampling) -> Generation:
        choice = output.outputs[0]
        ids = tuple(int(token) for token in choice.token_ids)
        is_stopped = bool(ids) and ids[-1] in self._speech.stop_token_ids
        if tuple(output.prompt_token_ids) != prompt_ids or not ids or len(choice.logprobs or ()) != len(ids):
            return Generation(text="", finish_reason="error", error="vLLM's output does not fit the prompt it was sent")
        scores = [position[token].logprob for position, token in zip(choice.logprobs, ids, strict=True)]
        return Generation(
            text=self._speech.decode(ids[:-1] if is_stopped else ids),
            finish_reason="stop" if is_stopped else "length",
            prompt_token_ids=prompt_ids,
            token_ids=ids,
            log_probabilities=(0.0,) * len(ids) if sampling.temperature == 0 else tuple(map(float, scores)),
            policy_id=self.policy_id,
            usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(ids)),
        )


def check_colocated(device: str) -> None:
    """Refuse to start where vLLM cannot share a GPU.

    Raises:
        PolicyError: no vLLM, or a model that is not on CUDA.
    """
    if importlib.util.find_spec("vllm") is None:
        raise PolicyError(
            "policy.engine.type=vllm_colocated needs the package vllm, which is not installed here; install a version "
            "that trl supports into this environment, or use vllm_server with servers of their own"
        )
    if device != "cuda":
        raise PolicyError(
            f"policy.engine.type=vllm_colocated needs CUDA; the policy is on {device!r}; set policy.device to cuda, "
            "or use the transformers or vllm_server engine"
        )


def _fault(prompt: Prompt, length: int, limit: int) -> str:
    if any(message.images for message in prompt.messages):
        return "the prompt has images; this engine sends token ids alone"
    return f"prompt has {length} tokens, the limit is {limit}; shorten the harness" if length > limit else ""
