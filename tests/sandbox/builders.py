"""An embedded cluster in virtual time. Tests play the role of its kubelets."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import VirtualClock, timestamp
from gangjobs_sandbox.controllers import ControllerManager, ControllerSettings, build_controllers
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import EVENTS, JOBS, NODES, PODGROUPS, PODS
from gangjobs_sandbox.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from gangjobs_sandbox.controllers import Controller
    from gangjobs_sandbox.cooperative import Cooperative

Obj = dict[str, Any]
NAMESPACE = "default"
INDEX = "batch.kubernetes.io/job-completion-index"
STEPS_MAX = 5_000


class RefusingRegistry:
    """A registry whose writes fail while `refuses` returns true, as if the server crashed before or after the write."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.refuses: Callable[[str], str | None] = lambda call: None

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._registry, name)
        if name not in {"create", "update", "patch", "delete", "bind"}:
            return attribute

        def write(*args: Any, **kwargs: Any) -> Any:
            moment = self.refuses(name)
            if moment == "before":
                raise StatusError(500, "InternalError", f"{name} was not applied")
            result = attribute(*args, **kwargs)
            if moment == "after":
                raise StatusError(500, "InternalError", f"{name} was applied, but the response was lost")
            return result

        return write


class InterruptedController:
    """A controller that lets other writers act at each point where its sync yields, as the event loop does."""

    def __init__(self, controller: Controller, between: Callable[[], None]) -> None:
        self._controller = controller
        self._between = between
        self.name = controller.name
        self.queue = controller.queue
        self.observe = controller.observe
        self.syncs = 0

    def sync(self, key: Hashable) -> Cooperative[None]:
        self.syncs += 1
        for _ in self._controller.sync(key) or ():
            self._between()
            yield


