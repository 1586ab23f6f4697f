"""Where training blocks run: in this process, in a child, on a Ray cluster, or in several processes."""

from __future__ import annotations

from policy.config_executor import (
    AccelerateConfig,
    AnyExecutorConfig,
    InProcessConfig,
    RayConfig,
    SubprocessConfig,
)
from policy.executor.base import Executor


def make_executor(config: AnyExecutorConfig) -> Executor:
    """The executor that a configuration describes; nothing is started and no heavy library imported yet.

    Raises:
        UserError: the executor needs a package that is not installed.
    """
    if isinstance(config, InProcessConfig):
        from policy.executor.in_process import InProcessExecutor

        return InProcessExecutor()
    if isinstance(config, SubprocessConfig):
        from policy.executor.subprocess import SubprocessExecutor

        return SubprocessExecutor(config)
    if isinstance(config, RayConfig):
        from policy.executor.ray import RayExecutor

        return RayExecutor(config)
    from policy.executor.accelerate import AccelerateExecutor

    return AccelerateExecutor(config)


__all__ = ["AccelerateConfig", "Executor", "make_executor"]
