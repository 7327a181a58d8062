"""Layouts of nodes and gangs that are drawn at random, and what becomes of their gangs on a control plane.

A layout has nodes of its own, which a label separates from the nodes of other layouts, so that many layouts are played
at once. The nodes are simulated: they write the status of their pods and run nothing.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import Conflict, NotFound
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.kube.resources import NODES, PODS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.endings.fake_kubelets import FakeKubelets, started_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

LABEL: Final = "example.org/layout"
TAINT: Final = {"key": "example.org/reserved", "value": "yes", "effect": "NoSchedule"}
TOLERATION: Final = {"key": "example.org/reserved", "operator": "Exists", "effect": "NoSchedule"}
MILLICORES: Final = (300, 500, 700, 1000, 1300, 2000)
NOW: Final = Deadlines(queue_s=1.0, assemble_s=1.0)
"""Deadlines that have passed for every gang that waits."""
LOOK_AGAIN_S: Final = 0.5
WAITS_LOOKS: Final = 50
"""For how many looks gangs wait before the provider ends them (`Watchdog`): for 25 seconds, in which each scheduler
binds a gang, and for longer on a slow machine, where each look takes longer."""


@dataclass(frozen=True)
class DrawnGang:
    """A gang that arrives `arrives_s` after the first moment, and whose ranks run for `runs_s`."""

    ranks: int
    millicores: int
    arrives_s: float
    runs_s: float
    tolerates: bool


@dataclass(frozen=True)
class Layout:
    """Nodes, by their CPUs, and the gangs that compete for them.

    Attributes:
        tainted: the index of the node with a taint, if there is one.
        leaves: the index of the node that is deleted, and after how many seconds, if one is.
    """

    seed: int
    nodes: tuple[int, ...]
    gangs: tuple[DrawnGang, ...]
    tainted: int | None
    leaves: tuple[int, float] | None

    @property
    def name(self) -> str:
        """The name of the layout, which is the label of its nodes."""
        return f"layout-{self.seed}"

    def last_to_arrive(self, waiting: Collection[int]) -> int:
        """Return which of the gangs with these indexes arrives last."""
        return max(waiting, key=lambda index: (self.gangs[index].arrives_s, index))

    def can_hold(self, gang: DrawnGang) -> bool:
        """Whether the gang fits onto the empty nodes that it tolerates, before a node leaves."""
        usable = (cpu for index, cpu in enumerate(self.nodes) if gang.tolerates or index != self.tainted)
        return gang.ranks <= sum(cpu * 1000 // gang.millicores for cpu in usable)


def draw(seed: int) -> Layout:
    """The layout of this seed, which is the same on every machine."""
    drawn = random.Random(seed)
    nodes = tuple(drawn.choice((1, 2, 2, 3, 4)) for _ in range(drawn.randint(2, 4)))
    gangs = tuple(
        DrawnGang(
            ranks=drawn.randint(2, 5),
            millicores=drawn.choice(MILLICORES),
            arrives_s=drawn.choice((0.0, 0.0, 0.2, 1.0, 3.0)),
            runs_s=drawn.choice((1.0, 2.0, 5.0)),
            tolerates=drawn.random() < 0.5,
        )
        for _ in range(drawn.randint(2, 4))
    )
    tainted = drawn.randrange(len(nodes)) if drawn.random() < 0.3 else None
    leaves = (drawn.randrange(len(nodes)), drawn.uniform(0.2, 6.0)) if drawn.random() < 0.3 else None
    return Layout(seed, nodes, gangs, tainted, leaves)


@dataclass(frozen=True)
class Played:
    """One gang of a layout, the name of its Job, and the event at its end."""

    layout: Layout
    gang: DrawnGang
    job: str
    event: GangEvent

    def __str__(self) -> str:
        return f"{self.job}, {self.gang} of {self.layout}: {self.event}"


@dataclass
class Watchdog:
    """Ends gangs of a layout that wait.

    A gang that the nodes cannot hold is ended `WAITS_LOOKS` after its submission: on a fast machine, too, it could not
    go on. A gang that the nodes can hold is ended when no gang of the layout has ended, and no pod has changed, for
    `WAITS_LOOKS`. This time does not count from the submission, so that a slow machine ends no gang that could go on.
    A layout that can hold a gang runs one, unless a node leaves, or gangs keep each other from the nodes: YuniKorn
    reserves places for several gangs in part. Each gang that is ended may let another gang go on, so these gangs are
    ended one after the other, the last to arrive first.
    """

    layout: Layout
    limits: dict[int, asyncio.Event] = field(default_factory=dict)
    """Of each gang that is followed, by its index: set when the gang is to be ended."""
    submitted_at: dict[int, int] = field(default_factory=dict)
    """At which look each gang was submitted, by its index."""
    _pods: frozenset[tuple[str | bool | None, ...]] = frozenset()
    _look: int = 0
    _changed_at: int = 0

    def look(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Compare the pods of the layout with those of the last look, and decide which gangs are ended."""
        self._look += 1
        seen = frozenset(map(_state, filter(self._has, pods)))
        ended = [index for index in self.limits if self._waits_in_vain(index)]
        if seen == self._pods and self.limits and not ended and self._look - self._changed_at > WAITS_LOOKS:
            ended = [self.layout.last_to_arrive(self.limits)]
        if seen != self._pods or ended:
            self._pods, self._changed_at = seen, self._look
        for index in ended:
            self.limits.pop(index).set()

    def _waits_in_vain(self, index: int) -> bool:
        is_old = self._look - self.submitted_at[index] > WAITS_LOOKS
        return is_old and not self.layout.can_hold(self.layout.gangs[index])

    def _has(self, pod: Mapping[str, Any]) -> bool:
        return (pod["spec"].get("nodeSelector") or {}).get(LABEL) == self.layout.name

    async def follow(self, index: int, tenant: Tenant, submission: Submission) -> GangEvent:
        """Follow a gang until it has ended by itself, or until it is ended by its deadline."""
        limit = self.limits[index] = asyncio.Event()
        self._changed_at = self.submitted_at[index] = self._look
        following = asyncio.create_task(follow_gang(tenant, submission))
        limited = asyncio.create_task(limit.wait())
        try:
            await asyncio.wait((following, limited), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return await following
        finally:
            self.limits.pop(index, None)
            self._changed_at = self._look
            following.cancel()
            limited.cancel()
            await asyncio.gather(following, limited, return_exceptions=True)
        return await follow_gang(tenant, submission, NOW)


def _state(pod: Mapping[str, Any]) -> tuple[str | bool | None, ...]:
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    return metadata["uid"], spec.get("nodeName"), status.get("phase"), "deletionTimestamp" in metadata


async def play_layouts(
    tenant: Tenant, seeds: range, parameters_of: Callable[[Layout], Mapping[str, Any]]
) -> list[Played]:
    """Play the layouts at once in the namespace of the tenant, until all of their gangs have ended.

    :param parameters_of: Parameters of the gangs of a layout, such as their scheduler.
    """
    admin_file = tenant.plane.folder / "admin.kubeconfig"
    config = ClusterConfig.from_extras("admin", {"kube_config_path": str(admin_file)})
    async with Client(config) as admin, GangService.connect(tenant.config) as gangs:
        kubelets = FakeKubelets(admin)
        watchdogs = [Watchdog(draw(seed)) for seed in seeds]
        async with kubelets.playing(), asyncio.TaskGroup() as tasks:
            ending = tasks.create_task(_end_pods(kubelets, tenant.namespace, watchdogs))
            played = await asyncio.gather(
                *(_play(watchdog, gangs, tenant, kubelets, parameters_of) for watchdog in watchdogs)
            )
            ending.cancel()
    return [one for layout in played for one in layout]


async def _play(
    watchdog: Watchdog,
    gangs: GangService,
    tenant: Tenant,
    kubelets: FakeKubelets,
    parameters_of: Callable[[Layout], Mapping[str, Any]],
) -> list[Played]:
    layout = watchdog.layout
    names = [f"{layout.name}-{index}" for index in range(len(layout.nodes))]
    for index, (name, cpu) in enumerate(zip(names, layout.nodes, strict=True)):
        await kubelets.join(name, cpu=cpu, labels={LABEL: layout.name})
        if index == layout.tainted:
            await kubelets.admin.patch(NODES, name, None, {"spec": {"taints": [TAINT]}})
    parameters = parameters_of(layout)
    leaving = asyncio.create_task(_leave(layout, names, kubelets))
    try:
        return await asyncio.gather(
            *(_run(watchdog, number, gangs, tenant, parameters) for number in range(len(layout.gangs)))
        )
    finally:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        for name in sorted(set(names) & kubelets.alive):
            kubelets.alive.discard(name)
            await kubelets.admin.delete(NODES, name)


async def _leave(layout: Layout, names: list[str], kubelets: FakeKubelets) -> None:
    """Cordon the node that leaves, delete its pods as a drain does, and then delete the node."""
    if layout.leaves is None:
        return
    index, after_s = layout.leaves
    name, admin = names[index], kubelets.admin
    await asyncio.sleep(after_s)
    await admin.patch(NODES, name, None, {"spec": {"unschedulable": True}})
    while pods := [pod for pod in await admin.list(PODS, field_selector=f"spec.nodeName={name}") if _is_at_work(pod)]:
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                await admin.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        await asyncio.sleep(LOOK_AGAIN_S)
    kubelets.alive.discard(name)
    await admin.delete(NODES, name)


def _is_at_work(pod: Mapping[str, Any]) -> bool:
    """Whether the node has something to do for the pod: to run it, or to remove it."""
    return "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") not in ("Succeeded", "Failed")


