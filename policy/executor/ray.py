"""Train in a task on a Ray cluster; the home must be on a file system that its nodes share."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from harness.errors import UserError
from policy.config_executor import RayConfig
from policy.errors import TrainerDied
from policy.executor.base import BaseExecutor, OnDeath, Progress, with_tries
from policy.executor.worker_process import import_path
from policy.failure import rebuild
from policy.job import AnyJob
from policy.report import AnyReport, JobFailed, StepDone, read_report

_LOOK_S = 1.0
"""Between two looks at a running task for new steps."""
LOCAL_STORE_BYTES = 100 << 20
"""Object store of a cluster that this executor starts itself: jobs and reports are small."""


class RayExecutor(BaseExecutor):
    """One task per block; the cluster decides where it runs.

    Args:
        config: address, resources and tries.

    Raises:
        UserError: ray is not installed.
    """

    def __init__(self, config: RayConfig) -> None:
        if find_spec("ray") is None:
            raise UserError("the ray executor needs its package", do="`pip install ray`")
        self._config = config
        self._has_connected = False

    def warm(self) -> None:
        """Connect, or start the cluster of one node."""
        self._connect()

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._has_connected:
            import ray

            ray.shutdown()
            self._has_connected = False

    def _train(self, job: AnyJob, progress: Progress | None, on_death: OnDeath | None) -> None:
        with_tries(self._config.tries, lambda: self._attempt(job, progress), on_death)

    def _attempt(self, job: AnyJob, progress: Progress | None) -> None:
        import ray

        self._connect()
        reports = ray.remote(num_cpus=0)(_Reports).remote()
        task = ray.remote(num_cpus=self._config.num_cpus, num_gpus=self._config.num_gpus, max_retries=0)(_train_there)
        running = task.remote(job.model_dump_json(), os.getcwd(), reports)
        try:
            is_over = False
            while not is_over:
                is_over = bool(ray.wait([running], timeout=_LOOK_S)[0])
                self._pass_on(job, ray.get(reports.take.remote()), progress)
            last: AnyReport = read_report(ray.get(running))
        except ray.exceptions.RayTaskError as error:
            raise rebuild_unknown(error) from None
        except ray.exceptions.RayError as error:  # its worker or its node is gone, or the cluster
            words = " ".join(str(error).split())[:400]
            raise TrainerDied(
                f"the Ray task that trained died; got {type(error).__name__}: {words}; where memory is short, lower "
                "micro_batch_size or the policy's batch_size; finished rollout steps are kept: resume"
            ) from None
        finally:
            ray.cancel(running, force=True)
            ray.kill(reports)
        if isinstance(last, JobFailed):
            raise rebuild(last.failure)

    def _pass_on(self, job: AnyJob, lines: list[str], progress: Progress | None) -> None:
        for report in map(read_report, lines):
            if isinstance(report, StepDone) and progress is not None:
                progress(job.read_step(report.metrics))

    def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            return
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(import_path())}}
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning", "runtime_env": environment}
        if self._config.address == "local":
            ray.init(
                address="local",
                num_cpus=max(1, round(self._config.num_cpus)),
                object_store_memory=LOCAL_STORE_BYTES,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",  # reachable from this machine alone
                **quiet,
            )
        else:
            try:
                ray.init(address=self._config.address, **quiet)
            except (ConnectionError, ValueError) as error:
                raise UserError(
                    "cannot connect to the Ray cluster",
                    got=f"policy.executor.address={self._config.address!r} ({error})",
                    do="start one with `ray start --head`, give its address, or set address: local",
                ) from None
        self._has_connected = True


class _Reports:
    """An actor that keeps a task's reports until its owner takes them."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def put(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


def _train_there(line: str, folder: str, reports: Any) -> str:
    """The task: train a job on whichever node this is; returns its last report."""
    import ray

    from policy.report import JobDone
    from policy.worker import run_job

    if os.path.isdir(folder):
        os.chdir(folder)  # relative paths of the configuration
    last: list[AnyReport] = [JobDone()]

    def report(one: AnyReport) -> None:
        last[0] = one
        ray.get(reports.put.remote(one.model_dump_json()))

    run_job(line, report)
    return last[0].model_dump_json()


def rebuild_unknown(error: Exception) -> Exception:
    """What a task raised outside of training: its code could not even start there."""
    return UserError(
        "a Ray node cannot train",
        got=" ".join(str(error).split())[-400:],
        expected="this program, in the same version, importable on every node",
        do="install it there, or name it in the cluster's runtime environment",
    )
