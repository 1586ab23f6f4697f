"""One ``policy.worker`` process as its owner sees it: start, send, listen, end."""

from __future__ import annotations

import collections
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from policy.errors import TrainerDied, TrainerOutOfMemory
from policy.executor.base import Progress
from policy.failure import is_about_memory, rebuild
from policy.job import AnyJob
from policy.report import AnyReport, JobDone, JobFailed, StepDone, read_report

STDERR_LINES = 20
"""Last lines of a worker that are kept for the message about its death."""
START_LIMIT_S = 900.0
"""Longest wait for a child to load its libraries; a cold network file system is slow."""
_GRACE_S = 5.0
_LOOK_S = 0.5
"""Between two looks at whether the child lives; a report is seen at once."""


class Silence(Exception):
    """No report within the time allowed."""


class WorkerProcess:
    """A child that trains, or a launcher of several.

    Args:
        command: to run; ``{fd}`` is replaced by the number of the report descriptor.
        fifo: a named pipe that the reports come through, where the trainer is the child of a launcher and inherits no
            descriptor; None gives the child one.
        environment: more variables.
    """

    def __init__(
        self, command: Sequence[str], *, fifo: Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        if fifo is None:
            self._reports, write = os.pipe()
        else:
            write = -1
            self._reports = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self.process = subprocess.Popen(
                [part.replace("{fd}", str(write)) for part in command],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(write,) if write >= 0 else (),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path()), **(environment or {})},
            )
        finally:
            if write >= 0:
                os.close(write)
        self.last_lines: collections.deque[str] = collections.deque(maxlen=STDERR_LINES)
        assert self.process.stderr is not None
        self._echo = threading.Thread(target=self._forward, args=(self.process.stderr,), daemon=True)
        self._echo.start()
        self._unread = b""
        self._is_ready = False

    def send(self, line: str) -> None:
        """Give the child one job.

        Raises:
            BrokenPipeError: it is gone.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def reports(self, *, silence_s: float | None) -> Iterator[AnyReport]:
        """Reports as they come, until the child closes its end or dies.

        Args:
            silence_s: longest wait for one, once the libraries are loaded; None waits for ever.

        Raises:
            Silence: the wait was longer.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._reports, selectors.EVENT_READ)
            heard = time.monotonic()
            while True:
                line, newline, rest = self._unread.partition(b"\n")
                if newline:
                    self._unread, heard, self._is_ready = rest, time.monotonic(), True
                    yield read_report(line)
                    continue
                is_dead = self.process.poll() is not None  # asked before the last look, so that no report is missed
                if selector.select(0 if is_dead else _LOOK_S):
                    data = os.read(self._reports, 1 << 16)
                    if not data:
                        return
                    self._unread += data
                elif is_dead:
                    return
                elif time.monotonic() - heard > (_for_ever(silence_s) if self._is_ready else START_LIMIT_S):
                    raise Silence

    def wait(self, *, grace_s: float = _GRACE_S) -> int:
        """Exit code of a child that closed its reports or has nothing left to do; one that lingers is killed."""
        try:
            code = self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._echo.join(_GRACE_S)
        return code

    def end(self, *, grace_s: float = 0.0) -> None:
        """End the child, whatever it does, and free what belongs to it.

        Args:
            grace_s: how long a launcher may take to end its own children, which see that their input has ended.
        """
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
            self.process.kill()
        self.process.wait()
        if self._reports >= 0:
            os.close(self._reports)
            self._reports = -1

    def _forward(self, lines: IO[bytes]) -> None:
        for raw in lines:
            line = raw.decode(errors="replace")
            self.last_lines.append(line.rstrip())
            sys.stderr.write(line)


def _for_ever(limit_s: float | None) -> float:
    return math.inf if limit_s is None else limit_s


def import_path() -> list[str]:
    """Where this process imports from, for a child that must import the same."""
    return [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path]


def worker_command(*, memory_limit_mb: int | None = None) -> list[str]:
    """The command line of a warm worker of this process."""
    command = [sys.executable, "-P", "-m", "policy.worker", "--report-fd", "{fd}"]
    if threading.current_thread() is threading.main_thread():  # the kernel watches the thread that starts a child
        command += ["--die-with-parent", str(os.getpid())]
    return command + (["--memory-limit-mb", str(memory_limit_mb)] if memory_limit_mb else [])


def how_it_died(code: int) -> str:
    """The end of a process in words, and what is likely behind it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return "was killed by SIGKILL, as the system does when memory runs out"
    if name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"):
        return f"was killed by {name}: a library crashed"
    return f"was killed by {name}"


def obituary(worker: WorkerProcess, *, within: str = "") -> TrainerDied:
    """What is said of a child that ended before its job did.

    Args:
        worker: that closed its reports.
        within: limits it lived under, for the message.
    """
    code = worker.wait()
    said = f"; its last words: {' | '.join(list(worker.last_lines)[-3:])}" if worker.last_lines else ""
    message = (
        f"the trainer (process {worker.process.pid}) {how_it_died(code)}{within}{said}; where memory is short, "
        "lower micro_batch_size or the policy's batch_size, or set gradient_checkpointing; finished rollout steps "
        "are kept: resume"
    )
    return TrainerOutOfMemory(message) if is_about_memory(" ".join(worker.last_lines)) else TrainerDied(message)


def follow(
    worker: WorkerProcess, job: AnyJob, progress: Progress | None, *, silence_s: float | None, within: str = ""
) -> Exception | None:
    """Pass a job's steps on until it ends; returns its typed failure, or None when it is done.

    Args:
        worker: that has the job.
        job: reads the steps.
        progress: takes them.
        silence_s: longest wait for one; None waits for ever.
        within: limits the child lives under, for the message about its death.

    Raises:
        TrainerDied: the child is gone, or says nothing.
    """
    try:
        for report in worker.reports(silence_s=silence_s):
            if isinstance(report, StepDone) and progress is not None:
                progress(job.read_step(report.metrics))
            elif isinstance(report, JobFailed):
                return rebuild(report.failure)
            elif isinstance(report, JobDone):
                return None
    except Silence:
        raise TrainerDied(
            f"the trainer (process {worker.process.pid}) reported nothing for {silence_s} s; it was ended; raise "
            "executor.silence_timeout_s if a rollout step takes longer, and resume"
        ) from None
    raise obituary(worker, within=within)
