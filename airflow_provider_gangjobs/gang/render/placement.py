"""Placement of a gang and its other policies: whether its pods are placed together, and the time limit of its Job.

The shape is the number of pods, whether they have indexes, and which controllers also manage the Job. A gang is an
Indexed Job of several pods that all run at once (KEP-5547). A pod that is created after another one has completed is
never placed (kubernetes#142330), so Jobs that may need such pods are no gangs.

Triggerers enforce the time limits of a task. If none does, the API server enforces activeDeadlineSeconds. This limit
counts from the start of the Job, begins again when a queue resumes it, and does not count while it is suspended.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.schedulers import DEFAULT_SCHEDULER, LINK_KEYS
from airflow_provider_gangjobs.gang.spec import DURATION_MAX_S, GangPolicy, GangSpec, Rendezvous, roles_of
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_PRIORITY, LABEL_KUEUE_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


INDEXED: Final = "Indexed"
NON_INDEXED: Final = "NonIndexed"
SHARED_CLAIMS: Final = "manifest.spec.scheduling.resourceClaims"
"""Where a manifest names the claims of devices that all pods share, in the words of Kubernetes 1.37 (KEP-5729)."""

ONE_CLAIM: Final = "create one ResourceClaim, and name it in the resourceClaims of the pods alone"
"""How pods share a device without a group that has the claim. At most 256 pods can use such a claim."""


class Shape(Struct, frozen=True):
    """Values that decide whether the pods can be a gang (KEP-5547), and settings that belong to other controllers."""

    parallelism: int
    completions: int | None
    indexed: bool
    backoff_limit: int
    has_default_backoff: bool = False
    """The manifest leaves out backoffLimit."""
    per_index_backoff: bool = False
    min_count: int | None = None
    user_gang_link: str | None = None
    """Path of a link to a group in the manifest. If it is set, the provider renders no link and creates no group."""
    controller: str | None = None
    """`Kind/name` of the controller that owns the Job, from the manifest's ownerReferences."""
    kueue_queue: str | None = None
    """Name of the Kueue queue. If it is set, Kueue decides when the Job starts."""
    kueue_priority: str | None = None
    """Name of the WorkloadPriorityClass of the Job in its queue."""
    connection_defaults: tuple[str, ...] = ()
    """Which of `queue_name` and `queue_priority` come from the connection."""
    scheduler_name: str | None = None
    """`schedulerName` of the pods; `None` if the default scheduler places them."""
    topology: str | None = None
    """`required:LABEL` or `preferred:LABEL`; `None` for any nodes."""
    shared_claims: tuple[dict[str, Any], ...] = ()
    """`SHARED_CLAIMS`, of a manifest whose `spec.scheduling` has nothing else."""

    @property
    def size(self) -> int:
        return self.completions or self.parallelism

    @property
    def group_topology(self) -> str | None:
        """The topology of the gang if no queue decides about it. One pod has each topology."""
        return None if self.kueue_queue is not None or is_single_pod(self) else self.topology

    @property
    def group_claims(self) -> tuple[dict[str, Any], ...]:
        """The claims of the group. One pod shares no claim: its own entry of the same name is the claim."""
        return () if is_single_pod(self) else self.shared_claims


