"""What the policies of a gang mean for its Job: whether the pods are placed as a gang, and the Job's own time limit.

A gang is an Indexed Job of several pods that all run at once (KEP-5547). A pod that is created after another
one has completed is never placed (kubernetes#142330), so Jobs that may need such pods are no gangs.

Triggerers enforce the time limits of a task. If none does, the API server enforces activeDeadlineSeconds. This limit
counts from the start of the Job, begins again when a queue resumes it, and does not count while it is suspended.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_TIME_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.render.shape import Shape
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


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
    """Return why the pods cannot be a gang on any cluster, whatever their number."""
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
    :param unserved: Why it cannot.
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


MARGIN_S: Final = 600
"""The triggerers' own deadlines pass earlier, also if all triggerers are restarted."""


class TimeLimit(Struct, frozen=True):
    """The time limit of a Job."""

    seconds: int
    """The value of activeDeadlineSeconds."""
    source: str
    """The parameters of the task from which the limit was computed, for messages."""
    is_of_try: bool = False
    """The limit holds for one try of the task, and the next try has the whole time again."""


def time_limit(spec: GangSpec, manifest: Mapping[str, Any]) -> TimeLimit | None:
    """Return the limit of the Job, unless the task has no limits or the manifest has a limit of its own."""
    if manifest.get("spec", {}).get("activeDeadlineSeconds") is not None:
        return None
    limits = []
    if spec.assemble_timeout_s is not None and spec.run_timeout_s is not None:
        source = f"assemble_timeout ({spec.assemble_timeout_s:g} s) and run_timeout ({spec.run_timeout_s:g} s)"
        limits.append(_with_margin(spec.assemble_timeout_s + spec.run_timeout_s, source))
    if spec.execution_timeout_s is not None:
        source = f"execution_timeout ({spec.execution_timeout_s:g} s)"
        limits.append(_with_margin(spec.execution_timeout_s, source, is_of_try=True))
    return min(limits, key=lambda limit: limit.seconds, default=None)


def limit_patch_on_adoption(gang: StoredGang, limit: TimeLimit | None) -> dict[str, Any]:
    """Return the merge patch of the limit of a Job that another try with this limit adopts; empty if the limit
    stays."""
    before_s = gang.active_deadline_s
    if gang.time_limit is None or before_s is None or gang.is_ended or gang.is_halted:
        return {}
    if limit is None:
        return {"metadata": {"annotations": {ANNOTATION_TIME_LIMIT: None}}, "spec": {"activeDeadlineSeconds": None}}
    # The Job is younger than its limit. So the sum leaves the try its whole time, whatever the clocks say.
    seconds = before_s + limit.seconds if limit.is_of_try else max(before_s, limit.seconds)
    if (seconds, limit.source) == (before_s, gang.time_limit):
        return {}
    return {
        "metadata": {"annotations": {ANNOTATION_TIME_LIMIT: limit.source}},
        "spec": {"activeDeadlineSeconds": seconds},
    }


def _with_margin(seconds: float, source: str, *, is_of_try: bool = False) -> TimeLimit:
    return TimeLimit(math.ceil(seconds) + MARGIN_S, source, is_of_try)
