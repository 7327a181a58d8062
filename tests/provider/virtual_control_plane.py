"""A control plane over HTTP in virtual time: API server, controllers, scheduler, and simulated kubelets.

    async with VirtualControlPlane.running() as plane:
        ref = plane.submit("train", workers=4)
        await plane.until(lambda: plane.running_ranks("train") == 4)
        plane.finish("train", 2, exit_code=1)

The kubelets start the pods that have a node, and stop the pods that are deleted. The test ends the other pods.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import InformerFactory, informers
from airflow_provider_gangjobs.cluster.loop_local import set_loop_local
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.kube.well_known import (
    FINALIZER_HARVEST,
    LABEL_ATTEMPT,
    LABEL_GANG,
    LABEL_PURPOSE,
    ObjectPurpose,
)
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from gangjobs_sandbox.api.app import create_app
from gangjobs_sandbox.api.faults import Fault, Faults
from gangjobs_sandbox.api.server import serving
from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.controllers import ControllerManager, ControllerSettings, build_controllers
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, NODES, PODGROUPS, PODS
from gangjobs_sandbox.scheduler import Scheduler
from tests.annotations import recorded
from tests.guarantees.history import History, is_being_deleted, is_held
from tests.provider.virtual_time import START, LoopClock, cancel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.gang.state.phase import Phase
    from gangjobs_sandbox.store import Event

Obj = dict[str, Any]
NAMESPACE = "default"
INDEX = "batch.kubernetes.io/job-completion-index"
VIRTUAL_TIMEOUT_S = 3600.0
START_S = 1.0
"""How long a container takes to start."""
STOP_S = 2.0
"""How long a program takes to end after SIGTERM."""
MOMENT_S = 1e-6
LOG_CHUNK_BYTES = 64 * 1024
LOG_POLL_S = 0.5
"""How long a log that is followed waits before it shows further lines."""


_numbers = itertools.count()


def config_for(url: str, token: str | None = None) -> ClusterConfig:
    """Return a configuration that no other control plane has, also if a later one gets the port of an earlier one.

    What the provider has read from a cluster is cached for each configuration of an event loop.
    """
    name = f"c{next(_numbers)}"
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "x", "context": {"cluster": name, "user": "u"}}],
        "current-context": "x",
    }
    return ClusterConfig.from_extras("test", {"kube_config": kubeconfig})


def _share_virtual_time() -> None:
    """Let the informers of the loop and their clients use the time of the loop instead of the time of the machine."""
    connect = partial(Client, clock=loop_clock())
    set_loop_local(InformerFactory, InformerFactory(connect=connect, clock=loop_clock()))


def loop_clock() -> Clock:
    """Return a clock with virtual time and a fixed random sequence."""
    return Clock(monotonic=asyncio.get_running_loop().time, random=random.Random(1))


@dataclass
class VirtualControlPlane:
    """A control plane. The test reads and changes its objects through `registry`, without requests."""

    registry: Registry
    clock: LoopClock
    faults: Faults
    config: ClusterConfig
    client: Client
    logs: dict[str, str]
    """The output of containers by the name of the pod, which the test sets."""
    log_times: dict[str, list[datetime]]
    """The time of each line by the name of the pod. Lines without a time have the time 0 of the plane."""
    plays_nodes: bool = True
    stop_s: float = STOP_S
    dead_nodes: set[str] = field(default_factory=set)
    history: History = field(default_factory=History)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _moment: float = 0.0

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        *,
        release: str = "1.37",
        nodes: int = 1,
        cpu: str = "64",
        plays_nodes: bool = True,
        jobs: bool = True,
        node_grace_s: float | None = None,
        token: str | None = None,
        starts_at: datetime = START,
    ) -> AsyncIterator[VirtualControlPlane]:
        """Run a control plane while the block runs.

        :param plays_nodes: Whether simulated kubelets start and stop pods.
        :param jobs: Whether the controllers run. Without them the test creates the pods.
        :param node_grace_s: After so many seconds without a heartbeat, a node is lost. By default nodes are never lost.
        :param token: The bearer token that the API server requires, if any.
        :param starts_at: The time of day of the control plane at the virtual time 0.
        """
        time_of_day = LoopClock(starts_at)
        registry = Registry(clock=time_of_day, release=release, rng=random.Random(1))
        faults = Faults()
        async with AsyncExitStack() as stack:
            logs: dict[str, str] = {}
            times: dict[str, list[datetime]] = {}
            changed = asyncio.Event()
            app = create_app(registry, token=token, faults=faults, logs=_Logs(logs, times, registry, changed))
            address = await stack.enter_async_context(serving(app))
            config = config_for(address.url, token)
            client = await stack.enter_async_context(Client(config, clock=loop_clock()))
            _share_virtual_time()
            stack.push_async_callback(informers().aclose)
            stack.push_async_callback(stop_sweepers)
            plane = cls(registry, time_of_day, faults, config, client, logs, times, plays_nodes, _changed=changed)
            stack.callback(registry.observe(plane._observe))
            stack.callback(registry.observe(plane.history.observer(plane.moment)))
            for number in range(nodes):
                plane.node(f"node-{number}", cpu=cpu)
            work = [plane._play_nodes()]
            if jobs:
                settings = ControllerSettings(node_grace_s=node_grace_s or 0)
                controllers = build_controllers(registry, time_of_day, settings)
                if node_grace_s is None:
                    controllers = [one for one in controllers if one.name != "node-lifecycle"]
                work.append(
                    ControllerManager(registry, time_of_day, [*controllers, Scheduler(registry, time_of_day)]).run()
                )
            tasks = [asyncio.create_task(one) for one in work]
            stack.push_async_callback(cancel, *tasks)
            yield plane

    def moment(self) -> float:
        """Return the virtual time for the history, later with each call, as many changes may have one time."""
        self._moment = max(self._moment + MOMENT_S, asyncio.get_running_loop().time())
        return self._moment

    def _observe(self, _: Event) -> None:
        self._changed.set()

    async def until(self, holds: Callable[[], Any], *, within_s: float = VIRTUAL_TIMEOUT_S) -> None:
        """Wait in virtual time until this holds."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    # -- objects ---------------------------------------------------------------------------------------------

    def node(self, name: str, *, cpu: str = "64") -> None:
        self.registry.create(NODES, {"metadata": {"name": name}, "spec": {}})
        resources = {"cpu": cpu, "memory": "64Gi", "pods": "1000"}
        status = {"allocatable": resources, "capacity": resources}
        self.registry.patch(NODES, name, None, {"status": status}, PatchKind.MERGE, subresource="status")

    def submit(self, name: str = "train", *, workers: int = 4, gang: bool = True, **spec: Any) -> GangRef:
        """Create a gang as the provider does.

        :param spec: Fields of the Job, and `pod` with fields of the pods, and `annotations` of the Job.
        """
        annotations = recorded() | spec.pop("annotations", {})
        labels = {LABEL_GANG: name, LABEL_ATTEMPT: "0"}
        pod_spec: Obj = {"restartPolicy": "Never", "containers": [_container(spec.pop("cpu", "1"))]}
        pod_spec |= spec.pop("pod", {})
        if gang:
            pod_spec["schedulingGroup"] = {"podGroupName": name}
            group = {"metadata": {"name": name, "labels": labels}, "spec": {"schedulingPolicy": _policy(workers)}}
            self.registry.create(PODGROUPS, group, NAMESPACE)
        template = {"metadata": {"labels": labels, "finalizers": [FINALIZER_HARVEST]}, "spec": pod_spec}
        sized = {"completionMode": "Indexed", "completions": workers, "parallelism": workers, "backoffLimit": 0}
        job_spec = {**sized, "podReplacementPolicy": "Failed", "template": template, **spec}
        meta = {"name": name, "labels": labels, "annotations": annotations}
        stored = self.registry.create(JOBS, {"metadata": meta, "spec": job_spec}, NAMESPACE)
        return GangRef(NAMESPACE, name, stored["metadata"]["uid"])

    async def run_gang(self, name: str = "train", *, workers: int = 4, **spec: Any) -> GangRef:
        """Create a gang, and wait until all of its ranks run."""
        ref = self.submit(name, workers=workers, **spec)
        await self.until(lambda: self.running_ranks(name) == workers)
        return ref

    async def suspend_and_resume(self, name: str = "train") -> None:
        """Suspend a gang whose ranks all run until its pods are gone, and let all ranks run again, as Kueue does."""
        for is_suspended, ranks in ((True, 0), (False, self.running_ranks(name))):
            self.registry.patch(JOBS, name, NAMESPACE, {"spec": {"suspend": is_suspended}}, PatchKind.MERGE)
            await self.until(lambda ranks=ranks: self.running_ranks(name) == ranks)

    def job(self, name: str = "train") -> Obj | None:
        return self.registry.find(JOBS, NAMESPACE, name)

    def pods(self, name: str = "train") -> list[Obj]:
        found = self.registry.list(PODS, NAMESPACE, f"{LABEL_GANG}={name}")
        return sorted(found, key=lambda pod: int(pod["metadata"].get("annotations", {}).get(INDEX, 0)))

    def pod(self, name: str, rank: int) -> Obj:
        return next(pod for pod in self.pods(name) if pod["metadata"]["annotations"][INDEX] == str(rank))

    def write(self, pod: str, text: str) -> None:
        """Add lines to the log of a pod, with the present time. As in containerd, each has a time of its own."""
        self.logs[pod] = log = self.logs.get(pod, "") + text
        times = self.log_times.setdefault(pod, [])
        for _ in range(log.count("\n") + (not log.endswith("\n")) - len(times)):
            after = times[-1] + timedelta(microseconds=1) if times else START
            times.append(max(self.clock.now(), after))
        self._changed.set()

    def held(self, name: str = "train") -> list[Obj]:
        return [pod for pod in self.pods(name) if is_held(pod)]

    def ledger(self, name: str = "train") -> dict[str, str]:
        """Return the entries of all ledger ConfigMaps of the gang."""
        shards = self.registry.list(
            CONFIGMAPS, NAMESPACE, f"{LABEL_GANG}={name},{LABEL_PURPOSE}={ObjectPurpose.LEDGER}"
        )
        return {uid: text for shard in shards for uid, text in shard.get("data", {}).items()}

    def running_ranks(self, name: str = "train") -> int:
        return sum(pod["status"].get("phase") == "Running" for pod in self.pods(name))

    def delete_job(self, name: str = "train", *, propagation: str = "Background") -> None:
        self.registry.delete(JOBS, name, NAMESPACE, propagation=propagation)

    def arm(self, kind: str, **conditions: Any) -> None:
        self.faults.add(Fault(kind, **conditions))

    # -- the nodes ------------------------------------------------------------------------------------------

    def finish(self, name: str, rank: int, exit_code: int = 0, message: str = "") -> None:
        """Let the program of a rank end by itself."""
        self._end(self.pod(name, rank), exit_code, message)

    def finish_all(self, name: str = "train", message: str = "") -> None:
        for pod in self.pods(name):
            self._end(pod, 0, message)

    async def _play_nodes(self) -> None:
        """Start the pods that have a node and stop the pods that are deleted, each after a delay."""
        while True:
            self._changed.clear()
            if self.plays_nodes:
                self._play()
            await self._changed.wait()

    def _play(self) -> None:
        loop = asyncio.get_running_loop()
        for pod in self.registry.list(PODS):
            node, phase = pod["spec"].get("nodeName"), pod["status"].get("phase", "Pending")
            if node is None or node in self.dead_nodes:
                continue
            if is_being_deleted(pod):
                loop.call_later(self.stop_s, self._stop, pod["metadata"]["uid"])
            elif phase == "Pending":
                loop.call_later(START_S, self._start, pod["metadata"]["uid"])

    def _find(self, uid: str) -> Obj | None:
        return next((pod for pod in self.registry.list(PODS) if pod["metadata"]["uid"] == uid), None)

    def _start(self, uid: str) -> None:
        pod = self._find(uid)
        if pod and not is_being_deleted(pod) and pod["status"].get("phase") == "Pending":
            self._status(pod, "Running", {"running": {"startedAt": self._now()}})

    def _stop(self, uid: str) -> None:
        pod = self._find(uid)
        if pod is None or not is_being_deleted(pod):
            return
        if pod["status"].get("phase") not in {"Succeeded", "Failed"}:
            self._end(pod, 143, "")
        if self._find(uid) is not None and pod["metadata"].get("deletionGracePeriodSeconds") != 0:
            self.registry.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace_period_s=0)

    def _end(self, pod: Obj, exit_code: int, message: str) -> None:
        state = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "message": message}
        times = {"startedAt": self._started(pod), "finishedAt": self._now()}
        self._status(pod, "Failed" if exit_code else "Succeeded", {"terminated": {**state, **times}})

    def _started(self, pod: Obj) -> str:
        statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
        return statuses[0]["state"].get("running", {}).get("startedAt", self._now())

    def _status(self, pod: Obj, phase: str, state: Obj) -> None:
        container = {"name": "main", "image": "i", "imageID": "i", "ready": phase == "Running", "restartCount": 0}
        status = {"phase": phase, "containerStatuses": [{**container, "state": state}]}
        self.registry.patch(
            PODS, pod["metadata"]["name"], NAMESPACE, {"status": status}, PatchKind.MERGE, subresource="status"
        )

    def _now(self) -> str:
        return timestamp(self.clock.now())