def shape_of(spec: GangSpec, manifest: Mapping[str, Any]) -> Shape:
    """Return the shape of the Job of a spec and its manifest, which have passed the structural checks.

    The shape of a gang with roles is that of all roles together.
    """
    job = manifest.get("spec", {})
    pod = _pod_spec(spec, job)
    scheduler_name = _scheduler_name(spec, job)
    labels = {**manifest.get("metadata", {}).get("labels", {}), **spec.labels}
    workers = spec.workers if spec.roles is None else sum(role.size for role in roles_of(spec))
    user_link = _user_gang_link(job, pod) or _user_group_key(spec, job, scheduler_name)
    return Shape(
        parallelism=_first(workers, job.get("parallelism"), 1),
        completions=_first(workers, job.get("completions"), None if manifest else 1),
        indexed=completion_mode(spec, manifest) == INDEXED,
        # A success policy may be met although some pods have failed, so the default of Kubernetes is kept.
        backoff_limit=_first(job.get("backoffLimit"), 6 if job.get("successPolicy") else 0),
        has_default_backoff="backoffLimit" not in job,
        per_index_backoff="backoffLimitPerIndex" in job,
        min_count=spec.min_workers,
        user_gang_link=user_link if spec.roles is None else None,  # the provider links the pods of roles
        controller=_controller(manifest),
        kueue_queue=spec.queue_name or labels.get(LABEL_KUEUE_QUEUE),
        kueue_priority=spec.queue_priority or labels.get(LABEL_KUEUE_PRIORITY),
        scheduler_name=scheduler_name,
        topology=spec.topology,
        shared_claims=_shared_claims(job),
    )


def with_queue_of_connection(shape: Shape, spec: GangSpec, queue: str | None, priority: str | None) -> Shape:
    """Return the shape with the queue and the priority of the connection, if the spec names none.

    The spec and its hash stay, so another try adopts the gang, whatever the connection says by then. A Job that another
    component starts gets no queue.
    """
    defaults = {}
    if shape.kueue_queue is None and queue is not None and not spec.is_kept_suspended and shape.controller is None:
        defaults["queue_name"] = queue
    if shape.kueue_priority is None and priority is not None and (shape.kueue_queue or defaults):
        defaults["queue_priority"] = priority
    return replace(
        shape,
        kueue_queue=defaults.get("queue_name", shape.kueue_queue),
        kueue_priority=defaults.get("queue_priority", shape.kueue_priority),
        connection_defaults=tuple(defaults),
    )


def completion_mode(spec: GangSpec, manifest: Mapping[str, Any]) -> str:
    """Return the completionMode: by default Indexed if `workers` is given or the spec has no manifest."""
    default = NON_INDEXED if manifest and spec.workers is None else INDEXED
    return str(manifest.get("spec", {}).get("completionMode", default))


def rendezvous_of(spec: GangSpec, shape: Shape) -> Rendezvous | None:
    """Return the settings of the rendezvous. It is on by default if the Job is Indexed and has more than one rank."""
    if isinstance(spec.rendezvous, Rendezvous):
        return spec.rendezvous
    is_on = shape.size > 1 and shape.indexed if spec.rendezvous is None else spec.rendezvous
    return Rendezvous() if is_on else None


def _pod_spec(spec: GangSpec, job: Mapping[str, Any]) -> dict[str, Any]:
    in_manifest = job.get("template", {}).get("spec", {})
    return {**in_manifest, **((spec.pod_overrides or {}).get("spec") or {})}


def _user_gang_link(job: Mapping[str, Any], pod: Mapping[str, Any]) -> str | None:
    if "scheduling" in job and not _shared_claims(job):
        return "spec.scheduling"
    return "spec.template.spec.schedulingGroup" if pod.get("schedulingGroup") else None


