"""A namespace in a control plane with controllers and scheduler, in which the test acts as the kubelet.

Nodes are objects without a kubelet, so that only the test changes the status of pods.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gangjobs_sandbox.releases import RELEASES, Release
from tests.leftovers import delete_gangs
from tests.replies import accepted
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from tests.conformance.targets import Target

T = TypeVar("T")
Obj = dict[str, Any]

WITHIN_S = TIMEOUT_S
"""PodGC, the slowest of those that tests wait for, comes round every 20 seconds."""
POLL_S = 0.05
TRACKING = "batch.kubernetes.io/job-tracking"
FOREIGN = "example.org/hold"
NODE_LIST = "/api/v1/nodes"

_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
_MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass
class Namespace:
    """One namespace, its objects said in few words. Every call is one request that must be accepted."""

    target: Target
    api: httpx.Client
    name: str
    nodes: list[str] = field(default_factory=list)

    @property
    def release(self) -> Release:
        return RELEASES[self.target.release]

    def path(self, plural: str, name: str = "", subresource: str = "") -> str:
        if plural == "jobs":
            root = "/apis/batch/v1"
        elif plural in ("workloads", "podgroups"):
            root = f"/apis/scheduling.k8s.io/{self.release.scheduling_version}"
        else:
            root = "/api/v1"
        return "/".join(part for part in (root, "namespaces", self.name, plural, name, subresource) if part)

    def create(self, plural: str, obj: Obj) -> Obj:
        return accepted(self.api.post(self.path(plural), json=obj))

    def get(self, plural: str, name: str) -> Obj:
        return accepted(self.api.get(self.path(plural, name)))

    def find(self, plural: str, name: str) -> Obj | None:
        """None if it is not there."""
        response = self.api.get(self.path(plural, name))
        return None if response.status_code == 404 else accepted(response)

    def list_objects(self, plural: str, **parameters: str) -> list[Obj]:
        items: list[Obj] = accepted(self.api.get(self.path(plural), params=parameters))["items"]
        return items

    def patch(self, plural: str, name: str, patch: Obj, subresource: str = "") -> Obj:
        return accepted(self.api.patch(self.path(plural, name, subresource), json=patch, headers=_MERGE))

    def delete(self, plural: str, name: str, **options: Any) -> None:
        accepted(self.api.request("DELETE", self.path(plural, name), json=options))

    # -- Jobs and their pods --

    def job(self, name: str = "j") -> Obj:
        return self.get("jobs", name)

    def pods(self, job: str | None = None) -> list[Obj]:
        """Pods of a Job, or all, in order of their indexes and then of their creation."""
        selected = {"labelSelector": f"batch.kubernetes.io/job-name={job}"} if job else {}
        return sorted(
            self.list_objects("pods", **selected), key=lambda pod: (_index(pod), pod["metadata"]["creationTimestamp"])
        )

    def run_job(self, manifest: Obj) -> list[Obj]:
        """Create a Job of two pods on new nodes that have started the pods. Return the pods."""
        self.add_nodes()
        self.create("jobs", manifest)
        pods = self.wait_bound(2)
        self.set_running(*pods)
        return pods

    def delete_job(self, propagation: str | None, name: str = "j") -> None:
        """Delete a Job, by default without a policy, and wait until the Job is gone."""
        self.delete("jobs", name, **({"propagationPolicy": propagation} if propagation else {}))
        self.wait_gone("jobs", name)

    def wait_pods(self, count: int, job: str = "j") -> list[Obj]:
        """The Job's pods, when there are so many that are not being deleted."""

        def living() -> list[Obj] | None:
            pods = [pod for pod in self.pods(job) if "deletionTimestamp" not in pod["metadata"]]
            return pods if len(pods) == count else None

        return self.wait_until(living, lambda: f"{count} pods: {[_brief(pod) for pod in self.pods(job)]}")

    def wait_bound(self, count: int, job: str = "j") -> list[Obj]:
        """The Job's pods that have a node, when there are so many."""

        def bound() -> list[Obj] | None:
            pods = [pod for pod in self.pods(job) if pod["spec"].get("nodeName")]
            return pods if len(pods) == count else None

        return self.wait_until(bound, lambda: f"{count} bound pods: {[_brief(pod) for pod in self.pods(job)]}")

    def wait_job(self, condition: str, status: str = "True", *, job: str = "j") -> Obj:
        """The Job, when it has this condition."""
        return self.wait_condition("jobs", job, condition, status)

    def wait_status(self, name: str = "j", **fields: Any) -> Obj:
        """The Job, when its status has these numbers; `...` stands for any that is neither zero nor empty."""

        def has() -> Obj | None:
            job = self.job(name)
            status = job.get("status", {})
            is_reached = all(
                status.get(key) if value is ... else status.get(key) == value for key, value in fields.items()
            )
            return job if is_reached else None

        return self.wait_until(has, lambda: f"{fields}: {self.job(name).get('status')}")

    def wait_deletion_requested(self, job: str | None = None) -> None:
        """Wait until somebody has deleted all pods of a Job, or all pods, which may be held."""
        self.wait_until(
            lambda: all("deletionTimestamp" in pod["metadata"] for pod in self.pods(job)),
            lambda: "pods that are being deleted",
        )

    def wait_finalizers(self, *finalizers: str) -> None:
        """Wait until each pod has these finalizers only."""
        self.wait_until(
            lambda: all(pod["metadata"].get("finalizers", []) == [*finalizers] for pod in self.pods()),
            lambda: f"finalizers {finalizers}: {[pod['metadata'] for pod in self.pods()]}",
        )

    def wait_no_pods(self, job: str | None = None) -> None:
        self.wait_until(lambda: not self.pods(job), lambda: f"no pods: {[_brief(pod) for pod in self.pods(job)]}")

    def wait_condition(self, plural: str, name: str, condition: str, status: str = "True") -> Obj:
        def has() -> Obj | None:
            obj = self.get(plural, name)
            found = condition_of(obj, condition)
            return obj if found and found["status"] == status else None

        return self.wait_until(has, lambda: f"{condition}={status}: {self.get(plural, name).get('status')}")

    def wait_gone(self, plural: str, name: str) -> None:
        self.wait_until(
            lambda: self.find(plural, name) is None, lambda: f"no {plural}/{name}: {self.find(plural, name)}"
        )

    def wait_event(self, reason: str, kind: str) -> Obj:
        """An Event of this reason about an object of this kind."""
        fields = f"reason={reason},involvedObject.kind={kind}"
        found = self.wait_until(
            lambda: self.list_objects("events", fieldSelector=fields), lambda: f"an event {reason} of a {kind}"
        )
        return found[0]

    def history(self, plural: str, created: Obj) -> list[Obj]:
        """All states of an object from its creation until now, as a watch tells them."""
        metadata = created["metadata"]
        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={metadata['name']}",
            "resourceVersion": metadata["resourceVersion"],
            "timeoutSeconds": str(int(TIMEOUT_S)),
        }
        last = self.get(plural, metadata["name"])["metadata"]["resourceVersion"]
        states = [created]
        with self.api.stream("GET", self.path(plural), params=query) as response:
            for line in response.iter_lines():
                states.append(json.loads(line)["object"])
                if states[-1]["metadata"]["resourceVersion"] == last:
                    break
        return states

    def wait_until(self, seen: Callable[[], T | None], what: Callable[[], str], within_s: float = WITHIN_S) -> T:
        """What `seen` returns as soon as it is true; fails with `what` was waited for."""
        deadline = time.monotonic() + within_s
        while True:
            if found := seen():
                return found
            assert time.monotonic() < deadline, f"{self.target.name}: waited {within_s:.0f} s for {what()}"
            time.sleep(POLL_S)

    # -- the node --

    def add_nodes(self, count: int = 2, cpu: int = 2) -> list[str]:
        """Nodes that are ready and have room for `cpu` pods of one CPU each."""
        names = [f"hollow-{uuid.uuid4().hex[:6]}" for _ in range(count)]
        for name in names:
            accepted(self.api.post(NODE_LIST, json={"metadata": {"name": name}}))
            self.nodes.append(name)
            accepted(self.api.patch(f"{NODE_LIST}/{name}/status", json=_ready(cpu), headers=_STRATEGIC))
        self.untaint()
        return names

    def taint(self, taint: Obj, *, only: str | None = None) -> None:
        """Put the taint on all nodes, or on one."""
        for name in self.nodes if only is None else [only]:
            accepted(self.api.patch(f"{NODE_LIST}/{name}", json={"spec": {"taints": [taint]}}, headers=_MERGE))

    def untaint(self) -> None:
        """Remove all taints of all nodes."""
        for name in self.nodes:
            accepted(self.api.patch(f"{NODE_LIST}/{name}", json={"spec": {"taints": None}}, headers=_MERGE))

    def set_running(self, *pods: Obj) -> None:
        """The node says that the pods run."""
        for pod in pods:
            self._status(pod, {"phase": "Running", "conditions": [_condition("Ready", "True")]})

    def set_terminated(self, *pods: Obj, exit_code: int = 0, message: str = "", **status: Any) -> None:
        """The node says how the pods' containers ended. Pods that are being deleted go then, unless held."""
        for pod in pods:
            phase = "Failed" if exit_code else "Succeeded"
            self._status(pod, {"phase": phase, "containerStatuses": [_ended(exit_code, message)], **status})
            if "deletionTimestamp" in self.get("pods", pod["metadata"]["name"])["metadata"]:
                self.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)

    def remove_finalizer(self, *pods: Obj) -> None:
        """Take our finalizer off."""
        for pod in pods:
            patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [FOREIGN]}}
            path = self.path("pods", pod["metadata"]["name"])
            accepted(self.api.patch(path, json=patch, headers=_STRATEGIC))

    def _status(self, pod: Obj, status: Obj) -> None:
        path = self.path("pods", pod["metadata"]["name"], "status")
        accepted(self.api.patch(path, json={"status": status}, headers=_STRATEGIC))

    @classmethod
    @contextmanager
    def opened(cls, target: Target, api: httpx.Client) -> Iterator[Self]:
        """A new namespace. At the end its Jobs, its pods and its nodes are deleted."""
        name = f"conformance-{uuid.uuid4().hex[:8]}"
        accepted(api.post("/api/v1/namespaces", json={"metadata": {"name": name}}))
        namespace = cls(target, api, name)
        try:
            yield namespace
        finally:
            namespace._clear()

    def _clear(self) -> None:
        for node in self.nodes:
            self.api.delete(f"{NODE_LIST}/{node}")
        delete_gangs(self.api, self.name)


