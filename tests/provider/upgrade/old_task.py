"""A task of an earlier release in flight: its objects in an embedded cluster, and the present code that continues it.

The cluster has nodes without kubelets. The test plays the kubelets, and says how the program of a rank ends.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetXCom, TaskStatesResult, XComResult
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException, TaskDeferred
from airflow_provider_gangjobs.cluster.informer import informers
from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, NODES, PODGROUPS, PODS, SERVICES, WORKLOADS, by_key
from tests.airflow.polling import wait_for
from tests.provider.upgrade.write import give_task, operator_of
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.upgrade.golden import Golden

Obj = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
ENDED = ("Succeeded", "Failed")


def place(registry: Registry, objects: dict[str, list[Obj]]) -> None:
    """Store the objects as they were, with their uids, times and status."""
    for plural, found in objects.items():
        for each in found:
            registry.store.put(by_key(plural), json.loads(json.dumps(each)))


def _make_nodes(registry: Registry) -> None:
    """Create the nodes on which the pods of golden files are.

    They do not report, so they count as lost after a while, and each test has new ones.
    """
    for name in ("node-0", "node-1"):
        registry.create(NODES, {"metadata": {"name": name}, "spec": {}})
        resources = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        status = {"allocatable": resources, "capacity": resources}
        registry.patch(NODES, name, None, {"status": status}, PatchKind.MERGE, subresource="status")


class OldTask:
    """A task that an earlier release has left in the middle, and the workers and triggerers that go on with it."""

    def __init__(self, cluster: SandboxThread, golden: Golden) -> None:
        self.cluster = cluster
        self.golden = golden
        self.state = "success"
        self.last: Any = None
        """The operator of the last worker."""

    # -- Airflow -----------------------------------------------------------------------------------------------

    def context(self, *, is_retry: bool = False) -> Obj:
        """Return the context of the try of the file, or of the next one."""
        described = self.golden.data["task_instance"]
        described = {**described, "start_date": datetime.fromisoformat(described["start_date"])}
        if is_retry:
            number = described["try_number"] + 1
            retry = {"try_number": number, "id": f"01990000-0000-7000-8000-{number:012}"}
            described = {**described, **retry, "start_date": datetime.now(UTC)}
        ti = SimpleNamespace(
            **described,
            task=operator_of(self.golden.name, self.golden.data),
            xcom_push=lambda key, value: None,
            get_task_states=lambda **_: {described["run_id"]: {described["task_id"]: self.state}},
            get_dr_count=lambda **_: 1,
        )
        return {"ti": ti}

    def outcome_of(self, step: Callable[[], Any]) -> Obj:
        """Return how a part of a try has ended, in the form of the golden file, and the deferral itself."""
        try:
            return {"value": step()}
        except TaskDeferred as left:
            return {"deferred": left}
        except Exception as error:
            # Airflow does not retry after an `AirflowFailException`, whose cause says what has happened.
            named = error.__cause__ if isinstance(error, AirflowFailException) else error
            return {"error": type(named).__name__, "message": str(error)}

    def retry(self) -> TaskDeferred:
        """Execute the next try, which defers."""
        self.last, context = operator_of(self.golden.name, self.golden.data), self.context(is_retry=True)
        left = self.outcome_of(lambda: self.last.execute(context)).get("deferred")
        assert left is not None
        return left  # type: ignore[no-any-return]

    def resume(self, event: Obj, *, method: str = "execute_complete", context: Obj | None = None) -> Obj:
        """Let a worker complete the task with the event, and return how that has ended."""
        self.last, context = operator_of(self.golden.name, self.golden.data), context or self.context()
        return self.outcome_of(lambda: self.last.resume_execution(method, {"event": event}, context))

    def follow(self, classpath: str, kwargs: Obj, act: Callable[[], Any] = lambda: None) -> Obj:
        """Run a stored trigger in this triggerer, while `act` runs, and return its event."""
        trigger = import_string(classpath)(**kwargs)
        if "start" in kwargs:
            trigger.task_instance = self.context()["ti"]
            give_task(trigger, operator_of(self.golden.name, self.golden.data))
        event: Obj = json.loads(json.dumps(self._event_of(trigger, act).payload))
        return event

    def end_in_triggerer(self, act: Callable[[], Any]) -> Obj:
        """Run the first trigger, which ends its task with success while `act` runs, and return the XComs."""
        stored, xcoms = self.golden.data["deferrals"]["first"], {}
        trigger = import_string(stored["classpath"])(**stored["trigger_kwargs"])
        trigger.task_instance = self.context()["ti"]

        async def answer(message: Any) -> Any:
            if isinstance(message, GetXCom):
                return XComResult(key=message.key, value=xcoms.get(message.key))
            xcoms[message.key] = message.value
            return None

        states = TaskStatesResult(task_states={"run": {self.golden.name: "deferred"}})
        task_runner.SUPERVISOR_COMMS = SimpleNamespace(send=lambda _: states, asend=answer)  # type: ignore[assignment]
        assert isinstance(self._event_of(trigger, act), TaskSuccessEvent)
        return xcoms

    @staticmethod
    def _event_of(trigger: Any, act: Callable[[], Any]) -> Any:
        async def until_event() -> Any:
            acting = asyncio.create_task(asyncio.to_thread(act))
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    return [event async for event in trigger.run()]
            finally:
                await acting
                await informers().aclose()

        (event,) = asyncio.run(until_event())
        return event

    def follow_deferral(self, name: str, act: Callable[[], Any] = lambda: None) -> Obj:
        """Run the trigger of a deferral of the file."""
        stored = self.golden.data["deferrals"][name]
        return self.follow(stored["classpath"], stored["trigger_kwargs"], act)

    def note_success(self, context: Obj) -> None:
        """Run the success callbacks, as Airflow does after it has stored the success of the task."""
        for callback in self.last.on_success_callback:
            callback({**context, "task": self.last})

    # -- the cluster -------------------------------------------------------------------------------------------

    def objects(self, resource: Any) -> list[Obj]:
        found: list[Obj] = self.cluster.call(lambda it: it.registry.list(resource, "default"))
        return found

    @property
    def job(self) -> Obj:
        """The only main Job."""
        (job,) = (each for each in self.objects(JOBS) if "gangjobs.airflow/task" in each["metadata"]["labels"])
        return job

    @property
    def pods(self) -> list[Obj]:
        return sorted(self.objects(PODS), key=_order)

    @property
    def ledger(self) -> list[tuple[str, Obj]]:
        """The entries of all ConfigMaps of the ledger."""
        maps = [each for each in self.objects(CONFIGMAPS) if "-ledger-" in each["metadata"]["name"]]
        return [(uid, json.loads(text)) for each in maps for uid, text in each.get("data", {}).items()]

    def end_ranks(self, messages: dict[str, str]) -> None:
        """Start the pods that have a node, end the programs of all ranks with success, and stop deleted pods.

        :param messages: The termination messages by the name of the role and the index of the pod.
        """
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            open_pods = [pod for pod in self.pods if pod["status"].get("phase") not in ENDED]
            has_ended = self.job["status"].get("completionTime") or self.job["status"].get("failed")
            if not open_pods and (has_ended or self.pods):
                return
            for pod in open_pods:
                if pod["metadata"].get("deletionTimestamp"):
                    self._stop(pod)
                elif pod["spec"].get("nodeName") and not _has_ended_main(pod):
                    self._end(pod, messages.get(rank_of(pod), ""))
            time.sleep(0.1)

    def _end(self, pod: Obj, message: str) -> None:
        now = timestamp(self.cluster.call(lambda it: it.registry.clock.now()))
        terminated = {"exitCode": 0, "reason": "Completed", "message": message, "startedAt": now, "finishedAt": now}
        self._set(pod, "Succeeded", {"terminated": terminated})

    def _stop(self, pod: Obj) -> None:
        """Stop the containers that run. The ends of the others stay."""
        now = timestamp(self.cluster.call(lambda it: it.registry.clock.now()))
        stopped = {"terminated": {"exitCode": 143, "reason": "Error", "startedAt": now, "finishedAt": now}}
        before = pod["status"].get("containerStatuses", [])
        statuses = [each if "terminated" in each["state"] else {**each, "state": stopped} for each in before]
        self._write(pod, {"phase": "Failed", "containerStatuses": statuses})

    def _set(self, pod: Obj, phase: str, state: Obj) -> None:
        names = [container["name"] for container in pod["spec"]["containers"]]
        base = {"image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        self._write(pod, {"phase": phase, "containerStatuses": [{"name": name, **base} for name in names]})

    def _write(self, pod: Obj, status: Obj) -> None:
        name = pod["metadata"]["name"]

        def write(sandbox: Any) -> None:
            if sandbox.registry.find(PODS, "default", name) is not None:
                sandbox.registry.patch(PODS, name, "default", {"status": status}, PatchKind.MERGE, subresource="status")

        self.cluster.call(write)

    def wait_for_pods(self) -> None:
        """Wait until all pods of the gang have a node."""
        size = len(self.golden.data["parameters"].get("roles", ())) or 1
        wait_for("placed pods", lambda: len(self.pods) >= size and all(p["spec"].get("nodeName") for p in self.pods))


def rank_of(pod: Obj) -> str:
    """Return the name of the role and the index of a pod."""
    metadata = pod["metadata"]
    return f"{metadata['labels'].get('gangjobs.airflow/gang-role', '')}/{metadata['annotations'][INDEX]}"


def _order(pod: Obj) -> tuple[str, str]:
    return pod["metadata"]["labels"].get("gangjobs.airflow/gang-role", ""), pod["metadata"]["annotations"][INDEX]


def _has_ended_main(pod: Obj) -> bool:
    statuses = pod["status"].get("containerStatuses", ())
    return any(status["name"] == "main" and "terminated" in status["state"] for status in statuses)


@contextmanager
def objects_in(cluster: SandboxThread, objects: dict[str, list[Obj]]) -> Iterator[None]:
    """Keep these objects and their nodes in the cluster while the block runs, and then remove everything."""
    cluster.call(lambda it: _make_nodes(it.registry))
    cluster.call(lambda it: place(it.registry, objects))
    try:
        yield
    finally:
        cluster.call(lambda it: _empty(it.registry))


def _empty(registry: Registry) -> None:
    for resource in (JOBS, PODS, SERVICES, WORKLOADS, PODGROUPS, CONFIGMAPS):
        for each in registry.list(resource, "default"):
            registry.store.remove(resource, "default", each["metadata"]["name"])
    for node in registry.list(NODES):
        registry.store.remove(NODES, "", node["metadata"]["name"])