class _Logs:
    """Serves logs from a dict as a kubelet does: a line has a time, and a followed log ends with its pod.

    The key of a log is the name of the pod, or `<pod>/<container>`.
    """

    def __init__(
        self, logs: dict[str, str], times: dict[str, list[datetime]], registry: Registry, changed: asyncio.Event
    ) -> None:
        self._logs = logs
        self._times = times
        self._registry = registry
        self._changed = changed

    async def open(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | None,
        tail_lines: int | None,
        timestamps: bool,
        limit_bytes: int | None,
        previous: bool,
    ) -> AsyncIterator[bytes]:
        key = f"{pod}/{container}" if f"{pod}/{container}" in self._logs else pod
        key = f"{key}/previous" if previous else key
        if key not in self._logs:
            raise LookupError(f"{pod} has no log")
        sent, size = 0, -1
        while True:
            self._changed.clear()
            has_ended = self._has_ended(namespace, pod)
            if follow and not has_ended and len(self._logs[key]) == size:
                await self._changed.wait()
                continue
            size = len(self._logs[key])
            lines = self._lines(key, since, timestamps=timestamps)
            lines, sent = lines[sent:], len(lines)
            text = "".join(lines[-tail_lines:] if tail_lines else lines).encode(errors="surrogateescape")[:limit_bytes]
            for at in range(0, len(text), LOG_CHUNK_BYTES):
                yield text[at : at + LOG_CHUNK_BYTES]
            if not follow or has_ended:
                return
            await asyncio.sleep(LOG_POLL_S)

    def _lines(self, key: str, since: datetime | None, *, timestamps: bool) -> list[str]:
        text = self._logs[key]
        lines = [f"{line}\n" for line in text.split("\n")] if text else []
        lines[-1:] = [lines[-1][:-1]] if text and not text.endswith("\n") else []
        times = self._times.get(key, [])
        moments = [START + timedelta(microseconds=number) for number in range(len(lines))]
        moments[: len(times)] = times[: len(lines)]
        return [
            f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z {line}" if timestamps else line
            for at, line in zip(moments, lines, strict=True)
            if since is None or at >= since
        ]

    def _has_ended(self, namespace: str, pod: str) -> bool:
        found = self._registry.find(PODS, namespace, pod)
        return found is None or found.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def _policy(workers: int) -> Obj:
    return {"gang": {"minCount": workers}}


