"""Open the engine that a policy names: for a policy in training, and for one that is evaluated."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.protocols import RolloutEngine
from policy.config import AnyPolicyConfig
from policy.engines.adapter_file import export_adapter
from policy.engines.refill import RefillingEngine
from policy.engines.transformers_engine import TransformersEngine, stop_token_ids
from policy.engines.vllm_colocated import VllmColocatedEngine
from policy.engines.vllm_server import Speech, VllmServerEngine
from policy.load import load_vision
from policy.process import current_world
from policy.vision import VisionReader
from policy.weights import whole

if TYPE_CHECKING:
    from policy.training_state import TrainingState

ADAPTERS = "adapters"
"""Folder below a home for adapters in PEFT's format; vLLM servers must see it under the same path."""


class RolloutSource:
    """The engine of a policy in training, and the way its weights get there.

    Args:
        policy: what is trained; its ``engine`` says where it is sampled.
        state: the weights in training.
        home: adapters for servers go to ``home/adapters/rollout/<policy id>``, the last ones alone.
    """

    def __init__(self, policy: AnyPolicyConfig, state: TrainingState, home: Path) -> None:
        self._policy = policy
        self._state = state
        self._adapters = home.resolve() / ADAPTERS / "rollout"
        self._pushed: Path | None = None
        self.engine: RolloutEngine = self._open()

    def push(self) -> None:
        """Let the engine answer with the weights as they are now.

        Raises:
            PolicyError: no server took them.
        """
        policy_id, engine = self._state.policy_id, self.engine
        if isinstance(engine, VllmServerEngine):
            before = self._pushed
            self._pushed = self._export(policy_id)
            pushed = self._pushed
            current_world().as_lead(lambda: engine.load_weights(policy_id, pushed))
            if before not in (None, self._pushed):
                shutil.rmtree(str(before), ignore_errors=True)
        elif isinstance(engine, VllmColocatedEngine):
            engine.load_weights(policy_id)
        elif isinstance(engine, TransformersEngine):
            engine.policy_id = policy_id

    def _open(self) -> RolloutEngine:
        state, config = self._state, self._policy.engine
        if config.type == "transformers":
            return transformers_engine(self._policy, state.model, state.tokenizer, state.policy_id, state.vision)
        speech = speech_of(state.model, state.tokenizer)
        if config.type == "vllm_colocated":
            return VllmColocatedEngine(state.model, speech, state.policy_id, config, batch_size=self._policy.batch_size)
        self._pushed = self._export(state.policy_id)
        return VllmServerEngine(config, speech, policy_id=state.policy_id, base_id=state.base_id, adapter=self._pushed)

    def _export(self, policy_id: str) -> Path:
        """With several processes all put their shares together, and the lead writes."""
        weights = {name: whole(parameter.detach()) for name, parameter in self._state.parameters.items()}
        folder = self._adapters / policy_id
        return Path(current_world().as_lead(lambda: str(export_adapter(self._policy, weights, folder))))


def evaluation_engine(
    policy: AnyPolicyConfig, model: Any, tokenizer: Any, policy_id: str, *, base_id: str, checkpoint: Path | None
) -> RolloutEngine:
    """The engine that evaluates fixed weights.

    Args:
        policy: its ``engine`` says where it is sampled.
        model: the weights to evaluate, adapters merged; a server engine takes only its settings.
        tokenizer: of the policy.
        policy_id: content id of the weights, unmerged.
        base_id: content id of the base.
        checkpoint: folder of the checkpoint, ``home/checkpoints/<id>``; None for the base.
    """
    config = policy.engine
    if config.type == "transformers":
        return transformers_engine(policy, model, tokenizer, policy_id, load_vision(policy, tokenizer))
    speech = speech_of(model, tokenizer)
    if config.type == "vllm_colocated":
        return VllmColocatedEngine(model, speech, policy_id, config, batch_size=policy.batch_size)
    if checkpoint is None:
        return VllmServerEngine(config, speech, policy_id=policy_id, base_id=base_id)
    folder = checkpoint.resolve().parent.parent / ADAPTERS / policy_id
    return VllmServerEngine(
        config, speech, policy_id=policy_id, base_id=base_id, adapter=export_adapter(policy, checkpoint, folder)
    )


def transformers_engine(
    policy: AnyPolicyConfig, model: Any, tokenizer: Any, policy_id: str, vision: VisionReader | None
) -> TransformersEngine:
    """The engine over a model in this process, with the policy's batch size.

    Args:
        policy: its settings.
        model: the weights to sample from.
        tokenizer: of the policy.
        policy_id: content id of the weights.
        vision: of a policy that sees; in training the one that the loss reads with, so that it holds images once.

    Raises:
        PolicyError: refill is asked of a model whose cache cannot be rearranged.
    """
    is_refilled = policy.engine.type == "transformers" and policy.engine.refill
    kind = RefillingEngine if is_refilled else TransformersEngine
    return kind(model, tokenizer, policy_id, policy.batch_size, vision=vision)


def speech_of(model: Any, tokenizer: Any) -> Speech:
    """What an engine elsewhere must know of a model."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    rows = model.get_input_embeddings().num_embeddings
    return Speech(tokenizer, stop_token_ids(model, tokenizer), int(context or 2**31), rows)
