"""One ``policy.worker`` process as its owner sees it: start, send, listen, end."""

from __future__ import annotations

import collections
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from policy.report import AnyReport, read_report

STDERR_LINES = 20
"""Last lines of a worker that are kept for the message about its death."""
START_LIMIT_S = 900.0
"""Longest wait for a child to load its libraries; a cold network file system is slow."""
_GRACE_S = 5.0


class Silence(Exception):
    """No report within the time allowed."""


class WorkerProcess:
    """A child that trains.

    Args:
        command: to run; ``{fd}`` is replaced by the number of the report descriptor.
        environment: more variables.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self._reports, write = os.pipe()
        try:
            self.process = subprocess.Popen(
                [part.replace("{fd}", str(write)) for part in command],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(write,),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path()), **(environment or {})},
            )
        finally:
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
        """Reports as they come, until the child closes its end.

        Args:
            silence_s: longest wait for one, once the libraries are loaded; None waits for ever.

        Raises:
            Silence: the wait was longer.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._reports, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._unread.partition(b"\n")
                if newline:
                    self._unread = rest
                    report = read_report(line)
                    self._is_ready = True
                    yield report
                    continue
                if not selector.select(silence_s if self._is_ready else START_LIMIT_S):
                    raise Silence
                data = os.read(self._reports, 1 << 16)
                if not data:
                    return
                self._unread += data

    def wait(self) -> int:
        """Exit code of a child that closed its reports; one that lingers is killed."""
        try:
            code = self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._echo.join(_GRACE_S)
        return code

    def end(self) -> None:
        """Kill the child, whatever it does, and free what belongs to it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._reports >= 0:
            os.close(self._reports)
            self._reports = -1
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass

    def _forward(self, lines: IO[bytes]) -> None:
        for raw in lines:
            line = raw.decode(errors="replace")
            self.last_lines.append(line.rstrip())
            sys.stderr.write(line)


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