def _container(cpu: str) -> Obj:
    return {"name": "main", "image": "trainer:1", "resources": {"requests": {"cpu": cpu}}}


async def stop_sweepers() -> None:
    """End the sweepers of triggers, which otherwise sweep for a while after their last gang."""
    sweepers = [task for task in asyncio.all_tasks() if task.get_name().startswith("sweeper of ")]
    await cancel(*sweepers)


# -- A task that follows a gang while the test runs, and the observations that it reports ----------------------------


class Follower:
    """Run `follow()` for a gang of a virtual control plane, and keep what it reports."""

    def __init__(
        self, plane: VirtualControlPlane, ref: GangRef, *, client: Client | None = None, **options: Any
    ) -> None:
        self.ref = ref
        self.reports: list[GangState] = []
        options = {"report": self.reports.append, "now": plane.clock.now} | options
        self.task = asyncio.create_task(follow(client or plane.config, ref, FollowOptions(**options)))

    @classmethod
    async def of_running_gang(
        cls,
        plane: VirtualControlPlane,
        name: str = "train",
        *,
        workers: int = 4,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - the value cannot change
        **spec: Any,
    ) -> Self:
        """Create and follow a gang, and wait until all of its ranks run."""
        following = cls(plane, plane.submit(name, workers=workers, **spec), deadlines=deadlines)
        await plane.until(lambda: plane.running_ranks(name) == workers)
        return following

    @property
    def phases(self) -> list[Phase]:
        """Return the reported phases in order, without repetitions."""
        seen = [report.phase for report in self.reports]
        return [phase for number, phase in enumerate(seen) if number == 0 or seen[number - 1] is not phase]

    async def event(self, within_s: float = VIRTUAL_TIMEOUT_S) -> GangEvent:
        async with asyncio.timeout(within_s):
            return await self.task

    async def kill(self) -> None:
        """Cancel the task, as when the process dies."""
        await cancel(self.task)
