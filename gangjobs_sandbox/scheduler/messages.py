"""Builds the messages of each release's scheduler about a pod or a gang that does not fit. Pure.

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

_GROUP = "pod group is unschedulable"
_WAITS = (
    f"{_GROUP}, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)

_NO_PREEMPTION = " not found"
"""The answer of the plugin DynamicResources to the question whether preemption helps a pod that PreFilter refused."""


@dataclass(frozen=True)
class Eviction:
    """The evictions for a pod or group: the nominated node, and the number of victims."""

    node: str
    victims: int


@dataclass(frozen=True)
class Gang:
    """The minimum size of a gang, and the number of its pods that are bound."""

    minimum: int
    bound: int


class Messages:
    """The messages of one release."""

    def __init__(self, release: Release) -> None:
        self._is_gang_native = release.schedules_groups
        self._preemption_start = (
            " preemption: " if self._is_gang_native else " no new claims to deallocate, preemption: "
        )

    def pod(self, refusal: Refusal, eviction: Eviction | None = None) -> str:
        """Return the message of a pod that was tried alone."""
        if not refusal.nodes:
            return refusal.text
        if refusal.is_by_prefilter:
            return f"{refusal.text}{_NO_PREEMPTION}"
        if eviction is None:
            return f"{refusal.text}{self._preemption_start}{_no_victims_text(refusal)}"
        if not self._is_gang_native:
            return refusal.text
        found = f"found a potential placement for pod on node {eviction.node}, preempting {eviction.victims} victims"
        return f"{refusal.text}{self._preemption_start}{found}"

    def group(self, gang: Gang, placement: Placement, eviction: Eviction | None) -> str:
        """Return the message of a group that could not be placed."""
        if self._is_gang_native:
            found = "No preemption victims found for incoming preemptor"
            if eviction is not None:
                found = f"found a placement for podgroup, preempting {eviction.victims} victims"
            return f"{self._min_count_text(gang, placement)}, pod group preemption: {found}"
        return _GROUP if eviction is None else f"{_GROUP}, pod group is waiting for preemption to complete"

    def members(
        self, pods: Sequence[Obj], gang: Gang, placement: Placement, eviction: Eviction | None
    ) -> dict[str, str]:
        """Return, by UID, the messages of a group's pods without a node. `pods` is in the order of the attempts."""
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
        min_count_text = self._min_count_text(gang, placement)
        return {
            **{uid_of(pod): messages.get(uid_of(pod), group) for pod in pods[:tried]},
            **{uid_of(pod): min_count_text for pod in pods[tried:]},
        }

    def _min_count_text(self, gang: Gang, placement: Placement) -> str:
        assert placement.shortfall is not None, "only of a group that could not be placed"
        scheduled, remaining = gang.bound + placement.shortfall.placed, placement.shortfall.remaining
        return f"minCount ({gang.minimum}) cannot be satisfied: {scheduled} scheduled, {remaining} remaining"


def _no_victims_text(refusal: Refusal) -> str:
    """Return why preemption evicted no pod."""
    counts = {
        "No preemption victims found for incoming pod": refusal.nodes - refusal.hopeless,
        "Preemption is not helpful for scheduling": refusal.hopeless,
    }
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items() if count))
    return f"0/{refusal.nodes} nodes are available: {listed}."


def priorities_differ(pods: Sequence[Obj], priority: int) -> str | None:
    """Return why 1.37 refuses a group: the priority of a pod differs from the priority of the group (KEP-5710)."""
    for pod in pods:
        own = int(pod["spec"].get("priority") or 0)
        if own != priority:
            rule = "all pods in a single pod group should have the same priority as the pod group's priority"
            return f"{rule}, got {own} and {priority}"
    return None
