"""Placement in a cluster: the gang scheduler that the cluster has, and the pods' link to their group in the stored Job.

A server whose feature gate is disabled drops the link silently, and the pods would run without gang scheduling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider_gangjobs.cluster.resources import Resource, workloads
from airflow_provider_gangjobs.exceptions import GangUnsupported, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import is_owned_by
from airflow_provider_gangjobs.gang.render.job_manifest import group_of
from airflow_provider_gangjobs.gang.render.shape_and_placement import (
    Placement,
    PlacementDecision,
    decide_placement,
    ineligibility_reason,
    is_single_pod,
)
from airflow_provider_gangjobs.gang.schedulers.base import DEFAULT_SCHEDULER, ServedGroup
from airflow_provider_gangjobs.gang.schedulers.kueue_topology import KUEUE, KueueTopology
from airflow_provider_gangjobs.gang.schedulers.native import NativeDialect, select_dialect
from airflow_provider_gangjobs.gang.schedulers.selection import AUTO, SCHEDULER_NAMES, YuniKorn, select_scheduler
from airflow_provider_gangjobs.gang.spec import GangPolicy, GangSpec
from airflow_provider_gangjobs.submission.steps.job import CreateOwned
from airflow_provider_gangjobs.submission.steps.step import RepeatableStep

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources
    from airflow_provider_gangjobs.gang.render.shape_and_placement import Shape
    from airflow_provider_gangjobs.gang.schedulers.base import ApiKind, GangScheduler, Guarantee
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.steps.step import Progress

CONTROLLER_TIMEOUT_S: Final = 15.0
"""The Job controller creates its objects within a second, or never if its feature gate is disabled."""
CONTROLLER_PAUSE_S: Final = 0.25


def select_placement(
    spec: GangSpec,
    shape: Shape,
    discovered: DiscoveredResources,
    *,
    where: str,
    queue: Guarantee | None = None,
) -> tuple[PlacementDecision, GangScheduler | None]:
    """Return how to place the pods on this cluster, and the gang scheduler if the pods are placed as a gang.

    :param where: The namespace and name of the gang, for errors.
    :param queue: Whether Kueue keeps the gang together; `None` if that does not matter, see `depends_on_queue`.

    Raises:
        GangUnsupported: a gang is required, and this cluster or this shape does not support it.
        SubmissionFailed: a gang is required, and it is unknown whether the cluster supports gangs.
    """
    found = _find_scheduler(spec, shape, discovered)
    if queue is not None:
        found = _with_queue(found, queue)
    name = found.scheduler.name if found.scheduler else None
    decision = decide_placement(shape, GangPolicy(spec.gang), scheduler=name, unserved=found.unserved)
    if decision.placement is not Placement.REFUSED:
        return decision, found.scheduler
    if found.is_unknown:
        raise SubmissionFailed(where, "discover what the cluster serves", decision.detail)
    raise GangUnsupported(decision.detail, found.advice)


def depends_on_queue(spec: GangSpec, shape: Shape, discovered: DiscoveredResources) -> bool:
    """Return whether the queue of the gang decides how its pods are placed.

    The queue decides if nothing else places the pods, and if nobody has named what places them. In the second case the
    Workload API places them unless the queue keeps gangs together.
    """
    is_placed = shape.user_gang_link is None and not is_single_pod(shape) and ineligibility_reason(shape) is None
    if spec.gang == GangPolicy.OFF or shape.kueue_queue is None or not is_placed:
        return False
    return _is_automatic(spec, shape, discovered) or _find_scheduler(spec, shape, discovered).scheduler is None


def _is_automatic(spec: GangSpec, shape: Shape, discovered: DiscoveredResources) -> bool:
    """Return whether neither the gang nor the connection names what places the pods."""
    named = (spec.gang_scheduler, spec.dialect, discovered.gang_scheduler, shape.scheduler_name)
    return all(name in (None, AUTO, DEFAULT_SCHEDULER) for name in named)


def _with_queue(found: _Found, queue: Guarantee) -> _Found:
    if queue.kept:
        return _Found(KueueTopology())
    if found.scheduler is not None:
        return found
    reason = "; ".join(filter(None, (found.unserved, queue.reason)))
    advice = queue.advice or (_ADVICE_QUEUE if queue.kept is None else found.advice)
    return found._replace(unserved=reason, advice=advice)


class _Found(NamedTuple):
    """The gang scheduler that can place a gang in this cluster, or why there is none."""

    scheduler: GangScheduler | None
    unserved: str = ""
    is_unknown: bool = False
    """The cluster may have the scheduler: a request of discovery failed."""
    advice: str = ""


_ADVICE: Final = (
    "On any release of Kubernetes, use Volcano, the coscheduling plugin or YuniKorn (gang_scheduler), or a queue of "
    "Kueue whose flavors have a Topology (queue_name). Kubernetes 1.35 and later needs no other scheduler if the "
    "feature gate GenericWorkload is on (in 1.35 and 1.36 also GangScheduling) and if scheduling.k8s.io is served in "
    "an alpha or beta version. "
    'Or set gang="preferred" to run without the guarantee'
)
_ADVICE_QUEUE: Final = "Give the service account the ClusterRole of docs/rbac-kueue.yaml"
_ADVICE_KUEUE: Final = (
    "Name a queue whose flavors have a Topology that ends with kubernetes.io/hostname, or another gang_scheduler"
)
_ROLES: Final = "Choose native, volcano or coscheduling as the gang_scheduler"
_ADVICE_SEPARATE: Final = "Install this scheduler with its CRDs, or choose another gang_scheduler"


def _find_scheduler(spec: GangSpec, shape: Shape, discovered: DiscoveredResources) -> _Found:
    default = discovered.gang_scheduler
    if spec.roles is not None and shape.kueue_queue is not None:
        return _Found(
            None, "the roles of a gang in a queue are one JobSet, which only Kueue places", advice=_ADVICE_KUEUE
        )
    if default not in (None, AUTO, *SCHEDULER_NAMES):
        known = ", ".join((AUTO, *SCHEDULER_NAMES))
        return _Found(None, f"the connection names the gang_scheduler {default!r}", advice=f"Choose one of {known}")
    if KUEUE in (spec.gang_scheduler, None if spec.gang_scheduler else default):
        return _Found(None, "" if shape.kueue_queue else "the gang has no queue of Kueue", advice=_ADVICE_KUEUE)
    scheduler = select_scheduler(spec.gang_scheduler, shape.scheduler_name, default)
    if scheduler is None:
        return _find_dialect(spec, discovered)
    if spec.roles is not None and isinstance(scheduler, YuniKorn):
        return _Found(None, "a task group of yunikorn has pods of one kind only, and the gang has roles", advice=_ROLES)
    group = scheduler.api_group or ""
    guarantee = scheduler.guarantee(ServedGroup(discovered.groups.get(group, {}), discovered.unknown.get(group, "")))
    if guarantee.kept:
        return _Found(scheduler)
    reason = f"{scheduler.name} cannot be used: {guarantee.reason}"
    return _Found(None, reason, is_unknown=guarantee.kept is None, advice=_ADVICE_SEPARATE)


def _find_dialect(spec: GangSpec, discovered: DiscoveredResources) -> _Found:
    dialect = select_dialect(discovered.resources, spec.dialect, proven=discovered.proven_versions)
    if dialect is not None:
        return _Found(dialect)
    return _Found(None, _unserved(spec, discovered), is_unknown=bool(discovered.unknown), advice=_ADVICE)


def _unserved(spec: GangSpec, discovered: DiscoveredResources) -> str:
    if discovered.unknown:
        evidence = "; ".join(f"{what}: {why}" for what, why in discovered.unknown.items())
        return f"the provider could not read whether the cluster serves the Workload API ({evidence})"
    if discovered.refused_versions:
        refusals = "; ".join(f"{version}: {why}" for version, why in discovered.refused_versions.items())
        return f"the cluster serves the Workload API only in versions that cannot be used ({refusals})"
    wanted = f"dialect {spec.dialect}" if spec.dialect else "the Workload API"
    missing = f"Kubernetes {discovered.release or '(release unknown)'} does not serve {wanted}"
    served = ", ".join(discovered.scheduling_versions)
    return f"{missing}, only {served}" if served else missing


def check_gang_link(progress: Progress, stored: Object) -> None:
    """Check the link in a Job that the server stored, or would store. Without the link, fall back if that is allowed.

    Raises:
        GangUnsupported: the server dropped the link, and a gang is required.
    """
    lost = _lost_link(progress, stored)
    if lost is None:
        return
    reason = f"the server dropped {lost} from the Job, so its feature gate is off"
    if progress.spec.gang == GangPolicy.REQUIRED:
        raise GangUnsupported(reason)
    progress.fall_back(reason)


def _lost_link(progress: Progress, stored: Object) -> str | None:
    scheduler = progress.gang_scheduler
    if scheduler is not None:
        return None if scheduler.has_link(stored, group_of(stored, progress.shape)) else scheduler.link_path
    value: Any = stored
    path = progress.shape.user_gang_link or ""
    if not path or "[" in path:  # no server drops a label or an annotation
        return None
    for part in path.split("."):
        value = value.get(part) or {}
    return None if value else path


async def _check_stored_link(progress: Progress) -> None:
    check_gang_link(progress, progress.job)


CHECK_GANG_LINK: Final = RepeatableStep(
    "check the gang link",
    lambda progress: progress.gang_scheduler is not None or progress.shape.user_gang_link is not None,
    _check_stored_link,
)


async def wait_for_workload(progress: Progress) -> None:
    """Wait until a Workload that the Job owns exists. No request shows whether the Job controller will create it.

    Raises:
        GangUnsupported: no such Workload exists in time, and a gang is required.
    """
    requests = progress.requests
    deadline = requests.clock.monotonic() + CONTROLLER_TIMEOUT_S
    while requests.clock.monotonic() < deadline:
        for workload in await requests.list(workloads(NativeDialect().version)):
            if is_owned_by(workload["metadata"], progress.ref.uid):
                return
        await requests.clock.sleep(CONTROLLER_PAUSE_S)
    reason = f"the Job controller made no Workload in {CONTROLLER_TIMEOUT_S:g} s: its gate WorkloadWithJob is off"
    if progress.spec.gang == GangPolicy.REQUIRED:
        raise GangUnsupported(reason, "Leave dialect out: then the provider makes the objects itself")
    progress.fall_back(reason)


WAIT_FOR_WORKLOAD: Final = RepeatableStep(
    "wait for the Job controller's Workload",
    lambda progress: isinstance(progress.gang_scheduler, NativeDialect),
    wait_for_workload,
)


def group_steps(scheduler: GangScheduler) -> tuple[CreateOwned, ...]:
    """Return the steps that create the objects of a scheduling group, in order."""
    return tuple(_group_step(scheduler, kind) for kind in scheduler.objects)


def _group_step(scheduler: GangScheduler, kind: ApiKind) -> CreateOwned:
    """Return the step that creates the Workload or the PodGroup. The PodGroup refers to the uid of the Workload."""

    def body(progress: Progress) -> Object | None:
        if progress.gang_scheduler is None:
            return None
        if kind.kind == "Workload":
            return scheduler.workload(progress.group, progress.ref.uid)
        return scheduler.pod_group(progress.group, progress.ref.uid, progress.workload_uid)

    def on_created(progress: Progress, stored: Object) -> None:
        if kind.kind == "Workload":
            progress.workload_uid = stored["metadata"]["uid"]

    return CreateOwned(Resource(*kind), body, on_created)
