"""Gang policy: decides whether the pods of a Job are placed as a gang (KEP-5547).

A gang is an Indexed Job that has more than one pod and runs all pods at once. The scheduler does not count members of a
group that have completed (kubernetes#142330). A replacement pod, or a pod above parallelism, is therefore never placed
after another pod has completed. The policy excludes Jobs that may need such pods.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.spec import GangPolicy

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.render.shape import Shape

REPLACEMENT_TRAP: Final = (
    "the scheduler never places a replacement pod after another rank has finished (kubernetes#142330)"
)
ONE_POD: Final = "one pod"


class Placement(StrEnum):
    """How the pods are placed. The value of `ANNOTATION_GANG` starts with this word."""

    GANG = "gang"
    BASIC = "basic"
    """The pods cannot be a gang, and are placed one by one."""
    USER_PROVIDED = "brought"
    """The manifest has its own link to a group."""
    OFF = "off"
    """The user turned gang scheduling off."""
    REFUSED = "refused"
    """The submission fails before any object is created, so no annotation has this value."""


class PlacementDecision(Struct, frozen=True):
    """How the pods of one Job are placed.

    `detail` is the name of the gang scheduler or dialect that places a gang, or the reason for no gang.
    """

    placement: Placement
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.placement.value}:{self.detail}" if self.detail else self.placement.value

    @classmethod
    def parse(cls, text: str) -> PlacementDecision:
        """Read the value of `ANNOTATION_GANG`. An unknown value is read as `off`."""
        placement, _, detail = text.partition(":")
        known = placement in {kind.value for kind in Placement}
        return cls(Placement(placement), detail) if known else cls(Placement.OFF)


def ineligibility_reason(shape: Shape) -> str | None:
    """Return the reason why the pods cannot be a gang on any cluster, or `None`.

    The function ignores the number of pods; see `is_single_pod`.
    """
    if not shape.indexed:
        return "completionMode is NonIndexed, and a gang needs pods that have an index"
    if shape.completions != shape.parallelism:
        sizes = f"completions ({shape.completions}) is not equal to parallelism ({shape.parallelism})"
        return f"{sizes}, and a gang runs all pods at once"
    if shape.backoff_limit > 0:
        return f"backoffLimit is {shape.backoff_limit}, and {REPLACEMENT_TRAP}"
    if shape.per_index_backoff:
        return f"backoffLimitPerIndex is set, and {REPLACEMENT_TRAP}"
    if shape.controller:
        return f"{shape.controller} owns the Job and decides on its placement"
    return None


def decide_placement(
    shape: Shape, policy: GangPolicy, *, scheduler: str | None, unserved: str = ""
) -> PlacementDecision:
    """Decide how the pods are placed on a cluster.

    :param scheduler: The name of the dialect or of the gang scheduler; `None` if the cluster cannot place gangs.
    :param unserved: The reason why the cluster cannot place gangs.
    """
    if shape.user_gang_link:
        return PlacementDecision(Placement.USER_PROVIDED)
    if policy is GangPolicy.OFF:
        return PlacementDecision(Placement.OFF)
    if is_single_pod(shape):
        return PlacementDecision(Placement.BASIC, ONE_POD)
    reason = ineligibility_reason(shape) or ("" if scheduler else unserved or "the cluster serves no Workload API")
    if not reason:
        return PlacementDecision(Placement.GANG, str(scheduler))
    return PlacementDecision(Placement.REFUSED if policy is GangPolicy.REQUIRED else Placement.BASIC, reason)


def is_single_pod(shape: Shape) -> bool:
    """Return whether the Job runs one pod only, which needs no gang scheduling."""
    return shape.parallelism == 1 and (shape.completions or 1) == 1