class Bench:
    """Registry, controllers and scheduler. `run` advances the time; all other calls happen at once.

    The node lifecycle controller is disabled by default, because these nodes do not report. `between` is called at each
    point where a sync yields.
    """

    def __init__(
        self,
        release: str = "1.37",
        *,
        schedules: bool = True,
        watches_nodes: bool = False,
        settings: ControllerSettings | None = None,
        clock: VirtualClock | None = None,
        seed: int = 1,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.registry = Registry(clock=self.clock, release=release, rng=random.Random(seed))
        self.controllers_registry = RefusingRegistry(self.registry)
        self.between: Callable[[], None] = lambda: None
        self._settings = settings or ControllerSettings()
        self._watches_nodes = watches_nodes
        self._schedules = schedules
        self.manager = self._manager()

    def restart_controllers(self) -> None:
        """Restart the controllers without their state, as after a crash of their process."""
        self.manager.close()
        self.manager = self._manager()

    def _manager(self) -> ControllerManager:
        registry: Any = self.controllers_registry
        controllers = build_controllers(registry, self.clock, self._settings)
        if not self._watches_nodes:
            controllers = [controller for controller in controllers if controller.name != "node-lifecycle"]
        if self._schedules:
            controllers.append(Scheduler(registry, self.clock))
        self._running = [InterruptedController(controller, lambda: self.between()) for controller in controllers]
        return ControllerManager(registry, self.clock, self._running)

    def syncs(self, name: str) -> int:
        """Return the number of syncs of this controller."""
        return next(one.syncs for one in self._running if one.name == name)

    # Time

    def run(self, seconds: float = 2.0) -> None:
        """Advance the clock by this time, and handle everything that becomes due."""
        end = self.clock.now() + timedelta(seconds=seconds)
        for _ in range(STEPS_MAX):
            if self.manager.step():
                continue
            due = self.manager.next_due()
            if due is None or due > end:
                self.clock.advance((end - self.clock.now()).total_seconds())
                return
            self.clock.advance(max((due - self.clock.now()).total_seconds(), 0.0))
        raise AssertionError(f"not settled after {STEPS_MAX} steps")

    # Objects

    def node(self, name: str = "node-1", *, cpu: str = "4", **more: Any) -> Obj:
        """Create a ready node. `more` are resources (with _ in their names), labels, taints, or unschedulable."""
        labels, taints = more.pop("labels", {}), more.pop("taints", None)
        spec = {"taints": taints, "unschedulable": more.pop("unschedulable", None)}
        resources = {"cpu": cpu, "memory": "16Gi", "pods": "110", **more.pop("resources", {})}
        self.registry.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": {}})
        self.registry.patch(NODES, name, None, {"spec": spec})
        status = {"allocatable": resources, "capacity": resources}
        return self.registry.patch(NODES, name, None, {"status": status}, subresource="status")

    def pod(self, name: str, *, cpu: str | None = "1", spec: Obj | None = None, **metadata: Any) -> Obj:
        body = {"metadata": {"name": name, **metadata}, "spec": {"containers": [container(cpu)], **(spec or {})}}
        return self.registry.create(PODS, body, NAMESPACE)

    def job(self, name: str = "train", *, workers: int | None = 2, cpu: str | None = None, **spec: Any) -> Obj:
        """Create an Indexed Job that fails with its first failed pod. `spec` adds and replaces fields."""
        template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container(cpu)]}}
        template["metadata"] = spec.pop("pod_metadata", {})
        template["spec"] |= spec.pop("pod_spec", {})
        sized = {"completionMode": "Indexed", "completions": workers, "parallelism": workers} if workers else {}
        body = {
            "metadata": {"name": name, **spec.pop("metadata", {})},
            "spec": {**sized, "backoffLimit": 0, **spec, "template": template},
        }
        return self.registry.create(JOBS, body, NAMESPACE)

    def gang(self, name: str = "train", *, workers: int = 2, min_count: int | None = None, **spec: Any) -> Obj:
        """Create a Job and the group that its pods refer to."""
        policy = {"gang": {"minCount": min_count or workers}}
        priority = {k: v for k, v in spec.get("pod_spec", {}).items() if k == "priorityClassName"}
        group = {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy, **priority}}
        self.registry.create(PODGROUPS, group, NAMESPACE)
        pod_spec = {**spec.pop("pod_spec", {}), "schedulingGroup": {"podGroupName": name}}
        return self.job(name, workers=workers, pod_spec=pod_spec, **spec)

    def run_job(self, *args: Any, **spec: Any) -> Obj:
        """Create a Job, and let the controllers work."""
        created = self.job(*args, **spec)
        self.run()
        return created

    def run_gang(self, *args: Any, **spec: Any) -> Obj:
        """Create a gang, and let the controllers and the scheduler work."""
        created = self.gang(*args, **spec)
        self.run()
        return created

    def change_job(self, patch: Obj) -> None:
        """Patch the Job `train`, and let the controllers work."""
        self.registry.patch(JOBS, "train", NAMESPACE, patch)
        self.run()

    # Queries

    def pods(self, job: str | None = None) -> list[Obj]:
        """Return the pods of one Job or all pods, in order of index and then of creation."""
        selector = f"batch.kubernetes.io/job-name={job}" if job else None
        return sorted(self.registry.list(PODS, NAMESPACE, selector), key=lambda pod: (index_of(pod), revision(pod)))

    def live_pods(self, job: str | None = None) -> list[Obj]:
        return [pod for pod in self.pods(job) if not is_terminal(pod) and not is_deleting(pod)]

    def bound(self, job: str | None = None) -> list[str]:
        """Return the names of the nodes to which the pods are bound."""
        return [pod["spec"]["nodeName"] for pod in self.pods(job) if pod["spec"].get("nodeName")]

    def status(self, job: str = "train") -> Obj:
        return self.registry.get(JOBS, job, NAMESPACE).get("status") or {}

    def conditions(self, job: str = "train") -> list[str]:
        """Return the types of the true conditions, in order."""
        return [one["type"] for one in self.status(job).get("conditions", ()) if one["status"] == "True"]

    def condition(self, job: str, kind: str) -> tuple[str, str]:
        """Return the reason and message of the condition."""
        (found,) = [one for one in self.status(job)["conditions"] if one["type"] == kind]
        return found["reason"], found["message"]

    def events(self, name: str, *, kind: str | None = None) -> list[tuple[str, str]]:
        """Return reason and message of the events about the objects of this name, in order."""
        found = [event for event in self.registry.list(EVENTS) if event["involvedObject"]["name"] == name]
        found = [event for event in found if kind in (None, event["type"])]
        return [(event["reason"], event["message"]) for event in sorted(found, key=revision)]

    # Actions of kubelets

    def start(self, pod: Obj) -> Obj:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": timestamp(self.clock.now())}
        return self._status(pod, {"phase": "Running", "conditions": [ready]})

    def succeed(self, pod: Obj) -> Obj:
        return self._end(pod, "Succeeded", 0)

    def fail(self, pod: Obj, exit_code: int = 1, **status: Any) -> Obj:
        return self._end(pod, "Failed", exit_code, **status)

    def stop_deleted(self, pods: Iterable[Obj] | None = None) -> None:
        """End the pods that are being deleted and confirm the deletion, as kubelets do."""
        for pod in list(self.pods() if pods is None else pods):
            if is_deleting(pod):
                if not is_terminal(pod):
                    self.fail(pod, 143)
                self.confirm(pod)

    def confirm(self, pod: Obj) -> None:
        """Delete the pod without a grace period. Finalizers still keep the pod."""
        if self.registry.find(PODS, NAMESPACE, pod["metadata"]["name"]):
            self.registry.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace_period_s=0)

    def release(self, pod: Obj, finalizer: str) -> None:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}
        self.registry.patch(PODS, pod["metadata"]["name"], NAMESPACE, patch, PatchKind.STRATEGIC)

    def delete(self, pod: Obj) -> None:
        self.registry.delete(PODS, pod["metadata"]["name"], NAMESPACE)

    def _end(self, pod: Obj, phase: str, exit_code: int, **status: Any) -> Obj:
        terminated = {"exitCode": exit_code, "finishedAt": timestamp(self.clock.now())}
        containers = [{"name": "main", "restartCount": 0, "state": {"terminated": terminated}}]
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(self.clock.now())}
        conditions = [*status.pop("conditions", []), ready]
        ended = {"phase": phase, "containerStatuses": containers, "conditions": conditions, **status}
        return self._status(pod, ended)

    def _status(self, pod: Obj, status: Obj) -> Obj:
        name = pod["metadata"]["name"]
        return self.registry.patch(PODS, name, NAMESPACE, {"status": status}, PatchKind.STRATEGIC, subresource="status")


def container(cpu: str | None = None) -> Obj:
    requests = {"cpu": cpu} if cpu else {}
    return {"name": "main", "image": "busybox", "resources": {"requests": requests}}


def index_of(pod: Obj) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def revision(obj: Obj) -> int:
    """Return the revision of the object. Later changes have higher revisions."""
    return int(obj["metadata"]["resourceVersion"])


def is_deleting(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_terminal(pod: Obj) -> bool:
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def finalizers(obj: Obj) -> list[str]:
    return obj["metadata"].get("finalizers", [])
