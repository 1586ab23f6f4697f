"""Real runs of a real tiny policy, each sitting a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from cohelix.startup import NAMES

HERE = Path(__file__).parent
DYING = HERE / "dying_cohelix.py"
TINY_POLICY = """
import sys
import torch
from tiny_policy import tiny_llama, tiny_tokenizer
torch.set_num_threads(1)
tokenizer = tiny_tokenizer()
tiny_llama(tokenizer).save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
"""


@dataclass(frozen=True)
class Bench:
    """A plugin suite, a random policy and a configuration, in one folder."""

    folder: Path
    config: Path

    @property
    def nobody(self) -> Path:
        """The user's own folder, which no run has any business in."""
        return self.folder / "nobody"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COHELIX", "XDG_", "HF_"))}
        return {
            **kept,
            "HOME": str(self.nobody),
            "PYTHONPATH": os.pathsep.join(str(self.folder / name) for name in ("code", "plugin")),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **more,
        }

    def cohelix(
        self, *arguments: str, home: str, die: dict | None = None, file_limit: int | None = None
    ) -> subprocess.CompletedProcess:
        """One sitting.

        Args:
            arguments: of the command line.
            home: folder below this bench.
            die: where the process kills itself (see dying_cohelix.py).
            file_limit: bytes to which any one file may grow, as on a disk that is nearly full.
        """
        program = [sys.executable, "-m", "cohelix"] if die is None else [sys.executable, str(DYING), json.dumps(die)]
        return subprocess.run(
            [*program, *arguments, "--home", str(self.folder / home)],
            capture_output=True,
            text=True,
            env=self.environment(),
            cwd=self.folder,
            timeout=300,
            preexec_fn=file_limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, -1))),
        )

    def start(self, home: str, *more: str, environment: dict[str, str] | None = None) -> subprocess.Popen:
        """A run that goes on beside the test; its lines arrive at ``stderr``."""
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cohelix",
                "run",
                str(self.config),
                "--name",
                "r",
                "--home",
                str(self.folder / home),
                *more,
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=self.environment(**(environment or {})),
            cwd=self.folder,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's `&` makes it ignored
        )

    def run(self, home: str, *more: str, die: dict | None = None) -> subprocess.CompletedProcess:
        """A new run ``r``. A second test that names the same home is refused ("exists already"): choose another."""
        return self.cohelix("run", str(self.config), "--name", "r", "--json", *more, home=home, die=die)

    def resume(self, home: str, *more: str, die: dict | None = None) -> subprocess.CompletedProcess:
        return self.cohelix("resume", "r", "--json", *more, home=home, die=die)

    def outcome(self, home: str) -> dict:
        """Final state, weight hashes and gate decisions of run ``r``: what must not depend on interruptions."""
        from memory.store import Store

        with Store.open(self.folder / home) as store:
            record = store.runs.get("r")
            assert record.status == "finished", record.summary
            state = record.summary["state"]
            weights = {
                pair["checkpoint_id"]: hashlib.sha256(b"".join(
                    file.read_bytes()
                    for file in sorted((self.folder / home / "checkpoints" / pair["checkpoint_id"]).iterdir())
                )).hexdigest()
                for pair in state["pairs"]
            }  # fmt: skip
            scores = [
                {key: row[key] for key in ("label", "split", "mean", "replicate_means")}
                for row in record.summary["report"]["scores"]
            ]
            return {
                "state": state,
                "weights": weights,
                "scores": scores,
                "decisions": [decision.model_dump(exclude={"run_id"}) for decision in store.lineage.decisions("r")],
                "pairs": [pair.pair_id for pair in store.lineage.pairs("r")],
                "nodes": [step.node for step in store.steps.list("r")],
                "traces": store.traces.count("r"),
            }


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    for package in (*NAMES, "cohelix"):  # a copy, since a resume is refused when a file is edited between two sittings
        shutil.copytree(HERE.parents[1] / package, folder / "code" / package, ignore=shutil.ignore_patterns("*.pyc"))
    (folder / "nobody").mkdir()
    plugin = folder / "plugin"
    info = plugin / "letters-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cohelix.suites]\nletters = letters_suite:LettersSuite\n")
    (plugin / "letters_suite.py").write_text((HERE / "letters_suite.py").read_text())
    made = subprocess.run(
        [sys.executable, "-c", TINY_POLICY, str(folder / "base")],
        env={**os.environ, "PYTHONPATH": str(HERE.parent / "policy"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"policy": CONFIG["policy"] | {"model": str(folder / "base")}}))
    return Bench(folder, config)


@pytest.fixture(scope="session")
def unbroken(bench: Bench) -> dict:
    """What a run that nobody disturbs ends in; its home is ``unbroken``."""
    done = bench.run("unbroken")
    assert done.returncode == 0, done.stderr
    return bench.outcome("unbroken")


CONFIG = {
    "seed": 0,
    "strategy": {
        "type": "vace",
        "rounds": 2,
        "rollout_steps": 2,
        "seed_demonstrations": 1,
        "explore_tasks": 8,
        "rl": {
            "prompts_per_step": 4, "group_size": 4, "updates_per_rollout_step": 2, "learning_rate": 5e-3,
            "max_tokens": 10, "threads": 1, "checkpoint_every": 1,
        },
    },
    "suite": {"type": "plugin", "name": "letters"},
    # The trainer in the run's own process, where a test can kill it at any of its writes, and which starts faster.
    "policy": {"type": "hf", "lora": None, "batch_size": 32, "executor": {"type": "in_process"}},
    "budget": {"tasks": {"train": 16, "val": 16, "test": 16}, "replicates": {"val": 1, "test": 2}},
}  # fmt: skip
