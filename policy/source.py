"""Where a policy's weights come from, and whether they are there, without loading them. Torch-free."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UserError
from policy.config import AnyPolicyConfig, ApiPolicyConfig


def refuse_missing_weights(policy: AnyPolicyConfig | ApiPolicyConfig) -> None:
    """Refuse now what would fail when the weights are loaded.

    A hub id is looked for in the cache where the hub must not be asked (``HF_HUB_OFFLINE``); elsewhere it may still be
    fetched, so it is left to the loader.

    Raises:
        UserError: a folder that is not there, or a hub id that is not in the cache while offline.
    """
    if policy.type != "hf" or Path(policy.model).is_dir():
        return
    if not is_hub_id(policy.model):
        raise UserError(
            "the policy's weights are not here",
            got=f"no folder {policy.model}",
            do="set policy.model to a folder with config, weights and tokenizer, or to a hub id",
        )
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE:
        return
    found = try_to_load_from_cache(policy.model, "config.json", revision=policy.revision)
    if not isinstance(found, str):
        raise UserError(
            "the policy's weights are not here",
            got=f"hub id {policy.model}, not in the cache, and HF_HUB_OFFLINE is set",
            do="fetch the model where the network may be used, or set policy.model to a folder",
        )


def is_hub_id(model: str) -> bool:
    """Whether a name has the form ``owner/name``, not that of a path."""
    return model.count("/") == 1 and not model.startswith(("/", ".", "~"))
