"""Simulated kubelets: they run no containers, and write the pod status that a kubelet writes.

A pod that is bound to a node starts at once. A pod that is deleted ends by SIGTERM after `STOP_S`, whatever its grace
period, and is then removed. The test ends the other pods. All requests go over the API, so that the simulation works
with any control plane.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.http.transport import WatchLimits
from airflow_provider_gangjobs.kube.resources import NODES, PODS
from airflow_provider_gangjobs.kube.well_known import DEFAULT_CONTAINER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from airflow_provider_gangjobs.cluster.client import Client

Obj = dict[str, Any]

HOSTNAME = "kubernetes.io/hostname"
STOP_S = 0.1
"""How long a program takes to end after SIGTERM."""
SIGTERM_CODE = 143
SIDECAR = "istio-proxy"
"""The container that runs on after `end_main`. The template of the Job does not have it."""
WATCH_S = 60.0
AGAIN_S = 0.5


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class FakeKubelets:
    """The kubelets of nodes. `alive` has the names of the nodes whose kubelet works."""

    admin: Client
    now: Callable[[], datetime] = utc_now
    alive: set[str] = field(default_factory=set)
    _done: set[tuple[str, str]] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def join(self, name: str, *, cpu: int, labels: dict[str, str]) -> None:
        """Create a ready node with room for `cpu` pods of one CPU each."""
        metadata = {"name": name, "labels": {HOSTNAME: name, **labels}}
        await self.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        await self.report(name, ready="True", cpu=cpu)
        await self.admin.patch(NODES, name, None, {"spec": {"taints": None}})
        self.alive.add(name)

    async def report(self, name: str, *, ready: str, cpu: int | None = None) -> None:
        """Write the node's Ready condition, and its size if given."""
        moment = _text(self.now())
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": "Simulated",
            "message": "",
            "lastHeartbeatTime": moment,
            "lastTransitionTime": moment,
        }
        status: Obj = {"conditions": [condition]}
        if cpu is not None:
            room = {"cpu": str(cpu), "memory": "8Gi", "pods": "110"}
            status |= {"capacity": room, "allocatable": room}
        body = {"status": status}
        await self.admin.patch(NODES, name, None, body, patch_type="strategic-merge", subresource="status")

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Run the kubelets while the block runs."""
        task = asyncio.create_task(self._run(), name="kubelets")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while True:
                with suppress(ClusterError):
                    await self._watch()
                await asyncio.sleep(AGAIN_S)
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end(self, pod: Obj, exit_code: int = 0, message: str = "") -> None:
        """Let all programs of the pod that still run end by themselves."""
        ended = self._ended(pod, exit_code, message)
        states = {name: state if "terminated" in state else ended for name, state in _states(pod).items()}
        has_failed = any(state["terminated"]["exitCode"] for state in states.values())
        await self._status(pod, "Failed" if has_failed else "Succeeded", states)

    async def end_main(self, pod: Obj, exit_code: int = 0, message: str = "") -> None:
        """Let the program of the rank end by itself. The container that was injected into the pod runs on."""
        states = {SIDECAR: {"running": {"startedAt": _text(self.now())}}, **_states(pod)}
        await self._status(pod, "Running", {**states, _main(pod): self._ended(pod, exit_code, message)})

    def _ended(self, pod: Obj, exit_code: int, message: str) -> Obj:
        ended = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "message": message}
        times = {"startedAt": _text(started_at(pod) or self.now()), "finishedAt": _text(self.now())}
        return {"terminated": ended | times}

    async def reconnect(self, name: str) -> None:
        """Let a node that was dead report again, and handle the pods that have changed meanwhile."""
        self.alive.add(name)
        await self.report(name, ready="True")
        for pod in await self.admin.list(PODS, field_selector=f"spec.nodeName={name}"):
            self._see(pod)

    async def _watch(self) -> None:
        """Watch from the present state, so that no change is missed between two watches."""
        limits = WatchLimits(WATCH_S)
        watch = self.admin.watch(PODS, None, resource_version="0", field_selector="spec.nodeName!=", limits=limits)
        async with aclosing(watch):
            async for lines in watch:
                for event in map(msgspec.json.decode, lines.splitlines()):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._see(event["object"])

    def _see(self, pod: Obj) -> None:
        if pod["spec"].get("nodeName") not in self.alive:
            return
        is_terminal = pod["status"].get("phase") in ("Succeeded", "Failed")
        if "deletionTimestamp" in pod["metadata"]:
            self._once(pod, "remove" if is_terminal else "stop", self._remove(pod) if is_terminal else self._stop(pod))
        elif pod["status"].get("phase", "Pending") == "Pending":
            started = {"running": {"startedAt": _text(self.now())}}
            states = {container["name"]: started for container in pod["spec"]["containers"]}
            self._once(pod, "start", self._status(pod, "Running", states))

    def _once(self, pod: Obj, what: str, work: Coroutine[Any, Any, None]) -> None:
        key = (pod["metadata"]["uid"], what)
        if key in self._done:
            work.close()
            return
        self._done.add(key)
        task = asyncio.create_task(_tolerantly(work), name=f"kubelet: {what} {pod['metadata']['name']}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, pod: Obj) -> None:
        await asyncio.sleep(STOP_S)
        if pod["spec"]["nodeName"] in self.alive:
            await self.end(pod, SIGTERM_CODE)

    async def _remove(self, pod: Obj) -> None:
        await self.admin.delete(
            PODS, pod["metadata"]["name"], pod["metadata"]["namespace"], uid=pod["metadata"]["uid"], grace_period_s=0
        )

    async def _status(self, pod: Obj, phase: str, states: dict[str, Obj]) -> None:
        meta, running = pod["metadata"], phase == "Running"
        statuses = [_container_status(name, state) for name, state in states.items()]
        ready = {"type": "Ready", "status": str(running), "lastTransitionTime": _text(self.now())}
        status = {"phase": phase, "containerStatuses": statuses, "conditions": [ready]}
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        await self.admin.patch(
            PODS, meta["name"], meta["namespace"], body, patch_type="strategic-merge", subresource="status"
        )


def _main(pod: Obj) -> str:
    first: str = pod["spec"]["containers"][0]["name"]
    return (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER, first)


def _states(pod: Obj) -> dict[str, Obj]:
    """Return the state of each container of a pod that has started; a pod that ends before has that of its program."""
    return {one["name"]: one["state"] for one in pod["status"].get("containerStatuses") or ()} or {_main(pod): {}}


def _container_status(name: str, state: Obj) -> Obj:
    running = "running" in state
    status = {"name": name, "image": "x:1", "imageID": "", "ready": running, "started": running, "restartCount": 0}
    return {**status, "state": state}


async def _tolerantly(work: Coroutine[Any, Any, None]) -> None:
    """Ignore that the pod is gone or was replaced."""
    with suppress(NotFound, Conflict):
        await work


def started_at(pod: Obj) -> datetime | None:
    """Return when the program of a pod has started; `None` if it does not run."""
    for status in pod["status"].get("containerStatuses") or ():
        if running := status["state"].get("running"):
            return datetime.fromisoformat(running["startedAt"])
    return None


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
