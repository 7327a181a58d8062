"""Gang policy: whether these pods can be a gang, and what to do if not (KEP-5547).

A gang is Indexed, has more than one pod, and runs all of them at once. Two traps of the scheduler
(kubernetes#142330) are part of the rule: members that have completed no longer count, so neither a
replacement pod nor a tail of completions above parallelism is ever placed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.spec import GangPolicy

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.render.shape import Shape

REPLACEMENT_TRAP: Final = "a replacement pod is never placed once another rank has finished (kubernetes#142330)"
ONE_POD: Final = "one pod"


class Placement(StrEnum):
    """How the pods are placed. The start of `ANNOTATION_GANG`."""

    GANG = "gang"
    BASIC = "basic"
    USER_PROVIDED = "brought"
    OFF = "off"
    REFUSED = "refused"
    """Never written: nothing is created."""


@dataclass(frozen=True)
class PlacementDecision:
    """How the pods are to be placed. `detail` is the dialect of a gang, or the reason for something else."""

    placement: Placement
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.placement.value}:{self.detail}" if self.detail else self.placement.value

    @classmethod
    def parse(cls, text: str) -> PlacementDecision:
        """The decision that was written as `text`; something unknown is nobody's gang: `off`."""
        placement, _, detail = text.partition(":")
        known = placement in {kind.value for kind in Placement}
        return cls(Placement(placement), detail) if known else cls(Placement.OFF)


def ineligibility_reason(shape: Shape) -> str | None:
    """Why these pods cannot be a gang on any cluster, or None. One pod alone is no gang, and no obstacle."""
    if not shape.indexed:
        return "completionMode is NonIndexed, and only pods with an index form a gang"
    if shape.completions != shape.parallelism:
        return f"completions ({shape.completions}) is not parallelism ({shape.parallelism}): a gang runs all at once"
    if shape.backoff_limit > 0:
        return f"backoffLimit is {shape.backoff_limit}, and {REPLACEMENT_TRAP}"
    if shape.per_index_backoff:
        return f"backoffLimitPerIndex is set, and {REPLACEMENT_TRAP}"
    if shape.controller:
        return f"the Job is owned by {shape.controller}, which decides on its placement"
    return None


def decide_placement(shape: Shape, policy: GangPolicy, *, dialect: str | None, unserved: str = "") -> PlacementDecision:
    """What to do with these pods on this cluster.

    `dialect` is what the cluster was found to serve, and `unserved` says why there is none.
    """
    if shape.user_gang_link:
        return PlacementDecision(Placement.USER_PROVIDED)
    if policy is GangPolicy.OFF:
        return PlacementDecision(Placement.OFF)
    if is_single_pod(shape):
        return PlacementDecision(Placement.BASIC, ONE_POD)
    reason = ineligibility_reason(shape) or ("" if dialect else unserved or "the cluster serves no Workload API")
    if not reason:
        return PlacementDecision(Placement.GANG, str(dialect))
    return PlacementDecision(Placement.REFUSED if policy is GangPolicy.REQUIRED else Placement.BASIC, reason)


def is_single_pod(shape: Shape) -> bool:
    """Whether there is only ever one pod, so that all-or-none means nothing."""
    return shape.parallelism == 1 and (shape.completions or 1) == 1
