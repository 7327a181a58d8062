"""Every change of every object of the embedded cluster, as the API server stored it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.labels import LABEL_GANG, LABEL_ROLE, LABEL_TASK, Role
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.submission.jobs import JobState, job_state
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODS
from gangjobs_sandbox.store import EventType

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from gangjobs_sandbox.resources import Resource
    from gangjobs_sandbox.store import Event
    from gangjobs_sandbox.thread import SandboxThread

Obj = dict[str, Any]


@dataclass
class ClusterHistory:
    """The history of a cluster, from when it was called in."""

    cluster: SandboxThread
    history: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, cluster: SandboxThread) -> ClusterHistory:
        cluster_history = cls(cluster)
        cluster.call(lambda sandbox: sandbox.registry.observe(cluster_history.history.append))
        return cluster_history

    def jobs_created(self, key: TaskKey) -> list[Obj]:
        """All Jobs that the task ever had, as they were created."""
        return [event.obj for event in self._of(JOBS, key) if event.type is EventType.ADDED]

    def jobs(self, key: TaskKey) -> list[Obj]:
        """Those that are there, and are not being deleted."""
        selector = f"{LABEL_TASK}={key.digest}"
        found: list[Obj] = self.cluster.call(lambda sandbox: sandbox.registry.list(JOBS, label_selector=selector))
        return [job for job in found if "deletionTimestamp" not in job["metadata"]]

    def live_at_once(self, key: TaskKey) -> int:
        """How many Jobs of the task were live at the same time, at most."""
        states: dict[str, JobState | None] = {}
        most = 0
        for event in self._of(JOBS, key):
            gone = event.type is EventType.DELETED
            states[event.obj["metadata"]["uid"]] = None if gone else job_state(read_job(event.obj))
            most = max(most, list(states.values()).count(JobState.LIVE))
        return most

    def pods(self, key: TaskKey) -> list[Obj]:
        selector = f"{LABEL_TASK}={key.digest}"
        found: list[Obj] = self.cluster.call(lambda sandbox: sandbox.registry.list(PODS, label_selector=selector))
        return found

    def pod_uids(self, key: TaskKey) -> set[str]:
        """Of all pods that the task ever had."""
        return {event.obj["metadata"]["uid"] for event in self._of(PODS, key)}

    def deliveries(self, key: TaskKey) -> int:
        """How often a Job of the task was marked as delivered."""
        return len(
            [
                event
                for event in self._of(JOBS, key)
                if read_job(event.obj).is_delivered and event.old is not None and not read_job(event.old).is_delivered
            ]
        )

    def recorded(self, key: TaskKey) -> dict[str, set[str]]:
        """Each outcome that was ever recorded for a pod of the task, by the pod's uid."""
        gangs = {job["metadata"]["name"] for job in self.jobs_created(key)}
        found: dict[str, set[str]] = {}
        for event in list(self.history):
            labels = event.obj["metadata"].get("labels") or {}
            is_ledger = event.resource is CONFIGMAPS and labels.get(LABEL_ROLE) == Role.LEDGER
            if is_ledger and labels.get(LABEL_GANG) in gangs:
                for uid, text in (event.obj.get("data") or {}).items():
                    found.setdefault(uid, set()).add(text)
        return found

    def _of(self, resource: Resource, key: TaskKey) -> list[Event]:
        return [
            event
            for event in list(self.history)
            if event.resource is resource and (event.obj["metadata"].get("labels") or {}).get(LABEL_TASK) == key.digest
        ]