def _shared_claims(job: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    scheduling = job.get("scheduling") or {}
    return tuple(scheduling["resourceClaims"] or ()) if set(scheduling) == {"resourceClaims"} else ()


def _scheduler_name(spec: GangSpec, job: Mapping[str, Any]) -> str | None:
    in_manifest = job.get("template", {}).get("spec", {}).get("schedulerName")
    in_overrides = ((spec.pod_overrides or {}).get("spec") or {}).get("schedulerName")
    return in_overrides or spec.scheduler_name or in_manifest


def _user_group_key(spec: GangSpec, job: Mapping[str, Any], scheduler_name: str | None) -> str | None:
    if scheduler_name in (None, DEFAULT_SCHEDULER):
        return None
    templates = (job.get("template", {}), spec.pod_overrides or {})
    given = {key for one in templates for kind in _METADATA for key in (one.get("metadata") or {}).get(kind) or ()}
    keys = sorted(given.union(spec.labels, spec.annotations) & LINK_KEYS)
    return f"spec.template.metadata[{keys[0]}]" if keys else None


_METADATA: Final = ("labels", "annotations")


def _controller(manifest: Mapping[str, Any]) -> str | None:
    owners = manifest.get("metadata", {}).get("ownerReferences", [])
    return next((f"{o.get('kind')}/{o.get('name')}" for o in owners if o.get("controller") is True), None)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


REPLACEMENT_TRAP: Final = (
    "the scheduler never places a replacement pod after another rank has finished (kubernetes#142330)"
)
ONE_POD: Final = "one pod"


class Placement(StrEnum):
    """How the pods are placed. The text of a decision starts with this word."""

    GANG = "gang"
    BASIC = "basic"
    """The pods cannot be a gang, and are placed one by one."""
    USER_PROVIDED = "brought"
    """The manifest has its own link to a group."""
    OFF = "off"
    """The user turned gang scheduling off."""
    REFUSED = "refused"
    """The submission fails before any object is created, so no record has this value."""


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
        """Read the text of a decision. An unknown text is read as `off`."""
        placement, _, detail = text.partition(":")
        known = placement in {kind.value for kind in Placement}
        return cls(Placement(placement), detail) if known else cls(Placement.OFF)


def describe_placement(decision: str) -> str:
    """Return how the pods are placed, in words. A decision of a later release is its own text.

    :param decision: The text of a decision, such as `gang:v1beta1` or `basic:one pod`.
    """
    kind, _, detail = decision.partition(":")
    if kind == Placement.GANG:
        detail = _SCHEDULERS.get(detail, f"Workload API {detail}")
    text = _PLACEMENTS.get(kind)
    return decision if text is None else text.format(detail).removesuffix(" ()")


_PLACEMENTS: Final[dict[str, str]] = {
    Placement.GANG: "gang scheduling by {}",
    Placement.BASIC: "plain pods without gang scheduling ({})",
    Placement.USER_PROVIDED: "scheduling as the manifest specifies",
    Placement.OFF: "plain pods without gang scheduling, as the parameter gang requests",
}
_SCHEDULERS: Final = {
    "native": "Job.spec.scheduling",
    "kueue": "the topology of its Kueue queue",
    "volcano": "Volcano",
    "coscheduling": "the coscheduling plugin",
    "yunikorn": "YuniKorn",
}
"""Text by the detail of the decision. Every other detail is a version of the Workload API."""


def ineligibility_reason(shape: Shape) -> str | None:
    """Return why the pods cannot be a gang on any cluster, whatever their number."""
    if not shape.indexed:
        return "completionMode is NonIndexed, and a gang needs pods that have an index"
    if shape.completions != shape.parallelism:
        sizes = f"completions ({shape.completions}) is not equal to parallelism ({shape.parallelism})"
        return f"{sizes}, and a gang runs all pods at once"
    if shape.backoff_limit > 0:
        default = " by default beside successPolicy" * shape.has_default_backoff
        return f"backoffLimit is {shape.backoff_limit}{default}, and {REPLACEMENT_TRAP}"
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


def limit_on_adoption(gang: StoredGang, limit: TimeLimit | None) -> tuple[int | None, str]:
    """Return activeDeadlineSeconds and its source for a gang that another try with this limit adopts."""
    before_s = gang.view.spec.active_deadline_seconds
    if not gang.claim.time_limit or before_s is None or gang.is_ended or gang.is_stopped:
        return before_s, gang.claim.time_limit
    if limit is None:
        return None, ""
    if not limit.is_of_try:
        return max(before_s, limit.seconds), limit.source
    # The limit counts from the start of the Job, which is younger than its limit. So the sum leaves the try its whole
    # time, whatever the clocks say.
    return limit.seconds if gang.never_ran else before_s + limit.seconds, limit.source


def _with_margin(seconds: float, source: str, *, is_of_try: bool = False) -> TimeLimit:
    return TimeLimit(math.ceil(min(seconds, DURATION_MAX_S)) + MARGIN_S, source, is_of_try)