async def _run(
    watchdog: Watchdog, number: int, gangs: GangService, tenant: Tenant, parameters: Mapping[str, Any]
) -> Played:
    layout = watchdog.layout
    gang = layout.gangs[number]
    await asyncio.sleep(gang.arrives_s)
    spec = gang_spec(
        gang.ranks,
        code="",
        cpu=f"{gang.millicores}m",
        node_selector={LABEL: layout.name},
        tolerations=[TOLERATION] if gang.tolerates else None,
        annotations={LABEL: str(gang.runs_s)},
        **parameters,
    )
    submission = await submit_gang(gangs, spec, f"{layout.name}-{number}")
    event = await watchdog.follow(number, tenant, submission)
    return Played(layout, gang, submission.ref.name, event)


async def _end_pods(kubelets: FakeKubelets, namespace: str, watchdogs: Collection[Watchdog]) -> None:
    """End the ranks after the time that their gang has drawn, and gangs that wait."""
    while True:
        await asyncio.sleep(LOOK_AGAIN_S)
        pods = await kubelets.admin.list(PODS, namespace)
        for watchdog in watchdogs:
            watchdog.look(pods)
        for pod in pods:
            runs_s = (pod["metadata"].get("annotations") or {}).get(LABEL)
            started = started_at(pod)
            is_going = "deletionTimestamp" in pod["metadata"]
            if runs_s is None or started is None or is_going or pod["spec"]["nodeName"] not in kubelets.alive:
                continue
            if (datetime.now(UTC) - started).total_seconds() > float(runs_s):
                with suppress(NotFound, Conflict):  # the pod has been deleted since
                    await kubelets.end(pod)
