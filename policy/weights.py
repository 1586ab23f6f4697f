"""Which weights are trained, their content ids, and adapters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from policy.config import LoraConfig
from policy.errors import TrainingError


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Parameters that training changes, by name, tied ones once: all of them, or the adapters'."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that may be cut over processes, put together; all processes must ask for the same ones in order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This process' share of a whole tensor, cut as a parameter of the same shape is."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    return distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, parameter.placements)


def weights_id(tensors: Mapping[str, torch.Tensor], *, base_id: str = "") -> str:
    """Content id of weights: names, shapes, types and bytes; for adapters also the base they sit on.

    Args:
        tensors: the weights by name.
        base_id: id of the frozen base under adapters; empty for full weights.
    """
    digest = hashlib.sha256(base_id.encode())
    for name in sorted(tensors):
        tensor = whole(tensors[name].detach()).to("cpu").contiguous()
        digest.update(f"\x1f{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"policy-{digest.hexdigest()[:16]}"


def all_weights_id(model: Any) -> str:
    """Content id of every parameter of an unwrapped model."""
    return weights_id(dict(model.named_parameters()))


def attach_lora(model: Any, config: LoraConfig, *, seed: int) -> Any:
    """Wrap a model with fresh adapters; at the start they change nothing.

    Args:
        model: the base; its weights are frozen.
        config: rank, scale, dropout, targets.
        seed: of the adapters' random half.
    """
    from peft import LoraConfig as PeftLora
    from peft import get_peft_model

    torch.manual_seed(seed)
    targets: Any = language_targets(model, config.targets) or list(config.targets) or "all-linear"
    lora = PeftLora(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=getattr(model.config, "_name_or_path", None),
    )
    wrapped = get_peft_model(model, lora)
    check_vision_frozen(wrapped)
    return wrapped


def vision_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Parameters by name that only images pass through: vision tower and projector; empty for a plain language model.

    They are all that is neither in the decoder nor in the head.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if getattr(inner.config, "vision_config", None) is None:
        return {}
    language = [inner.get_decoder(), inner.get_input_embeddings(), inner.get_output_embeddings()]
    kept = {id(parameter) for part in language if part is not None for parameter in part.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in kept}


def freeze_vision(model: Any) -> None:
    """Keep vision tower and projector out of training; a plain language model has neither."""
    for parameter in vision_parameters(model).values():
        parameter.requires_grad_(False)


def check_vision_frozen(model: Any) -> None:
    """Assert that no vision parameter is trained.

    Raises:
        TrainingError: one is; the message names it.
    """
    moving = [name for name, parameter in vision_parameters(model).items() if parameter.requires_grad]
    if moving:
        raise TrainingError(
            f"vision parameters would be trained: {moving[:3]}; only the language model may be; change lora.targets"
        )


def language_targets(model: Any, names: Sequence[str] = ()) -> str:
    """Pattern of the module names that get adapters in a vision-language model; empty for a plain language model.

    Names alone do not do: the vision tower of some models has layers of the language model's names.

    Args:
        model: the base.
        names: last parts of the layers' names; empty takes all linear layers of the language model but the head.

    Raises:
        TrainingError: the language model has no linear layer of a name.
    """
    if getattr(model.config, "vision_config", None) is None:
        return ""
    decoder = model.get_decoder()
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    linear = {name.rpartition(".")[2] for name, part in decoder.named_modules() if isinstance(part, torch.nn.Linear)}
    unknown = sorted(set(names) - linear)
    if unknown:
        raise TrainingError(
            f"lora.targets {unknown} are no linear layers of the language model; it has {sorted(linear)}"
        )
    wanted = "|".join(re.escape(name) for name in sorted(set(names) or linear))
    return rf"{re.escape(prefix)}\.(?:.+\.)?(?:{wanted})"


def put_weights(model: Any, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Copy tensors into the parameters of the same names; returns one sentence per mismatch, copying nothing then."""
    parameters = trained_parameters(model)
    faults = [f"{name} is missing" for name in sorted(set(parameters) - set(tensors))]
    faults += [f"{name} is unknown" for name in sorted(set(tensors) - set(parameters))]
    faults += [
        f"{name} has shape {tuple(tensors[name].shape)}, the model {tuple(parameters[name].shape)}"
        for name in sorted(set(tensors) & set(parameters))
        if tensors[name].shape != parameters[name].shape
    ]
    if not faults:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
    return faults


def are_finite(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(torch.isfinite(whole(tensor.detach())).all()) for tensor in tensors.values())