def condition_of(obj: Obj, kind: str) -> Obj | None:
    for condition in obj.get("status", {}).get("conditions") or ():
        if condition["type"] == kind:
            found: Obj = condition
            return found
    return None


def conditions_of(obj: Obj) -> list[tuple[str, str, str]]:
    """Type, status and reason, in the order in which they are kept."""
    return [(c["type"], c["status"], c.get("reason", "")) for c in obj.get("status", {}).get("conditions") or ()]


def _index(pod: Obj) -> int:
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get("batch.kubernetes.io/job-completion-index", -1))


def _brief(pod: Obj) -> tuple[Any, ...]:
    spec, status = pod["spec"], pod["status"]
    return pod["metadata"]["name"], spec.get("nodeName"), status.get("phase"), status.get("conditions")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, status: str) -> Obj:
    return {"type": kind, "status": status, "lastTransitionTime": _now()}


def _ready(cpu: int) -> Obj:
    room = {"cpu": str(cpu), "memory": "8Gi", "pods": "110"}
    heartbeat = {**_condition("Ready", "True"), "lastHeartbeatTime": _now(), "reason": "KubeletReady", "message": ""}
    return {"status": {"capacity": room, "allocatable": room, "conditions": [heartbeat]}}


def _ended(exit_code: int, message: str) -> Obj:
    terminated = {
        "exitCode": exit_code,
        "reason": "Error" if exit_code else "Completed",
        "message": message,
        "startedAt": _now(),
        "finishedAt": _now(),
    }
    return {
        "name": "main",
        "image": "busybox:1",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"terminated": terminated},
    }
