"""The six VACE conditions over fixed seeds: resumable, two processes at once, one thread each.

Every run is a ``cohelix run`` of its own with a fixed name; a finished one is never run again and an
interrupted one is resumed. All share one home, so that common prefixes (the first pair, the first RL
block, sia's harness rounds) are computed once.

Run: ``python benchmarks/vace_study.py --home .cohelix-study --seeds 0 1 2 3 4 --jobs 2``.
One config over seeds: ``--config configs/quickstart.yaml --conditions vace --jobs 1``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics as stats
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.statistics import mean_interval, paired_t

CONDITIONS = ("static", "harness-only", "rl-only", "sia", "whale", "vace")
"""In this order what a later condition shares with an earlier one is already there."""


@dataclass(frozen=True)
class Job:
    """One condition under one seed."""

    condition: str
    seed: int
    config: Path

    @property
    def name(self) -> str:
        """The run's id."""
        return f"{self.config.stem}-{self.condition}-{self.seed}"

    def command(self, home: Path) -> list[str]:
        """Start the run, or resume it where its folder exists."""
        base = [sys.executable, "-m", "cohelix"]
        if (home / "runs" / self.name).exists():
            return [*base, "resume", self.name, "--home", str(home), "--json"]
        changes = [f"strategy.condition={self.condition}", f"seed={self.seed}", f"suite.seed={self.seed}"]
        sets = [word for change in changes for word in ("--set", change)]
        return [*base, "run", str(self.config), "--name", self.name, "--home", str(home), "--json", *sets]

    def report(self, home: Path) -> dict[str, Any] | None:
        """The finished run's report."""
        file = home / "runs" / self.name / "report.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def run_all(jobs: list[Job], home: Path, width: int, threads: int) -> None:
    """Keep ``width`` processes busy; stop at the first failure, after which the same command resumes."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    waiting = [job for job in jobs if job.report(home) is None]
    running: dict[Job, tuple[subprocess.Popen[bytes], float]] = {}
    failed: list[str] = []
    while running or (waiting and not failed):
        while waiting and len(running) < width and not failed:
            job = waiting.pop(0)
            log = (home / f"{job.name}.log").open("ab")
            process = subprocess.Popen(job.command(home), env=environment, stdout=log, stderr=log)
            running[job] = (process, time.monotonic())
        time.sleep(0.5)
        for job, (process, started) in list(running.items()):
            if process.poll() is None:
                continue
            del running[job]
            print(f"{job.name}: exit {process.returncode}, {time.monotonic() - started:.0f} s", flush=True)
            if process.returncode:
                failed.append(job.name)
    if failed:
        raise SystemExit(f"stopped: {failed} failed; see {home}/<name>.log; the same command goes on from here")


def test_points(report: dict[str, Any], label: str) -> float:
    """Mean test accuracy of the base or the final pair, in points; static has one pair only."""
    rows = {row["label"]: row for row in report["scores"] if row["split"] == "test"}
    return 100 * float(rows.get(label, rows["base"])["mean"])


def table(jobs: list[Job], home: Path) -> dict[str, Any]:
    """Per condition: base and final test accuracy per seed, gain, gate decisions."""
    rows: dict[str, dict[str, Any]] = {}
    for job in jobs:
        report = job.report(home)
        if report is None:
            continue
        row = rows.setdefault(job.condition, {"seeds": [], "base": [], "final": [], "decisions": [], "seconds": []})
        row["seeds"].append(job.seed)
        row["base"].append(test_points(report, "base"))
        row["final"].append(test_points(report, "final"))
        row["decisions"].append([gate["outcome"] for gate in report["gates"]])
        row["seconds"].append(report["seconds"])
    return rows


def points(row: dict[str, Any]) -> str:
    """Mean and 95 % interval, in points."""
    return f"{100 * row['mean']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def show_seeds(jobs: list[Job], home: Path) -> None:
    """Print one line per run: val and test accuracy with intervals, gain, gate decisions."""
    print("| run | base val | final val | base test | final test | test gain | accept/tie/reject | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for job in jobs:
        report = job.report(home)
        if report is None:
            continue
        scores = {(row["label"], row["split"]): row for row in report["scores"]}
        final = {split: scores.get(("final", split), scores["base", split]) for split in ("val", "test")}
        gains = [points(gain) for gain in report["gains"] if gain["split"] == "test"]
        words = [gate["outcome"] for gate in report["gates"]]
        counts = "/".join(str(words.count(word)) for word in ("accept", "tie", "reject"))
        print(
            f"| {job.condition} {job.seed} | {100 * scores['base', 'val']['mean']:.1f} "
            f"| {100 * final['val']['mean']:.1f} | {points(scores['base', 'test'])} | {points(final['test'])} "
            f"| {gains[0] if gains else '-'} | {counts} | {report['seconds']:.0f} |"
        )


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print one line per condition, and paired tests of vace against the others."""
    print("| condition | base test | final test | sd | gain | accepts/ties/rejects | seconds a run |")
    print("|---|---|---|---|---|---|---|")
    for condition, row in rows.items():
        gains = [final - base for final, base in zip(row["final"], row["base"], strict=True)]
        words = [word for one in row["decisions"] for word in one]
        counts = "/".join(str(words.count(word)) for word in ("accept", "tie", "reject"))
        spread = stats.stdev(row["final"]) if len(gains) > 1 else 0.0
        print(
            f"| {condition} | {stats.fmean(row['base']):.1f} | {stats.fmean(row['final']):.1f} | {spread:.1f} "
            f"| {stats.fmean(gains):+.1f} | {counts} | {stats.fmean(row['seconds']):.0f} |"
        )
    vace = rows.get("vace")
    for condition, row in rows.items():
        if vace is None or condition == "vace" or row["seeds"] != vace["seeds"] or len(row["seeds"]) < 2:
            continue
        test = paired_t([one - two for one, two in zip(vace["final"], row["final"], strict=True)])
        print(f"vace - {condition}: {test}")
    if vace is not None and len(vace["final"]) > 1:
        gains = [final - base for final, base in zip(vace["final"], vace["base"], strict=True)]
        print(f"vace gain over its first pair: {mean_interval(gains)}")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/vace-vace.yaml"))
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--home", type=Path, default=Path(".cohelix-study"))
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--threads", type=int, default=1, help="threads per process")
    parser.add_argument("--json", type=Path, help="write every number here")
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(condition, seed, options.config) for condition in CONDITIONS for seed in options.seeds
        if condition in options.conditions
    ]  # fmt: skip
    run_all(jobs, options.home, options.jobs, options.threads)
    rows = table(jobs, options.home)
    show_seeds(jobs, options.home)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
