"""The prepared GPU script runs its plumbing where there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_gpu_check_trains_both_ways_on_a_cpu_and_says_that_it_had_no_vllm(tmp_path):
    out = tmp_path / "check.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), "--size", "tiny", "--steps", "1"]
    done = subprocess.run(
        [*command, "--vllm-python", "/bin/false", "--out", str(out)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["sft"]["updates"] == 1 and report["sft"]["tokens_per_s"] > 0
    assert report["grpo"]["steps"] == 1 and report["grpo"]["ratio_to_trl"] > 0
    assert report["vllm"]["skipped"] == "/bin/false cannot import vllm"
