"""Carries out preemption: finds the pods that may be evicted for a unit that does not fit, and evicts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers import meta
from gangjobs_sandbox.controllers.meta import is_deleting, name_of, namespace_of, node_of, uid_of
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import PODS
from gangjobs_sandbox.scheduler import groups, preemption
from gangjobs_sandbox.scheduler.cache import (
    SCHEDULER_NAME,
    ClusterCache,
    group_key,
    priority_of,
)
from gangjobs_sandbox.scheduler.messages import Eviction
from gangjobs_sandbox.scheduler.nodes import Obj, request_of
from gangjobs_sandbox.scheduler.preemption import Occupant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.scheduler.placement import Candidate

_WHOLE_GROUP_MODES: tuple[object, ...] = ("PodGroup", {"all": {}})
"""The disruption modes, of 1.36 and of 1.37, of a group that is evicted as a whole."""


class Evictor:
    """Evicts pods for one scheduler."""

    def __init__(self, registry: Registry, clock: Clock, cache: ClusterCache) -> None:
        self._registry = registry
        self._clock = clock
        self._cache = cache
        self._preemptor_by_victim: dict[str, str] = {}
        """By UID of an evicted pod, the UID of the first pod of the unit for which the pod was evicted."""

    def preempt(
        self, candidates: Sequence[Candidate], *, needed: int, pod_group: Obj | None = None
    ) -> Cooperative[Eviction | None]:
        """Evict less important pods if the candidates fit after the evictions. Raises StatusError.

        The resources are not reserved: the scheduler tries the candidates again when the resources are free.

        Args:
            pod_group: the group that is scheduled as a whole.
        """
        pods = [candidate.pod for candidate in candidates]
        priority = min(priority_of(pod) for pod in pods)
        if any(pod["spec"].get("preemptionPolicy") == "Never" for pod in pods):
            return None
        if not any(priority_of(pod) < priority for pod in self._cache.pods.values() if node_of(pod)):
            return None
        nodes = list(self._cache.nodes.values())
        occupants = yield from self._occupants(preemptors={uid_of(pod) for pod in pods})
        victims = yield from preemption.select_victims(candidates, nodes, occupants, needed=needed, priority=priority)
        evicted = [occupant for victim in victims for occupant in victim.occupants]
        for occupant in evicted:
            self._evict(occupant, by=pods[0], pod_group=pod_group)
            yield
        return Eviction(evicted[0].node, len(evicted)) if evicted else None

    def _occupants(self, *, preemptors: set[str]) -> Cooperative[list[Occupant]]:
        """Return the placed pods, without the pods that were evicted for another unit that still waits.

        The resources of the omitted pods count as used.
        """
        self._preemptor_by_victim = {
            victim: preemptor for victim, preemptor in self._preemptor_by_victim.items() if victim in self._cache.pods
        }
        occupants: list[Occupant] = []
        for pod in list(self._cache.pods.values()):
            yield
            node, preemptor = node_of(pod), self._preemptor_by_victim.get(uid_of(pod))
            if node is not None and (preemptor in preemptors or preemptor not in self._cache.waiting):
                unit = self._unit_of(pod)
                occupants.append(Occupant(pod, node, request_of(pod), priority_of(pod), unit, is_deleting(pod)))
        return occupants

    def _unit_of(self, pod: Obj) -> str:
        key = group_key(pod)
        group = groups.find(self._registry, key) if key is not None else None
        if (
            group is not None
            and group.pod_group is not None
            and group.pod_group["spec"].get("disruptionMode") in _WHOLE_GROUP_MODES
        ):
            return f"group {uid_of(group.pod_group)}"
        return f"pod {uid_of(pod)}"

    def _evict(self, occupant: Occupant, *, by: Obj, pod_group: Obj | None) -> None:
        pod, kind = occupant.pod, "pod" if pod_group is None else "podgroup"
        text = f"{SCHEDULER_NAME}: preempting to accommodate a higher priority {kind}"
        target = meta.condition("DisruptionTarget", "True", "PreemptionByScheduler", text, self._clock.now())
        patch = {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": [target]}}
        try:
            self._registry.patch(
                PODS, name_of(pod), namespace_of(pod), patch, PatchKind.STRATEGIC, subresource="status"
            )
            self._registry.delete(PODS, name_of(pod), namespace_of(pod), uid=uid_of(pod))
        except StatusError as exc:
            if exc.code != 404:
                raise
            return
        self._preemptor_by_victim[uid_of(pod)] = uid_of(by)
        place = occupant.node if pod_group is None else "cluster"
        message = f"Preempted by {kind} {uid_of(pod_group or by)} on node {place}"
        self._registry.record_event(pod, "Normal", "Preempted", message, SCHEDULER_NAME)
