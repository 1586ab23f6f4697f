"""One pass over everything that needs a GPU: SFT, a GRPO step beside plain TRL, vLLM rollouts with an adapter swap.

    python benchmarks/gpu_check.py [--size auto] [--vllm-python PATH] [--budget-s 450] [--out FILE] [--json]

The policy is the largest Qwen3 architecture that fits the device, with random weights, so no hub is needed: speed
and memory are real, rewards mean nothing. Four parts, each timed, each allowed to fail by itself, and none begun when
the budget is used up:

* ``sft``: updates of LoRA on 512-token records, tokens a second;
* ``grpo``: this project's rollout step, tokens a second, and the same step by plain TRL in the same run;
* ``vllm``: a server of that model, rollouts through one adapter, a swap to the next one, tokens a second.

Where there is no GPU the same script runs its plumbing on the CPU with a tiny model. Exit code 1 if a part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from pydantic import JsonValue
from trainer_cost import MemoryLedger
from transformers import PrinterCallback, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOTrainer

from harness.model import Harness
from harness.protocols import Prompt
from harness.records import FinishReason, Sampling, Scored, Task, content_id
from harness.render import render
from policy.block import BlockRequest
from policy.config import DynamicSampling, HfPolicyConfig, LoraConfig, RlConfig, SftConfig
from policy.config_engine import VllmServerConfig
from policy.engines.adapter_file import export_adapter
from policy.engines.rollout_engine import speech_of
from policy.engines.vllm_server import VllmServerEngine
from policy.load import load_policy, pocket_folder
from policy.sft.block import SftBlockTrainer, SftRequest
from policy.sft.record import SftRecord
from policy.step_metric import StepMetrics
from policy.trainer import GrpoBlockTrainer
from policy.trl_argument import trl_arguments
from policy.weights import all_weights_id, attach_lora, trained_parameters


@dataclass(frozen=True)
class Size:
    """A Qwen3 architecture and the work that goes with it."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    needs_gib: float
    """GPU memory that training it with adapters and serving it beside takes, roughly."""
    prompts: int
    completion_tokens: int
    record_tokens: int


SIZES = {
    "tiny": Size(2, 128, 256, 4, 2, 32, 2048, 0.0, 2, 16, 96),
    "0.6b": Size(28, 1024, 3072, 16, 8, 128, 151_936, 10, 8, 128, 512),
    "4b": Size(36, 2560, 9728, 32, 8, 128, 151_936, 40, 8, 128, 512),
    "8b": Size(36, 4096, 12_288, 32, 8, 128, 151_936, 80, 8, 128, 512),
}
"""Published Qwen3 dense architectures, and one that a CPU runs in a second."""

HARNESS = Harness(
    family="letters",
    instructions="Write letters. " * 20,
    input_template="Letter number {number}",
    output_contract="Only letters.",
)


class LetterSuite:
    """Reward: the share of letters in the text. Random weights get some of it, and no two rollouts the same."""

    name = "letters"
    family = "letters"
    fingerprint = content_id("gpu-check-letters", prefix="suite")

    def verify(self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0) -> Scored:
        """Count letters."""
        share = sum(character.isalpha() for character in completion) / max(len(completion), 1)
        return Scored(parts={"exact": float(share > 0.5)}, reward=share)


@dataclass
class Bench:
    """What all parts share."""

    size: Size
    policy: HfPolicyConfig
    folder: Path
    steps: int
    device: str

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Enough prompts for every step."""
        return tuple(
            Task(task_id=f"t{n}", suite="letters", split="train", inputs={"number": str(n)}, gold=None)
            for n in range(self.size.prompts * (self.steps + 1))
        )

    @property
    def rl(self) -> RlConfig:
        """Settings of one GRPO step; sampling every group once makes both trainers do the same work."""
        return RlConfig(
            prompts_per_step=self.size.prompts,
            group_size=8,
            max_tokens=self.size.completion_tokens,
            micro_batch_size=8,
            learning_rate=1e-5,
            checkpoint_every=0,
            dynamic_sampling=DynamicSampling(enabled=False),
        )


def make_policy(folder: Path, size: Size, device: str) -> HfPolicyConfig:
    """Random weights of an architecture beside the packaged tokenizer."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.head_size,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    for source in pocket_folder().iterdir():
        if "token" in source.name or source.name.endswith(".jinja"):
            shutil.copy(source, folder / source.name)
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        model = Qwen3ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    del model
    return HfPolicyConfig(
        type="hf",
        model=str(folder),
        device="cuda" if device == "cuda" else "cpu",
        dtype="bfloat16" if device == "cuda" else "float32",
        lora=LoraConfig(r=16, alpha=32, dropout=0.0),
        batch_size=64,
    )


