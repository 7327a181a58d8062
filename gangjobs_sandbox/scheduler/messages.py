"""What the scheduler of each release says about a pod or a gang that does not fit. Pure.

The texts are those of kube-scheduler, including the part about preemption. The conformance tests compare them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.meta import uid_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangjobs_sandbox.releases import Release
    from gangjobs_sandbox.scheduler.nodes import Obj
    from gangjobs_sandbox.scheduler.placement import Placement, Refusal

PLACED = ""
"""What a group says that has been placed."""

_GROUP = "pod group is unschedulable"
_WAITS = (
    f"{_GROUP}, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)


@dataclass(frozen=True)
class Eviction:
    """That room is being made, where, and by how many who go."""

    node: str
    victims: int


@dataclass(frozen=True)
class Gang:
    """What is asked of a group, and how many of it have a place already."""

    minimum: int
    bound: int


class Messages:
    """The texts of one release."""

    def __init__(self, release: Release) -> None:
        self._is_gang_native = release.schedules_groups
        self._tail = " preemption: " if self._is_gang_native else " no new claims to deallocate, preemption: "

    def pod(self, refusal: Refusal, eviction: Eviction | None = None) -> str:
        """Of a pod that was tried by itself."""
        if not refusal.nodes:
            return refusal.text
        if eviction is None:
            return f"{refusal.text}{self._tail}{_unhelpful(refusal)}"
        if not self._is_gang_native:
            return refusal.text
        found = f"found a potential placement for pod on node {eviction.node}, preempting {eviction.victims} victims"
        return f"{refusal.text}{self._tail}{found}"

    def group(self, gang: Gang, placement: Placement, eviction: Eviction | None) -> str:
        """Of a group that could not be placed."""
        if self._is_gang_native:
            found = "No preemption victims found for incoming preemptor"
            if eviction is not None:
                found = f"found a placement for podgroup, preempting {eviction.victims} victims"
            return f"{self._lacking(gang, placement)}, pod group preemption: {found}"
        return _GROUP if eviction is None else f"{_GROUP}, pod group is waiting for preemption to complete"

    def members(
        self, pods: Sequence[Obj], gang: Gang, placement: Placement, eviction: Eviction | None
    ) -> dict[str, str]:
        """Of each pod of a group that stays without a node, by uid; `pods` in the order in which they were tried."""
        if not self._is_gang_native:
            messages = {uid: self.pod(refusal, eviction) for uid, refusal in placement.refused.items()}
            return (
                messages if placement.is_feasible else {uid_of(pod): messages.get(uid_of(pod), _WAITS) for pod in pods}
            )
        messages = {uid: refusal.text for uid, refusal in placement.refused.items()}
        if placement.shortfall is None:
            return messages
        group = f"{_GROUP}, {self.group(gang, placement, eviction)}"
        tried = len(pods) - placement.shortfall.remaining
        lacking = self._lacking(gang, placement)
        return {
            **{uid_of(pod): messages.get(uid_of(pod), group) for pod in pods[:tried]},
            **{uid_of(pod): lacking for pod in pods[tried:]},
        }

    def _lacking(self, gang: Gang, placement: Placement) -> str:
        assert placement.shortfall is not None, "only of a group that could not be placed"
        scheduled, remaining = gang.bound + placement.shortfall.placed, placement.shortfall.remaining
        return f"minCount ({gang.minimum}) cannot be satisfied: {scheduled} scheduled, {remaining} remaining"


def _unhelpful(refusal: Refusal) -> str:
    """Why nobody was made to go."""
    counts = {
        "No preemption victims found for incoming pod": refusal.nodes - refusal.hopeless,
        "Preemption is not helpful for scheduling": refusal.hopeless,
    }
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items() if count))
    return f"0/{refusal.nodes} nodes are available: {listed}."


def priorities_differ(pods: Sequence[Obj], priority: int) -> str | None:
    """1.37 refuses a group of which a pod has another priority than the group itself (KEP-5710)."""
    for pod in pods:
        own = int(pod["spec"].get("priority") or 0)
        if own != priority:
            rule = "all pods in a single pod group should have the same priority as the pod group's priority"
            return f"{rule}, got {own} and {priority}"
    return None
