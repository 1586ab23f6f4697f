"""Train in several processes that ``accelerate launch`` starts for every block."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import yaml

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
        UserError: accelerate is not installed, or the configuration file is not there or names DeepSpeed.
    """

    def __init__(self, config: AccelerateConfig) -> None:
        if find_spec("accelerate") is None:
            raise UserError("the accelerate executor needs its package", do="`pip install accelerate`")
        if config.config_file:
            _check_file(Path(config.config_file))
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
                [*launch_command(self._config, Path(folder)), "--job", str(file), "--reports", str(fifo)],
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


def launch_command(config: AccelerateConfig, folder: Path) -> list[str]:
    """The launcher's command line, up to the arguments of :mod:`policy.worker`.

    Args:
        config: processes, and the configuration of accelerate.
        folder: where a configuration is written if none is given: accelerate would look for one in the user's cache.
    """
    file = config.config_file or str(folder / "launch.yaml")
    if not config.config_file:
        # MULTI_GPU only means torch's own launcher; without a GPU the same processes train on CPU.
        own = {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "MULTI_GPU" if config.num_processes > 1 else "NO",
            "num_machines": 1,
            "machine_rank": 0,
            "main_process_ip": "127.0.0.1",
            "main_process_port": free_port(),
            "mixed_precision": "no",
            "use_cpu": False,
        }
        Path(file).write_text(yaml.safe_dump(own))
    command = [sys.executable, "-P", "-m", "accelerate.commands.launch", "--config_file", file]
    return [*command, "--num_processes", str(config.num_processes), "--module", "policy.worker"]


def _check_file(file: Path) -> None:
    """Refuse a configuration that is not there, and DeepSpeed, whose checkpoints could not be whole."""
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            "policy.executor.config_file cannot be read", got=f"{file} ({error})", expected="a YAML file of accelerate"
        ) from None
    if isinstance(read, dict) and read.get("distributed_type") == "DEEPSPEED":
        raise UserError(
            "training under DeepSpeed is refused",
            got=f"distributed_type: DEEPSPEED in {file}",
            expected="MULTI_GPU or FSDP (configs/accelerate)",
            do="take one of those: DeepSpeed keeps its optimizer state in flat parts that no checkpoint here can hold",
        )


def launch_environment(config: AccelerateConfig, *, threads: int) -> dict[str, str]:
    """Variables of a launch: threads per process and, on one machine, processes that talk over the loopback."""
    loopback = {} if config.config_file or sys.platform != "linux" else {"GLOO_SOCKET_IFNAME": "lo"}
    return {"OMP_NUM_THREADS": str(threads), **loopback}


def free_port() -> int:
    """A port on the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