def check_sft(bench: Bench) -> dict[str, JsonValue]:
    """A few SFT updates; the first one warms up and is not counted."""
    _, tokenizer = None, load_policy("pocket").tokenizer
    filler = "station " * bench.size.record_tokens
    ids = tokenizer(filler, add_special_tokens=False)["input_ids"][: bench.size.record_tokens // 2]
    completion = tokenizer.decode(ids)
    records = tuple(
        SftRecord(record_id=task.task_id, prompt=render(HARNESS, task.inputs), completion=completion)
        for task in bench.tasks
    )
    made = []
    config = SftConfig(epochs=1, batch_size=len(records) // (bench.steps + 1), micro_batch_size=0, learning_rate=1e-5)
    request = SftRequest(records=records, config=config)
    result = SftBlockTrainer(bench.policy, bench.folder).train(request, MemoryLedger(), made.append)
    counted = made[1:]
    seconds = sum(step.update_s for step in counted)
    return {
        "updates": len(counted),
        "tokens_per_s": round(sum(step.tokens for step in counted) / seconds, 1),
        "update_s": round(seconds / len(counted), 3),
        "loss_first": round(made[0].loss, 4),
        "loss_last": round(made[-1].loss, 4),
        "checkpoint": result.checkpoint_id,
    }


def check_grpo(bench: Bench) -> dict[str, JsonValue]:
    """Rollout steps by this project and by plain TRL: seconds a step, tokens a second, and their ratio."""
    ours = time_ours(bench)
    trl_s = time_trl(bench)
    step_s = sum(step.rollout_s + step.update_s for step in ours) / len(ours)
    tokens = bench.size.prompts * 8 * sum(step.completion_tokens_mean for step in ours) / len(ours)
    return {
        "steps": len(ours),
        "step_s": round(step_s, 3),
        "rollout_s": round(sum(step.rollout_s for step in ours) / len(ours), 3),
        "update_s": round(sum(step.update_s for step in ours) / len(ours), 3),
        "completion_tokens_per_s": round(tokens / step_s, 1),
        "trl_step_s": round(trl_s, 3),
        "ratio_to_trl": round(step_s / trl_s, 3),
    }


def time_ours(bench: Bench) -> list[StepMetrics]:
    """Counted steps of the block trainer."""
    made: list[StepMetrics] = []
    request = BlockRequest(
        parent=None,
        harness=HARNESS,
        suite=LetterSuite(),  # type: ignore[arg-type]
        tasks=bench.tasks,
        rollout_steps=bench.steps + 1,
        first_step=0,
        seed=0,
        config=bench.rl,
    )
    GrpoBlockTrainer(bench.policy, bench.folder).train(request, MemoryLedger(), made.append)
    return made[1:]


def time_trl(bench: Bench) -> float:
    """Seconds of one step of TRL's own trainer with its own generation."""
    device = bench.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model, tokenizer = load_policy(bench.policy.model, device=device, dtype=dtype)
    assert bench.policy.lora is not None
    model = attach_lora(model, bench.policy.lora, seed=0)
    rows = [[message.as_chat() for message in render(HARNESS, task.inputs)] for task in bench.tasks]
    suite, marks = LetterSuite(), []

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        return [suite.verify(bench.tasks[0], done[0]["content"], finish_reason="length").reward for done in completions]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if device == "cuda":
                torch.cuda.synchronize()
            marks.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = trl_arguments(
            bench.rl, rollout_steps=bench.steps + 1, output_dir=folder, seed=0, use_cpu=device == "cpu"
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": rows}),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return (marks[-1] - marks[0]) / (len(marks) - 1)


def check_vllm(bench: Bench, python: str) -> dict[str, JsonValue]:
    """Serve the model, roll out through one adapter, swap to another, roll out again."""
    if subprocess.run([python, "-c", "import vllm"], capture_output=True).returncode:
        return {"skipped": f"{python} cannot import vllm"}
    dtype = torch.bfloat16 if bench.device == "cuda" else torch.float32
    model, tokenizer = load_policy(bench.policy.model, dtype=dtype)
    base_id, speech = all_weights_id(model), speech_of(model, tokenizer)
    folders = [_adapter(bench, model, seed) for seed in (1, 2)]
    sampling = Sampling(max_tokens=bench.size.completion_tokens, seed=0)
    prompts = [
        Prompt(messages=render(HARNESS, task.inputs), seed=n) for n, task in enumerate(bench.tasks) for _ in "xx"
    ]
    del model
    started = time.perf_counter()
    with _server(bench, python, base_id) as url:
        start_s = time.perf_counter() - started
        config = VllmServerConfig(type="vllm_server", urls=(url,))
        engine = VllmServerEngine(config, speech, policy_id=folders[0].name, base_id=base_id, adapter=folders[0])
        rates, texts = [], []
        swap_s = 0.0
        for number, folder in enumerate(folders):
            if number:
                before = time.perf_counter()
                engine.load_weights(folder.name, folder)
                swap_s = time.perf_counter() - before
            before = time.perf_counter()
            made = engine.generate(prompts, sampling)
            errors = [one.error for one in made if one.error]
            if errors:
                said = (bench.folder / "vllm.log").read_text()[-3000:]
                raise RuntimeError(f"{len(errors)} of {len(made)} rollouts failed: {errors[0]}; server: {said}")
            rates.append(sum(len(one.token_ids) for one in made) / (time.perf_counter() - before))
            texts.append([one.token_ids for one in made])
        engine.close()
    return {
        "start_s": round(start_s, 1),
        "tokens_per_s": [round(rate, 1) for rate in rates],
        "swap_s": round(swap_s, 3),
        "answers_changed_by_swap": sum(a != b for a, b in zip(*texts, strict=True)) / len(prompts),
    }


def _adapter(bench: Bench, model: Any, seed: int) -> Path:
    """A PEFT folder with random adapters that do change the answers."""
    assert bench.policy.lora is not None
    wrapped = attach_lora(model, bench.policy.lora, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in trained_parameters(wrapped).values():
            parameter.normal_(0, 0.05)
    made = export_adapter(bench.policy, trained_parameters(wrapped), bench.folder / "adapters" / f"adapter-{seed}")
    wrapped.unload()
    return made


@contextmanager
def _server(bench: Bench, python: str, name: str) -> Iterator[str]:
    """A vLLM server on loopback, ended by its own pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--dtype", "bfloat16" if bench.device == "cuda" else "float32", "--max-model-len", "2048"]
    flags += ["--gpu-memory-utilization", "0.45"] if bench.device == "cuda" else ["--enforce-eager"]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", bench.policy.model]
    command += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port), *flags]
    command += ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "2"]
    environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "DO_NOT_TRACK": "1"}
    log = bench.folder / "vllm.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended with code {process.returncode}: {log.read_text()[-1500:]}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"vLLM was not ready after {timeout_s:.0f} s: {log.read_text()[-1500:]}")


def run(parts: dict[str, Callable[[], dict[str, JsonValue]]], budget_s: float) -> dict[str, dict[str, JsonValue]]:
    """Every part in order, its seconds and its failure if it has one."""
    began, results = time.monotonic(), {}
    for name, part in parts.items():
        if time.monotonic() - began > budget_s:
            results[name] = {"skipped": f"the budget of {budget_s:.0f} s was used up"}
            continue
        started = time.monotonic()
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            result = part()
        except Exception as error:  # a part may fail by itself; the others still tell something
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {error}"[:5000]}
        if torch.cuda.is_available():
            result["peak_gpu_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        results[name] = result | {"seconds": round(time.monotonic() - started, 1)}
        print(f"{name}: {json.dumps(results[name])}", file=sys.stderr, flush=True)
    return results


def choose_size(asked: str, device: str) -> str:
    """The largest architecture that the device holds."""
    if asked != "auto":
        return asked
    if device == "cpu":
        return "tiny"
    total = torch.cuda.get_device_properties(0).total_memory / 2**30
    return max(
        (name for name, size in SIZES.items() if size.needs_gib <= total), key=lambda name: SIZES[name].needs_gib
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="auto", choices=["auto", *SIZES])
    parser.add_argument("--steps", type=int, default=2, help="counted steps of every part")
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter that can import vllm")
    parser.add_argument("--budget-s", type=float, default=450, help="no part is begun after this many seconds")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = choose_size(options.size, device)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "model").mkdir()
        policy = make_policy(folder / "model", SIZES[name], device)
        bench = Bench(SIZES[name], policy, folder, options.steps, device)
        parts = {
            "sft": lambda: check_sft(bench),
            "grpo": lambda: check_grpo(bench),
            "vllm": lambda: check_vllm(bench, options.vllm_python),
        }
        results = run(parts, options.budget_s)
    hardware = torch.cuda.get_device_name(0) if device == "cuda" else "CPU"
    report = {"hardware": hardware, "torch": torch.__version__, "size": name, **results}
    text = json.dumps(report, indent=None if options.json else 2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(any("failed" in result for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
