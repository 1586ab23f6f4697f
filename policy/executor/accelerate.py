"""Train in several processes that ``accelerate launch`` starts for every block."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from harness.errors import UserError
from policy.config_executor import AccelerateConfig
from policy.executor.base import BaseExecutor, OnDeath, Progress, with_tries
from policy.executor.worker_process import WorkerProcess, follow
from policy.job import AnyJob

_GRACE_S = 20.0
"""For a launcher to end its processes before it is killed."""


class AccelerateExecutor(BaseExecutor):
    """One launch per block; the first process reports.

    Args:
        config: processes, and the configuration of accelerate.

    Raises:
        UserError: accelerate is not installed, or the configuration file is not there.
    """

    def __init__(self, config: AccelerateConfig) -> None:
        if find_spec("accelerate") is None:
            raise UserError("the accelerate executor needs its package", do="`pip install accelerate`")
        if config.config_file and not Path(config.config_file).is_file():
            raise UserError(
                "policy.executor.config_file cannot be read", got=config.config_file, expected="a file of accelerate"
            )
        self._config = config
        self._launch: WorkerProcess | None = None

    def close(self) -> None:
        """End the launch and its processes."""
        if self._launch is not None:
            self._launch.end(grace_s=_GRACE_S)
            self._launch = None

    def _train(self, job: AnyJob, progress: Progress | None, on_death: OnDeath | None) -> None:
        with_tries(self._config.tries, lambda: self._attempt(job, progress), on_death)

    def _attempt(self, job: AnyJob, progress: Progress | None) -> None:
        with tempfile.TemporaryDirectory(prefix="cohelix-launch-") as folder:
            file, fifo = Path(folder) / "job.json", Path(folder) / "reports"
            file.write_text(job.model_dump_json())
            os.mkfifo(fifo)
            self._launch = WorkerProcess(
                [*launch_command(self._config), "--job", str(file), "--reports", str(fifo)],
                fifo=fifo,
                environment=launch_environment(self._config, threads=job.config.threads),
            )
            try:
                failure = follow(self._launch, job, progress, silence_s=None)
                if failure is not None:
                    raise failure
                self._launch.wait(grace_s=_GRACE_S)
            finally:
                self.close()


def launch_command(config: AccelerateConfig) -> list[str]:
    """The launcher's command line, up to the arguments of :mod:`policy.worker`."""
    command = [sys.executable, "-P", "-m", "accelerate.commands.launch", "--num_processes", str(config.num_processes)]
    if config.config_file:
        command += ["--config_file", config.config_file]
    else:
        # --multi_gpu only means torch's own launcher; without a GPU the same processes train on CPU.
        several = ["--multi_gpu"] if config.num_processes > 1 else []
        command += [*several, "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        command += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(_free_port())]
    return [*command, "--module", "policy.worker"]


def launch_environment(config: AccelerateConfig, *, threads: int) -> dict[str, str]:
    """Variables of a launch: threads per process and, on one machine, processes that talk over the loopback."""
    loopback = {} if config.config_file or sys.platform != "linux" else {"GLOO_SOCKET_IFNAME": "lo"}
    return {"OMP_NUM_THREADS": str(threads), **loopback}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
