"""The gang scheduler of the embedded cluster, with its own manager: `step` in virtual time, `run` in real time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.manager import ControllerManager
from gangjobs_sandbox.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.registry import Registry

__all__ = ["Scheduler", "scheduler_manager"]


def scheduler_manager(registry: Registry, clock: Clock) -> ControllerManager:
    """Build the manager of the scheduler. The caller drives it with `step` or `run`."""
    return ControllerManager(registry, clock, [Scheduler(registry, clock)])
