"""Write trained adapters in PEFT's format, which vLLM and every PEFT program load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from memory.errors import StoreError
from memory.files import publish_folder, temporary_name
from policy.checkpoint import load_checkpoint
from policy.config import AnyPolicyConfig
from policy.errors import CheckpointError
from policy.load import policy_source

ADAPTER_NAME = ".default"
"""What peft puts into parameter names in memory and leaves out of files."""


def export_adapter(policy: AnyPolicyConfig, source: Path | Mapping[str, torch.Tensor], folder: Path) -> Path:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``; a whole folder appears or none.

    Args:
        policy: its ``lora`` describes the adapters.
        source: an adapter checkpoint's folder, or the trained parameters by name.
        folder: where to; an existing one is left as it is, so name it by the weights' content id.

    Returns:
        ``folder``.

    Raises:
        CheckpointError: the policy has no adapters, the checkpoint holds none, or the disk refused.
    """
    tensors = load_checkpoint(source).weights if isinstance(source, Path) else source
    named = {name.replace(ADAPTER_NAME + ".", "."): tensor for name, tensor in tensors.items()}
    if policy.lora is None or not named or not all(".lora_" in name for name in named):
        raise CheckpointError(
            f"exporting an adapter to {folder} failed: these are not adapters' weights; set policy.lora, or serve the "
            "merged weights"
        )
    if folder.exists():
        return folder
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": policy_source(policy),
        "r": policy.lora.r,
        "lora_alpha": policy.lora.alpha,
        "lora_dropout": policy.lora.dropout,
        "target_modules": sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in named}),
        "bias": "none",
        "inference_mode": True,
    }
    made = folder.parent / temporary_name("adapter")
    try:
        made.mkdir(parents=True)
        plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in sorted(named.items())}
        save_file(plain, made / "adapter_model.safetensors", metadata={"format": "pt"})
        (made / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True))
        publish_folder(made, folder)
    except (OSError, StoreError) as error:
        shutil.rmtree(made, ignore_errors=True)
        raise CheckpointError(
            f"exporting an adapter to {folder} failed: {error}; free disk space and resume"
        ) from error
    return folder
