"""Kueue's topology aware scheduling as a gang scheduler.

A flavor with a Topology makes Kueue choose the node of every pod, and admit a Job only if all of its pods fit. A quota
alone counts the sum of the resources and not the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.schedulers.base import GangScheduler, Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
    from airflow_provider_gangjobs.kube.views import Object

KUEUE: Final = "kueue"
HOSTNAME: Final = "kubernetes.io/hostname"
"""The lowest level of a Topology in which Kueue chooses nodes, and not only groups of nodes."""


@dataclass(frozen=True)
class KueueTopology(GangScheduler):
    """Kueue places the pods by the flavors of the queue. The Job needs no link and no further objects."""

    name: str = KUEUE

    def with_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> Object:
        return dict(job)

    def has_link(self, job: Mapping[str, Any], group: SchedulingGroup) -> bool:
        return True


def flavor_names(cluster_queue: Mapping[str, Any]) -> list[str]:
    """Return the names of the ResourceFlavors of a ClusterQueue, each once."""
    groups = cluster_queue.get("spec", {}).get("resourceGroups") or ()
    return list(dict.fromkeys(str(flavor["name"]) for group in groups for flavor in group.get("flavors") or ()))


class QueueTopologies(Struct, frozen=True):
    """The flavors of a queue, and the Topologies that they name."""

    flavors: Mapping[str, str | None] = {}
    """The name of the Topology by ResourceFlavor; `None` for a flavor without a Topology."""
    levels: Mapping[str, Sequence[str]] = {}
    """The node labels of each Topology, from the top."""
    missing: Sequence[str] = ()
    """Objects that the queue or its flavors name and that do not exist, such as `ResourceFlavor gpu`."""

    @property
    def all_levels(self) -> tuple[str, ...] | None:
        """The levels of all Topologies, each once; `None` if the queue is not complete."""
        return (
            None if self.missing else tuple(dict.fromkeys(level for levels in self.levels.values() for level in levels))
        )


def topology_guarantee(queue: str, topologies: QueueTopologies) -> Guarantee:
    """Return whether all pods of a gang are placed or none, if Kueue admits the gang in this LocalQueue."""
    if topologies.missing:
        return Guarantee(False, f"{topologies.missing[0]} of Kueue queue {queue} does not exist", _ADVICE_MISSING)
    if not topologies.flavors:
        return Guarantee(False, f"Kueue queue {queue} has no flavors")
    for flavor, topology in topologies.flavors.items():
        if topology is None:
            return Guarantee(
                False,
                f"Kueue queue {queue} counts a quota and not nodes: its flavor {flavor} has no Topology, so a gang may "
                "be placed in part",
            )
        if HOSTNAME not in topologies.levels[topology][-1:]:
            return Guarantee(
                False, f"Topology {topology} of flavor {flavor} of Kueue queue {queue} does not end with {HOSTNAME}"
            )
    return Guarantee(True)


_ADVICE_MISSING: Final = "Ask the administrator of Kueue to create this object, or name another queue"
