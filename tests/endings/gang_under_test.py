"""A gang with its own nodes, a follower as in a trigger, and the actions that can end the pods."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import Forbidden
from airflow_provider_gangjobs.cluster.http.transport import PropagationPolicy
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.kube.resources import JOBS, NODES, PODS, Resource
from airflow_provider_gangjobs.kube.well_known import COMPLETION_INDEX, LABEL_GANG, LABEL_GANG_ROLE
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from tests.endings.fake_kubelets import HOSTNAME
from tests.guarantees.recorder import recording

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from tests.endings.fake_kubelets import FakeKubelets
    from tests.guarantees.history import History
    from tests.guarantees.recorder import Recorder

Obj = dict[str, Any]

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
NODE_LABEL = "example.org/trial"
POLL_S = 0.2
WITHIN_S = 150.0
"""PodGC ends the pods of a node that is gone after 40 to 60 s; pods that never end are given up after 60 s."""
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
LEAVES_AT_ONCE = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
    for key in ("unreachable", "not-ready")
]


@dataclass
class GangUnderTest:
    """A gang in a namespace, with its own nodes."""

    admin: Client
    """The client of the administrator, for the actions."""
    config: ClusterConfig
    """The connection of the provider, with the documented rights."""
    namespace: str
    kubelets: FakeKubelets
    clock: Clock
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    nodes: list[str] = field(default_factory=list)
    ref: GangRef = field(init=False)
    _recorder: Recorder = field(init=False)

    @classmethod
    @asynccontextmanager
    async def begun(
        cls,
        admin: Client,
        config: ClusterConfig,
        namespace: str,
        kubelets: FakeKubelets,
        *,
        clock: Clock | None = None,
        nodes: Sequence[int] = (1, 1),
        has_roles: bool = False,
        **spec: Any,
    ) -> AsyncIterator[GangUnderTest]:
        """Submit a gang of two ranks of one CPU, for nodes with these CPUs. The nodes are removed at the end.

        :param has_roles: Whether each rank has a role of its own: `leader` is rank 0, and `worker` is rank 1.
        """
        gang = cls(admin, config, namespace, kubelets, clock or Clock())
        for number, cpu in enumerate(nodes):
            name = f"{gang.id}-{number}"
            gang.nodes.append(name)
            await kubelets.join(name, cpu=cpu, labels={NODE_LABEL: gang.id})
        try:
            async with recording(admin, namespace, now=gang.clock.monotonic) as gang._recorder:
                await gang._submit(spec, has_roles=has_roles)
                yield gang
        finally:
            for name in gang.nodes:
                kubelets.alive.discard(name)
                await admin.delete(NODES, name)

    async def _submit(self, changes: dict[str, Any], *, has_roles: bool) -> None:
        pod: dict[str, Any] = {
            "image": "trainer:1",
            "command": ["train"],
            "resources": {"cpu": "1"},
            "node_selector": {NODE_LABEL: self.id},
        }
        changes = dict(changes)
        if has_roles:
            pod |= {name: changes.pop(name) for name in ("tolerations",) if name in changes}
        ranks = {"roles": {"leader": pod, "worker": pod}} if has_roles else {"workers": 2, **pod}
        spec = GangSpec(**{"namespace": self.namespace, **ranks, **changes})
        async with GangService.connect(self.config) as gangs:
            submission = await gangs.submit(spec, key=TaskKey("dag", self.id, "task", -1), claim="somebody")
        self.ref = submission.ref

    async def follow(self, **options: Any) -> GangEvent:
        """Follow the gang as a trigger does, and return the event."""
        options = {"now": self.kubelets.now} | options
        async with asyncio.timeout(WITHIN_S):
            return await follow(self.config, self.ref, FollowOptions(**options))

    async def record(self) -> History:
        """Return the history of the namespace."""
        return await self._recorder.settled()

    # -- queries --

    async def until(self, what: Callable[[], Awaitable[Any]], within_s: float = WITHIN_S) -> Any:
        """Poll until the result is true, and return the result."""
        async with asyncio.timeout(within_s):
            while True:
                if found := await what():
                    return found
                await asyncio.sleep(POLL_S)

    async def pods(self) -> list[Obj]:
        """Return the pods by rank and then by age. The newest pod of a rank is the last one."""
        found = await self.admin.list(PODS, self.namespace, label_selector=f"{LABEL_GANG}={self.ref.name}")
        return sorted(found, key=lambda pod: (_rank(pod), pod["metadata"]["creationTimestamp"]))

    async def pod(self, rank: int) -> Obj:
        """Return the newest pod of the rank."""
        return [pod for pod in await self.pods() if _rank(pod) == rank][-1]

    async def job(self) -> Obj:
        return await self.admin.get(JOBS, self.ref.name, self.namespace)

    async def running(self, count: int = 2) -> list[Obj]:
        """Wait until this many pods run, and return them by rank."""

        async def run() -> list[Obj]:
            found = await self.running_pods()
            return found if len(found) == count else []

        found: list[Obj] = await self.until(run)
        return found

    async def running_pods(self) -> list[Obj]:
        """Return the pods that run and are not being deleted."""
        pods = [pod for pod in await self.pods() if pod["status"].get("phase") == "Running"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def pending(self, count: int = 2) -> None:
        """Wait until this many pods exist that have no node."""

        async def wait() -> bool:
            return len([pod for pod in await self.pods() if not pod["spec"].get("nodeName")]) == count

        await self.until(wait)

    # -- actions --

    async def end(self, rank: int, exit_code: int = 0, message: str = "") -> None:
        """Let the program of the rank end by itself."""
        await self.kubelets.end(await self.pod(rank), exit_code, message)

    async def end_main(self, rank: int, exit_code: int = 0, message: str = "") -> None:
        """Let the program of the rank end by itself, while a container that was injected into its pod runs on."""
        await self.kubelets.end_main(await self.pod(rank), exit_code, message)

    async def end_all(self) -> None:
        for pod in await self.running_pods():
            await self.kubelets.end(pod)

    async def delete_pod(self, rank: int, *, grace_s: int | None = None) -> None:
        """Delete the pod of a rank, as `kubectl delete pod --grace-period` does. 0 deletes by force."""
        pod = await self.pod(rank)
        await self.admin.delete(PODS, pod["metadata"]["name"], self.namespace, grace_period_s=grace_s)

    async def evict(self, rank: int) -> None:
        """Evict the pod of a rank, as `kubectl drain` does."""
        name = (await self.pod(rank))["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        await self.admin.create(_Evictions.of(name), eviction, self.namespace)

    async def delete_job(self, propagation_policy: PropagationPolicy) -> None:
        await self.admin.delete(JOBS, self.ref.name, self.namespace, propagation_policy=propagation_policy)

    async def patch_job(self, spec: Obj) -> None:
        await self.admin.patch(JOBS, self.ref.name, self.namespace, {"spec": spec})

    async def create_preempting_pod(self, node: str) -> None:
        """Create a pod of higher priority for this node, which has no room besides the rank."""
        name = f"urgent-{self.id}"
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await self.admin.create(PRIORITY_CLASSES, {**urgent, "value": 1000})
        try:
            await self.until(lambda: self._accepted(_urgent(name, node)))
        finally:
            await self.admin.delete(PRIORITY_CLASSES, name)

    async def _accepted(self, pod: Obj) -> bool:
        """Create the pod. Return false if the API server does not know the new priority class yet."""
        try:
            await self.admin.create(PODS, pod, self.namespace)
        except Forbidden:
            return False
        return True

    async def node_of(self, rank: int) -> str:
        name: str = (await self.pod(rank))["spec"]["nodeName"]
        return name

    async def kill_node(self, rank: int) -> str:
        """Stop the kubelet of the rank's node, and return the name of the node."""
        name = await self.node_of(rank)
        self.kubelets.alive.discard(name)
        return name

    async def report_unreachable(self, node: str) -> None:
        """Set the condition that the node lifecycle controller sets on a node that does not report."""
        await self.kubelets.report(node, ready="Unknown")

    async def out_of_service(self, node: str) -> None:
        """Add the taint by which a person states that the node is shut down."""
        there = (await self.admin.get(NODES, node))["spec"].get("taints") or []
        await self.admin.patch(NODES, node, None, {"spec": {"taints": [*there, OUT_OF_SERVICE]}})

    async def delete_node(self, node: str) -> None:
        await self.admin.delete(NODES, node)
        self.nodes.remove(node)

    async def terminating(self, rank: int) -> None:
        """Wait until the rank's pod is being deleted."""

        async def is_going() -> bool:
            return "deletionTimestamp" in (await self.pod(rank))["metadata"]

        await self.until(is_going)


class _Evictions(Resource):
    """The eviction subresource of one pod, to be created."""

    @classmethod
    def of(cls, pod: str) -> _Evictions:
        return cls("", "v1", f"pods/{pod}/eviction", "Eviction")

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        return f"/api/v1/namespaces/{namespace}/{self.plural}"


def _rank(pod: Obj) -> int:
    metadata = pod["metadata"]
    first = int(metadata["labels"].get(LABEL_GANG_ROLE) == "worker")
    return first + int(metadata["annotations"][COMPLETION_INDEX])


def _urgent(priority_class: str, node: str) -> Obj:
    container = {"name": "main", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
    spec = {
        "restartPolicy": "Never",
        "priorityClassName": priority_class,
        "nodeSelector": {HOSTNAME: node},
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "urgent"}, "spec": spec}


__all__ = ["LEAVES_AT_ONCE", "GangUnderTest", "PropagationPolicy"]
