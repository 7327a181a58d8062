"""Jobs, pods and PodGroups in domain words: `pod("a").rank(0).on("node-a").failed(137).held()`.

Times are seconds after the creation of the Job. Each method changes the builder and returns it. `view()` is the view
of the product, and `obj` is the object as a server sends it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.record import read_record
from airflow_provider_gangjobs.gang.state.stopped import Stopped, format_stopped, stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.kube.views import EventView, JobView, KueueWorkloadView, PodGroupView, PodView, view
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_RECORD,
    ANNOTATION_STOPPED,
    FINALIZER_HARVEST,
    LABEL_ATTEMPT,
    LABEL_GANG,
)
from tests.annotations import claimed, recorded

CREATED = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)
REF = GangRef(namespace="team", name="train-0", uid="job-uid")
INDEX = "batch.kubernetes.io/job-completion-index"


def at(seconds: float) -> datetime:
    return CREATED + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return at(seconds).isoformat().replace("+00:00", "Z")


def condition(kind: str, status: bool, when: float, reason: str = "", message: str = "") -> dict[str, Any]:
    said = {"type": kind, "status": str(status), "reason": reason, "message": message}
    return {**said, "lastTransitionTime": text(when)}


class JobBuilder:
    """An Indexed Job of some ranks that the Job controller has not handled yet."""

    def __init__(self, ranks: int = 4, uid: str = REF.uid) -> None:
        self.obj: dict[str, Any] = {
            "metadata": {
                "name": REF.name,
                "namespace": REF.namespace,
                "uid": uid,
                "labels": {LABEL_GANG: REF.name, LABEL_ATTEMPT: "0"},
                "annotations": recorded(),
                "creationTimestamp": text(0),
            },
            "spec": {"parallelism": ranks, "completions": ranks, "completionMode": "Indexed", "suspend": False},
            "status": {"conditions": []},
        }

    def view(self) -> JobView:
        return view(JobView, self.obj)

    def read(self) -> StoredGang:
        return read_job(self.obj)

    def _status(self, **fields: Any) -> Self:
        self.obj["status"] |= fields
        return self

    def _condition(self, *args: Any, **kwargs: Any) -> Self:
        new = condition(*args, **kwargs)
        others = [item for item in self.obj["status"]["conditions"] if item["type"] != new["type"]]
        return self._status(conditions=[*others, new])

    def label(self, key: str, value: str) -> Self:
        self.obj["metadata"]["labels"][key] = value
        return self

    def annotation(self, key: str, value: str) -> Self:
        self.obj["metadata"]["annotations"][key] = value
        return self

    def stopped(self, by: Stopped | None = None) -> Self:
        return self.annotation(ANNOTATION_STOPPED, format_stopped(by or stopped_by_user("by hand")))

    def annotations(self, values: dict[str, str]) -> Self:
        self.obj["metadata"]["annotations"] |= values
        return self

    def record(self, **fields: Any) -> Self:
        """The record that was written with the Job, with these fields."""
        known = read_record(self.obj["metadata"]["annotations"][ANNOTATION_RECORD]).record
        return self.annotation(ANNOTATION_RECORD, replace(known, **fields).to_text())

    def claim(self, claim: str = "ti-1", **fields: Any) -> Self:
        """The task instance that is responsible for the gang."""
        return self.annotations(claimed(claim, **fields))

    def spec(self, **fields: Any) -> Self:
        self.obj["spec"] |= fields
        return self

    def submitted_suspended(self) -> Self:
        return self.spec(suspend=True)

    def suspended(self, when: float = 0) -> Self:
        return self.spec(suspend=True)._condition("Suspended", True, when, "JobSuspended")

    def resumed(self, when: float) -> Self:
        return self.spec(suspend=False)._condition("Suspended", False, when, "JobResumed").started(when)

    def started(self, when: float) -> Self:
        return self._status(startTime=text(when))

    def counts(self, **fields: Any) -> Self:
        return self._status(**fields)

    def decided(self, kind: str, when: float, reason: str = "") -> Self:
        return self._condition(kind, True, when, reason)

    def complete(self, when: float) -> Self:
        ranks = self.obj["spec"]["completions"]
        self.decided("SuccessCriteriaMet", when, "CompletionsReached")
        self._condition("Complete", True, when, "CompletionsReached")
        return self._status(completionTime=text(when), succeeded=ranks, completedIndexes=f"0-{ranks - 1}")

    def failed(self, when: float, reason: str = "BackoffLimitExceeded", message: str = "") -> Self:
        self.decided("FailureTarget", when, reason)
        return self._condition("Failed", True, when, reason, message)

    def deleted(self, when: float) -> Self:
        self.obj["metadata"]["deletionTimestamp"] = text(when)
        return self


class PodBuilder:
    """A pod of the gang, created and not yet placed."""

    def __init__(self, name: str = "pod", uid: str | None = None) -> None:
        self.obj: dict[str, Any] = {
            "metadata": {
                "name": name,
                "namespace": REF.namespace,
                "uid": uid or f"uid-{name}",
                "labels": {
                    LABEL_GANG: REF.name,
                    LABEL_ATTEMPT: "0",
                    "batch.kubernetes.io/controller-uid": REF.uid,
                },
                "annotations": {},
                "finalizers": ["batch.kubernetes.io/job-tracking"],
                "creationTimestamp": text(1),
            },
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x:1"}]},
            "status": {"phase": "Pending", "conditions": [], "containerStatuses": []},
        }

    def view(self) -> PodView:
        return view(PodView, self.obj)

    def created(self, when: float) -> Self:
        self.obj["metadata"]["creationTimestamp"] = text(when)
        return self

    def rank(self, rank: int) -> Self:
        self.obj["metadata"]["annotations"][INDEX] = str(rank)
        return self

    def of_job(self, uid: str) -> Self:
        self.obj["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] = uid
        return self

    def held(self) -> Self:
        self.obj["metadata"]["finalizers"].append(FINALIZER_HARVEST)
        return self

    def condition(self, *args: Any, **kwargs: Any) -> Self:
        self.obj["status"]["conditions"].append(condition(*args, **kwargs))
        return self

    def on(self, node: str, when: float = 2) -> Self:
        self.obj["spec"]["nodeName"] = node
        return self.condition("PodScheduled", True, when)

    def unschedulable(self, message: str, when: float = 2) -> Self:
        return self.condition("PodScheduled", False, when, "Unschedulable", message)

    def gated(self, *gates: str, when: float = 2) -> Self:
        """The API server has created the pod with these scheduling gates; without any, they were removed since."""
        self.obj["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
        message = "Scheduling is blocked due to non-empty scheduling gates"
        return self.condition("PodScheduled", False, when, "SchedulingGated", message)

    def waiting(self, reason: str, message: str = "") -> Self:
        return self._container({"waiting": {"reason": reason, "message": message}})

    def running(self, since: float = 5) -> Self:
        self.obj["status"]["phase"] = "Running"
        return self._container({"running": {"startedAt": text(since)}})

    def succeeded(self, when: float = 60, message: str = "", started: float = 5) -> Self:
        return self._ended("Succeeded", 0, when, "Completed", message, started)

    def failed(
        self, exit_code: int = 1, when: float = 60, reason: str = "Error", message: str = "", started: float = 5
    ) -> Self:
        return self._ended("Failed", exit_code, when, reason, message, started)

    def container_removed(self, *, is_marked: bool = False) -> Self:
        """The kubelet removed the container before it read its end, as it does with evicted pods.

        :param is_marked: True for the last status, which the kubelet writes when it has unmounted the volumes.
        """
        where = "deleted.  The container used to be Running" if not is_marked else "terminated"
        message = f"The container could not be located when the pod was {where}"
        code = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}
        unknown = {"terminated": {**code, "startedAt": None, "finishedAt": None}}
        state = unknown if is_marked else {"waiting": {"reason": "ContainerCreating"}}
        self._container(state)
        self.obj["status"]["containerStatuses"][0] |= {"lastState": unknown, "restartCount": 1}
        return self

    def phase(self, phase: str, reason: str = "", message: str = "") -> Self:
        self.obj["status"] |= {"phase": phase, "reason": reason, "message": message}
        return self

    def deleted(self, asked: float, grace: int = 30) -> Self:
        fields = {"deletionTimestamp": text(asked + grace), "deletionGracePeriodSeconds": grace}
        self.obj["metadata"] |= fields
        return self

    def disrupted(self, reason: str, when: float) -> Self:
        return self.condition("DisruptionTarget", True, when, reason)

    def sidecar(self, name: str, exit_code: int, when: float = 60) -> Self:
        self.obj["spec"]["containers"].append({"name": name})
        state = {"terminated": {"exitCode": exit_code, "reason": "Error", "finishedAt": text(when)}}
        self.obj["status"]["containerStatuses"].insert(0, {"name": name, "state": state})
        return self

    def main_ended(self, when: float, exit_code: int = 0, *, kept_by: str = "istio-proxy", **fields: Any) -> Self:
        """The main container of a running pod has ended for good, and another container runs on.

        :param fields: Fields of the spec of the main container.
        """
        reason = "Error" if exit_code else "Completed"
        self._ended("Running", exit_code, when, reason, "", 5)
        spec = self.obj["spec"]
        spec |= {"restartPolicy": "Never", "containers": [spec["containers"][0] | fields, {"name": kept_by}]}
        self.obj["status"]["containerStatuses"].append({"name": kept_by, "state": {"running": {"startedAt": text(5)}}})
        return self

    def restarts(self, count: int) -> Self:
        self.obj["status"]["containerStatuses"][0]["restartCount"] = count
        return self

    def _ended(self, phase: str, code: int, when: float, reason: str, message: str, started: float) -> Self:
        self.phase(phase)
        times = {"startedAt": text(started), "finishedAt": text(when)}
        return self._container({"terminated": {"exitCode": code, "reason": reason, "message": message, **times}})

    def _container(self, state: dict[str, Any]) -> Self:
        self.obj["status"]["containerStatuses"] = [{"name": "main", "state": state, "restartCount": 0}]
        return self


def job(ranks: int = 4, uid: str = REF.uid) -> JobBuilder:
    return JobBuilder(ranks, uid)


def pod(name: str = "pod", uid: str | None = None) -> PodBuilder:
    return PodBuilder(name, uid)


def podgroup(min_count: int, *conditions: dict[str, Any]) -> PodGroupView:
    spec, status = {"schedulingPolicy": {"gang": {"minCount": min_count}}}, {"conditions": list(conditions)}
    return view(PodGroupView, {"metadata": {"name": REF.name, "uid": "group"}, "spec": spec, "status": status})


def kueue_workload(*conditions: dict[str, Any], active: bool = True, **status: Any) -> KueueWorkloadView:
    """Kueue's Workload of the gang, with further fields of its status."""
    spec, status = {"active": active}, {"conditions": list(conditions), **status}
    return view(KueueWorkloadView, {"metadata": {"name": "w"}, "spec": spec, "status": status})


def event(reason: str, message: str, when: float = 1) -> EventView:
    return view(EventView, {"reason": reason, "message": message, "lastTimestamp": text(when)})


def ranks(count: int, made: Any = lambda builder: builder) -> list[PodView]:
    """Return the pods of ranks 0 to count-1, each changed by `made`."""
    return [made(pod(f"pod-{rank}").rank(rank)).view() for rank in range(count)]
