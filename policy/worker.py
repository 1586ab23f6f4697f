"""A process that trains: ``python -m policy.worker``. Jobs come as JSON lines on stdin, reports leave as JSON lines.

Reports go to a descriptor of their own (``--report-fd``), so that nothing a library prints can break them;
stdout is turned into stderr. Several jobs run one after another, so the libraries are imported once. When the
parent dies, stdin ends, and this process ends at once: a block of a run that nobody owns must not go on.
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
from typing import Any

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
    """Read jobs until stdin ends."""
    arguments = argparse.ArgumentParser(description="Train blocks that arrive on stdin.")
    arguments.add_argument("--report-fd", type=int, required=True)
    arguments.add_argument("--memory-limit-mb", type=int, default=0)
    arguments.add_argument("--die-with-parent", type=int, default=0, help="process id of the parent")
    options = arguments.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and decides
    if options.die_with_parent:
        _die_with_parent(options.die_with_parent)
    os.dup2(2, 1)
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    if options.memory_limit_mb:
        _limit_memory(options.memory_limit_mb)
    with os.fdopen(options.report_fd, "w", encoding="utf-8", closefd=True) as reports:

        def report(one: AnyReport) -> None:
            reports.write(one.model_dump_json() + "\n")
            reports.flush()

        try:
            import policy.trainer  # noqa: F401 - the slow import, before the first job
        except (MemoryError, OSError, ImportError) as error:
            report(JobFailed(failure=describe(error)))
            return
        report(Ready())
        while True:
            run_job(jobs.get(), report)


def _read_jobs(jobs: queue.Queue[str]) -> None:
    for line in sys.stdin:
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
