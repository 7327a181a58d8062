"""The controllers of the embedded cluster, and the manager that runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers import node_lifecycle
from gangjobs_sandbox.controllers.garbage import GarbageCollector
from gangjobs_sandbox.controllers.job.controller import JobController
from gangjobs_sandbox.controllers.job.workload import WorkloadWithJob
from gangjobs_sandbox.controllers.manager import Controller, ControllerManager
from gangjobs_sandbox.controllers.namespaces import NamespaceController
from gangjobs_sandbox.controllers.node_lifecycle import NodeLifecycle
from gangjobs_sandbox.controllers.podgc import PodGc
from gangjobs_sandbox.controllers.podgroup_protection import PodGroupProtection
from gangjobs_sandbox.controllers.ttl import TtlAfterFinished

if TYPE_CHECKING:
    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.registry import Registry

__all__ = ["Controller", "ControllerManager", "ControllerSettings", "build_controllers", "controller_manager"]


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """The settings that are flags and feature gates of kube-controller-manager, with the same defaults."""

    workload_with_job: bool = False
    """Let the Job controller create Workload and PodGroup (KEP-5547, alpha). No effect before 1.36."""
    node_grace_s: float = node_lifecycle.GRACE_S
    """The time in seconds without a heartbeat after which a node is lost (`--node-monitor-grace-period`)."""


def build_controllers(registry: Registry, clock: Clock, settings: ControllerSettings) -> list[Controller]:
    """Build all controllers with their initial state."""
    gangs = WorkloadWithJob(registry) if settings.workload_with_job and registry.release.has_pod_groups else None
    return [
        JobController(registry, clock, gangs=gangs),
        GarbageCollector(registry, clock),
        TtlAfterFinished(registry, clock),
        PodGc(registry, clock),
        PodGroupProtection(registry, clock),
        NamespaceController(registry, clock),
        NodeLifecycle(registry, clock, grace_s=settings.node_grace_s),
    ]


def controller_manager(
    registry: Registry, clock: Clock, settings: ControllerSettings | None = None
) -> ControllerManager:
    """Build the manager of all controllers. The caller drives it with `step` or `run`."""
    return ControllerManager(registry, clock, build_controllers(registry, clock, settings or ControllerSettings()))
