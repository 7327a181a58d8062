"""Questions about the history of an embedded cluster, which its registry reports as it stores each change."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.well_known import LABEL_TASK
from gangjobs_sandbox.resources import JOBS, PODS
from tests.guarantees.checkers import claim_is_linear, nothing_held, one_gang
from tests.guarantees.history import CONFIGMAPS, ChangeType, History

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from gangjobs_sandbox.thread import SandboxThread
    from tests.guarantees.history import Change

Obj = dict[str, Any]


@dataclass
class ClusterHistory:
    """The history of a cluster since `of` was called."""

    cluster: SandboxThread
    history: History = field(default_factory=History)

    @classmethod
    def of(cls, cluster: SandboxThread) -> ClusterHistory:
        cluster_history = cls(cluster)
        cluster.call(lambda sandbox: sandbox.registry.observe(cluster_history.history.observer(time.time)))
        return cluster_history

    def check(self) -> None:
        """Assert the guarantees that concern only the cluster, on everything that has happened."""
        history = self.history
        found = [*one_gang(history), *nothing_held(history), *claim_is_linear(history)]
        assert not found, "\n".join(map(str, found))

    def jobs_created(self, key: TaskKey) -> list[Obj]:
        """Return all Jobs that the task has ever had, as they were created."""
        return [change.obj for change in self.history.of(JOBS, task=key.digest) if change.type is ChangeType.ADDED]

    def jobs(self, key: TaskKey) -> list[Obj]:
        """Return the Jobs of the task that exist and are not being deleted."""
        return [job for job in self._existing(JOBS, key) if "deletionTimestamp" not in job["metadata"]]

    def live_at_once(self, key: TaskKey) -> int:
        """Return the largest number of Jobs of the task that were live at the same time."""
        states: dict[str, SubmissionState | None] = {}
        most = 0
        for change in self.history.of(JOBS, task=key.digest):
            states[change.uid] = None if change.is_deletion else state_of(read_job(change.obj))
            most = max(most, list(states.values()).count(SubmissionState.IN_PROGRESS))
        return most

    def pods(self, key: TaskKey) -> list[Obj]:
        return self._existing(PODS, key)

    def pod_uids(self, key: TaskKey) -> set[str]:
        """Return the UIDs of all pods that the task has ever had."""
        return {change.uid for change in self.history.of(PODS, task=key.digest)}

    def deliveries(self, key: TaskKey) -> int:
        """Return how often a Job of the task was delivered: marked as delivered, or deleted after its success."""
        return sum(map(_is_delivery, self.history.of(JOBS, task=key.digest)))

    def recorded(self, key: TaskKey) -> dict[str, set[str]]:
        """Return all versions of the ledger entry of each pod of the task, by the UID of the pod."""
        gangs = {job["metadata"]["name"] for job in self.jobs_created(key)}
        found: dict[str, set[str]] = {}
        for change in self.history.of(CONFIGMAPS):
            if change.is_ledger and change.gang in gangs:
                for uid, text in (change.obj.get("data") or {}).items():
                    found.setdefault(uid, set()).add(text)
        return found

    def _existing(self, resource: Any, key: TaskKey) -> list[Obj]:
        selector = f"{LABEL_TASK}={key.digest}"
        found: list[Obj] = self.cluster.call(lambda sandbox: sandbox.registry.list(resource, label_selector=selector))
        return found


def _is_delivery(change: Change) -> bool:
    after, before = read_job(change.obj), None if change.old is None else read_job(change.old)
    if change.is_deletion:
        return after.complete_condition is not None and not after.is_delivered
    return before is not None and after.is_delivered and not before.is_delivered
