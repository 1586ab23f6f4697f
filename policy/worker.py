"""A process that trains: ``python -m policy.worker``. Jobs come as JSON lines on stdin, reports leave as JSON lines.

Reports go to a descriptor of their own (``--report-fd``), so that nothing a library prints can break them; stdout is
turned into stderr. Several jobs run one after another, so the libraries are imported once. With ``--job`` several
processes, started by a launcher, train one job together. When the parent dies, stdin ends, and this process ends at
once: a block of a run that nobody owns must not go on.
"""

from __future__ import annotations

import argparse
import gc
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from policy.failure import describe
from policy.job import AnyJob, read_job
from policy.report import AnyReport, JobDone, JobFailed, Ready, StepDone

PARENT_GONE = 75
"""Exit code when stdin ended."""
_PR_SET_PDEATHSIG = 1


def train_job(job: AnyJob, progress: Callable[[Any], None] | None = None) -> None:
    """Train a job's block; its result is in the ledger and on disk afterwards.

    Args:
        job: what to train.
        progress: called after every step.
    """
    with job.store.opened() as ledger:
        job.train(ledger, progress)


def run_job(line: str, report: Callable[[AnyReport], None]) -> None:
    """Train one job and report its steps and its end."""
    try:
        train_job(read_job(line), lambda metrics: report(StepDone(metrics=metrics.model_dump(mode="json"))))
    except Exception as error:  # the trainer boundary: a failure becomes data
        report(JobFailed(failure=describe(error)))
    else:
        report(JobDone())
    _release_memory()


def _release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Read jobs until stdin ends, or train one job from a file."""
    options = _options()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and decides
    if options.die_with_parent:
        _die_with_parent(options.die_with_parent)
    os.dup2(2, 1)
    if options.memory_limit_mb:
        _limit_memory(options.memory_limit_mb)
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    if options.job is None:
        with os.fdopen(options.report_fd, "w", encoding="utf-8") as reports:
            _serve(jobs, reports)
    else:
        _train_one(options.job, options.reports)


def _options() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description="Train blocks that arrive on stdin, or one from a file.")
    arguments.add_argument("--report-fd", type=int, help="where reports go, as a descriptor")
    arguments.add_argument("--job", type=Path, help="file with one job; every process of a launch gets the same")
    arguments.add_argument("--reports", type=Path, help="where the reports on it go, as a path")
    arguments.add_argument("--memory-limit-mb", type=int, default=0)
    arguments.add_argument("--die-with-parent", type=int, default=0, help="process id of the parent")
    return arguments.parse_args()


def _serve(jobs: queue.Queue[str], reports: IO[str]) -> None:
    report = _reporter(reports)
    try:
        import policy.trainer  # noqa: F401 - the slow import, before the first job
    except (MemoryError, OSError, ImportError) as error:
        report(JobFailed(failure=describe(error)))
        return
    report(Ready())
    while True:
        run_job(jobs.get(), report)


def _train_one(job: Path, path: Path) -> None:
    """One of several processes that train a job together; the first one reports."""
    from policy.process import current_world, leave_world, take_own_gpu

    take_own_gpu()
    line = job.read_text()
    if current_world().is_lead:
        with path.open("w", encoding="utf-8") as reports:
            report = _reporter(reports)
            report(Ready())
            run_job(line, report)
    else:
        try:
            train_job(read_job(line))
        except Exception as error:  # the trainer boundary: the launcher ends the others, its owner reads the last words
            sys.exit(describe(error).message)
    leave_world()


def _reporter(reports: IO[str]) -> Callable[[AnyReport], None]:
    def report(one: AnyReport) -> None:
        reports.write(one.model_dump_json() + "\n")
        reports.flush()

    return report


def _read_jobs(jobs: queue.Queue[str]) -> None:
    with open(0, encoding="utf-8", closefd=False) as lines:  # not sys.stdin, whose lock an exit would wait for
        for line in lines:
            jobs.put(line)
    os._exit(PARENT_GONE)  # the main thread may be inside a long computation


def _die_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent, also where the reading thread gets no turn; Linux alone."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(PARENT_GONE)


def _limit_memory(limit_mb: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (limit_mb << 20, limit_mb << 20))


if __name__ == "__main__":
    main()
