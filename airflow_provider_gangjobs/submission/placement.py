"""Placement in a cluster: the gang scheduler that the cluster has, its queue, and the pods' link to their group.

A server whose feature gate is disabled drops the link silently, and the pods would run without gang scheduling.

A queue is checked, and the Job is validated by a dry run if that is wanted, before anything is created. A check that
refuses leaves no object behind. Where a permission to read an object of Kueue is missing, the fact is
unknown, and nothing is refused because of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from airflow_provider_gangjobs.cluster.kueue import VERSIONS, served_versions
from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec, Problem, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import is_owned_by
from airflow_provider_gangjobs.gang.queues import (
    MULTIKUEUE,
    QueueFacts,
    admission_checks,
    held_reason,
    job_without_queue_error,
    name_parameter,
    parse_topology,
    queue_problems,
    topology_problem,
    unnamed_roles_error,
)
from airflow_provider_gangjobs.gang.render.job_manifest import group_of, render_job, render_role
from airflow_provider_gangjobs.gang.render.placement import (
    ONE_CLAIM,
    SHARED_CLAIMS,
    Placement,
    PlacementDecision,
    decide_placement,
    ineligibility_reason,
    is_single_pod,
)
from airflow_provider_gangjobs.gang.schedulers import (
    AUTO,
    DEFAULT_SCHEDULER,
    JOB_SCHEDULING,
    KUEUE,
    SCHEDULER_NAMES,
    Dialect,
    Guarantee,
    JobSchedulingDialect,
    KueueTopology,
    QueueTopologies,
    YuniKorn,
    flavor_names,
    owner_of,
    select_dialect,
    select_scheduler,
    topology_guarantee,
)
from airflow_provider_gangjobs.gang.spec import GangPolicy, GangSpec, roles_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import JOBS, KUEUE_GROUP, Resource, workloads
from airflow_provider_gangjobs.kube.views import ServedGroup
from airflow_provider_gangjobs.submission.step import CreateOwned, RepeatableStep, refused_fields_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from airflow_provider_gangjobs.cluster.served_resources import DiscoveredResources
    from airflow_provider_gangjobs.gang.render.placement import Shape
    from airflow_provider_gangjobs.gang.schedulers import GangScheduler
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.step import Progress


T = TypeVar("T")


class _Kueue(Struct, frozen=True):
    """Reads the objects of Kueue in one version of its API, each object once. Requests are not retried."""

    requests: RetryingRequests
    version: str

    async def local_queues(self) -> dict[str, Object]:
        """Return the LocalQueues of the namespace, by name."""
        found = await self.requests.list_once(Resource(KUEUE_GROUP, self.version, "localqueues", "LocalQueue"))
        return {str(queue["metadata"]["name"]): queue for queue in found}

    async def find(self, plural: str, kind: str, name: str) -> Object | None:
        """Return an object that has no namespace; `None` if the object does not exist."""
        return await self.requests.find_once(Resource(KUEUE_GROUP, self.version, plural, kind, namespaced=False), name)

    async def topologies(self, local_queue: Object) -> QueueTopologies:
        """Return the flavors of a queue and their Topologies.

        Raises:
            Forbidden: a permission is missing.
        """
        cluster_queue = local_queue["spec"]["clusterQueue"]
        stored = await self.find("clusterqueues", "ClusterQueue", cluster_queue)
        if stored is None:
            return QueueTopologies(missing=(f"ClusterQueue {cluster_queue}",))
        flavors: dict[str, str | None] = {}
        levels: dict[str, list[str]] = {}
        missing: list[str] = []
        for name in flavor_names(stored):
            flavor = await self.find("resourceflavors", "ResourceFlavor", name)
            if flavor is None:
                missing.append(f"ResourceFlavor {name}")
                continue
            topology = flavors[name] = flavor.get("spec", {}).get("topologyName")
            if topology is None or topology in levels:
                continue
            found = await self.find("topologies", "Topology", topology)
            if found is None:
                missing.append(f"Topology {topology} of flavor {name}")
                continue
            levels[topology] = [str(level["nodeLabel"]) for level in found.get("spec", {}).get("levels") or ()]
        return QueueTopologies(flavors, levels, missing)

    async def multikueue_check(self, local_queue: Object) -> str | None:
        """Return the AdmissionCheck of the queue that belongs to MultiKueue; None if there is none.

        Raises:
            Forbidden: a permission is missing.
        """
        cluster_queue = await self.find("clusterqueues", "ClusterQueue", local_queue["spec"]["clusterQueue"])
        for name in admission_checks(cluster_queue or {}):
            check = await self.find("admissionchecks", "AdmissionCheck", name) or {}
            if check.get("spec", {}).get("controllerName") == MULTIKUEUE:
                return name
        return None

    async def has_priority_class(self, name: str) -> bool:
        """Return whether this WorkloadPriorityClass exists.

        Raises:
            Forbidden: a permission is missing.
        """
        return await self.find("workloadpriorityclasses", "WorkloadPriorityClass", name) is not None


async def read_topology_guarantee(requests: RetryingRequests, queue: str) -> Guarantee:
    """Return whether Kueue keeps gangs together in this queue of the namespace.

    Raises:
        ClusterError: the cluster could not be reached.
    """
    for version in VERSIONS:
        try:
            return await requests.retry(partial(_topology_guarantee, _Kueue(requests, version), queue))
        except NotFound:
            continue
        except Forbidden as error:
            return Guarantee(None, f"it is unknown whether Kueue queue {queue} keeps gangs together: {error}")
    return Guarantee(False, "the cluster does not serve a known version of kueue.x-k8s.io")


async def _topology_guarantee(kueue: _Kueue, queue: str) -> Guarantee:
    local_queue = (await kueue.local_queues()).get(queue)
    if local_queue is None:
        return Guarantee(False, f"{queue} is no LocalQueue of namespace {kueue.requests.namespace}")
    return topology_guarantee(queue, await kueue.topologies(local_queue))


NOT_INSTALLED: Final = "is given, and the cluster does not serve kueue.x-k8s.io"
STEP: Final = "check the queue"


async def check_queue_in_cluster(progress: Progress) -> None:
    """Read the LocalQueues of the namespace, and the priority class if there is one.

    Raises:
        InvalidGangSpec: the queue, the priority class, or the level of the Topology does not exist.
        SubmissionFailed: the queue is held.
    """
    name, defaults = str(progress.shape.kueue_queue), progress.shape.connection_defaults
    has_priority = progress.spec.queue_priority is not None or "queue_priority" in defaults
    priority = progress.shape.kueue_priority if has_priority else None
    version, facts = await _read(progress, priority)
    if version is None:
        field = name_parameter("queue_name", defaults)
        raise InvalidGangSpec((Problem(field, NOT_INSTALLED, "Install Kueue, or remove queue_name"),))
    topology = parse_topology(progress.spec.topology) if progress.spec.topology else None
    level = topology[1] if topology else None
    if problems := queue_problems(name, priority, progress.attempt.namespace, facts, defaults, level=level):
        raise InvalidGangSpec(problems)
    if (held := held_reason(name, facts)) is not None:
        raise progress.failed(STEP, held, transient=True, advice="Run the task again when the queue is active")


def _names_queue(progress: Progress) -> bool:
    is_named = progress.spec.queue_name is not None or "queue_name" in progress.shape.connection_defaults
    return is_named and not progress.job


CHECK_QUEUE: Final = RepeatableStep(STEP, _names_queue, check_queue_in_cluster)


async def _read(progress: Progress, priority: str | None) -> tuple[str | None, QueueFacts]:
    """Return the version of Kueue's API, and what it shows. The version is None if no known version is served."""
    for version in VERSIONS:
        kueue = _Kueue(progress.requests, version)
        queues: dict[str, Object] | None
        try:
            queues = await kueue.local_queues()
        except NotFound:
            continue
        except Forbidden:
            queues = None
        has_priority = await _unless_forbidden(kueue.has_priority_class(priority)) if priority is not None else None
        queue = (queues or {}).get(str(progress.shape.kueue_queue))
        if queue is None:
            return version, QueueFacts(queues, has_priority)
        # An inactive queue may have this reason, so the check is read before the queue counts as held.
        check = await _unless_forbidden(kueue.multikueue_check(queue))
        topologies = await _unless_forbidden(kueue.topologies(queue)) if progress.spec.topology is not None else None
        return version, QueueFacts(queues, has_priority, check, topologies.all_levels if topologies else None)
    return None, QueueFacts()


async def _unless_forbidden(request: Awaitable[T]) -> T | None:
    """Return the answer, or None if a permission is missing: then the fact is unknown."""
    try:
        return await request
    except Forbidden:
        return None


async def check_job_without_queue(progress: Progress) -> None:
    """POST the main Job as a dry run that is not suspended, and look at what the webhook of Kueue has changed.

    The webhook adds the label of a LocalQueue `default`, and suspends a Job without a queue if Kueue is configured with
    `manageJobsWithoutQueueName`. No other request shows this configuration. Kueue would take the Jobs of a gang with
    roles one by one, or stop Jobs that the submission has started. Nothing is sent to a cluster that is known not to
    serve Kueue.

    Raises:
        InvalidGangSpec: the cluster suspends a Job that names no queue, and never starts the Job.
        GangUnsupported: the gang has roles, and the cluster manages Jobs that name no queue.
    """
    if await served_versions(progress.requests.client) == frozenset():
        return
    body = render_job(progress.spec, progress.attempt, progress.decision, progress.scheduler, progress.shape)
    body["spec"]["suspend"] = False
    try:
        stored = await progress.requests.create(JOBS, body, dry_run=True)
    except AlreadyExists:
        return  # created by a concurrent submitter, or a conflict: the next step shows which
    job, has_roles = read_job(stored), progress.spec.roles is not None
    error = unnamed_roles_error(job, has_job_set=progress.has_job_set) if has_roles else job_without_queue_error(job)
    if error is not None:
        raise error


def _has_unnamed_queue(progress: Progress) -> bool:
    """Return whether a Job of a new gang names no queue.

    The user starts a Job whose manifest has `suspend: true`, so the provider does not judge how the cluster manages it.
    """
    has_unnamed = progress.shape.kueue_queue is None and not progress.spec.is_kept_suspended
    return (has_unnamed or progress.spec.roles is not None) and not progress.job


CHECK_UNNAMED_QUEUE: Final = RepeatableStep(
    "find out whether the cluster manages Jobs without a queue", _has_unnamed_queue, check_job_without_queue
)


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
        InvalidGangSpec: whatever places the pods cannot place them by their `topology`, or with shared claims.
        SubmissionFailed: a gang is required, and it is unknown whether the cluster supports gangs.
    """
    found = _find_scheduler(spec, shape, discovered)
    if queue is not None:
        found = _with_queue(found, queue)
    name = found.scheduler.name if found.scheduler else None
    decision = decide_placement(shape, GangPolicy(spec.gang), scheduler=name, unserved=found.unserved)
    if decision.placement is not Placement.REFUSED:
        dialect = found.scheduler if decision.placement is Placement.GANG else None
        name = dialect.name if isinstance(dialect, Dialect) else None
        if shape.group_topology and (problem := topology_problem(shape.group_topology, name)) is not None:
            raise InvalidGangSpec((problem,))
        if shape.group_claims and name is None:
            what = "is given, and the Workload API does not place the pods"
            raise InvalidGangSpec((Problem(SHARED_CLAIMS, what, f'Give gang_scheduler="native", or {ONE_CLAIM}'),))
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
    named = (spec.gang_scheduler, discovered.gang_scheduler, shape.scheduler_name)
    return all(name in (None, AUTO, DEFAULT_SCHEDULER) for name in named)


def _with_queue(found: _Found, queue: Guarantee) -> _Found:
    if queue.kept:
        return _Found(KueueTopology())
    if found.scheduler is not None:
        return found
    reason = "; ".join(filter(None, (found.unserved, queue.reason)))
    advice = queue.advice or (_ADVICE_QUEUE if queue.kept is None else found.advice)
    return replace(found, unserved=reason, advice=advice)


class _Found(Struct, frozen=True):
    """The gang scheduler that can place a gang in this cluster, or why there is none."""

    scheduler: GangScheduler | None
    unserved: str = ""
    is_unknown: bool = False
    """The cluster may have the scheduler: a request of discovery failed."""
    advice: str = ""


_ADVICE: Final = (
    "On any release of Kubernetes, use Volcano, the coscheduling plugin or YuniKorn (gang_scheduler), or a queue of "
    "Kueue whose flavors have a Topology (queue_name). Kubernetes 1.36 and later needs no other scheduler if the "
    "feature gate GenericWorkload is on (in 1.36 also GangScheduling) and if scheduling.k8s.io is served in "
    "an alpha or beta version. "
    'Or set gang="preferred" to run without the guarantee'
)
_ADVICE_QUEUE: Final = "Give the service account the ClusterRole of `gangjobs rbac --kueue`"
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
    named = spec.gang_scheduler or owner_of(shape.scheduler_name) or default
    if named == KUEUE:
        return _Found(None, "" if shape.kueue_queue else "the gang has no queue of Kueue", advice=_ADVICE_KUEUE)
    scheduler = select_scheduler(spec.gang_scheduler, shape.scheduler_name, default)
    if scheduler is None:
        if spec.roles is not None and named == JOB_SCHEDULING:
            return _Found(None, "with job-scheduling each Job of a role makes a group of its own", advice=_ROLES)
        return _find_dialect(spec.gang_scheduler or default, discovered)
    if spec.roles is not None and isinstance(scheduler, YuniKorn):
        return _Found(None, "a task group of yunikorn has pods of one kind only, and the gang has roles", advice=_ROLES)
    guarantee = scheduler.guarantee(discovered.groups.get(scheduler.api_group or "", ServedGroup()))
    if guarantee.kept:
        return _Found(scheduler)
    reason = f"{scheduler.name} cannot be used: {guarantee.reason}"
    return _Found(None, reason, is_unknown=guarantee.kept is None, advice=_ADVICE_SEPARATE)


def _find_dialect(gang_scheduler: str | None, discovered: DiscoveredResources) -> _Found:
    dialect = select_dialect(discovered.resources, gang_scheduler, proven=discovered.proven_versions)
    if dialect is not None:
        return _Found(dialect)
    return _Found(None, _unserved(gang_scheduler, discovered), is_unknown=bool(discovered.unknown), advice=_ADVICE)


def _unserved(gang_scheduler: str | None, discovered: DiscoveredResources) -> str:
    if discovered.unknown:
        evidence = "; ".join(f"{what}: {why}" for what, why in discovered.unknown.items())
        return f"the provider could not read whether the cluster serves the Workload API ({evidence})"
    if discovered.refused_versions:
        refusals = "; ".join(f"{version}: {why}" for version, why in discovered.refused_versions.items())
        return f"the cluster serves the Workload API only in versions that cannot be used ({refusals})"
    wanted = "Job.spec.scheduling" if gang_scheduler == JOB_SCHEDULING else "the Workload API"
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
        for workload in await requests.list(workloads(JobSchedulingDialect().version)):
            if is_owned_by(workload["metadata"], progress.ref.uid):
                return
        await requests.clock.sleep(CONTROLLER_PAUSE_S)
    reason = f"the Job controller made no Workload in {CONTROLLER_TIMEOUT_S:g} s: its gate WorkloadWithJob is off"
    if progress.spec.gang == GangPolicy.REQUIRED:
        raise GangUnsupported(reason, 'Give gang_scheduler="native": then the provider makes the objects itself')
    progress.fall_back(reason)


WAIT_FOR_WORKLOAD: Final = RepeatableStep(
    "wait for the Job controller's Workload",
    lambda progress: isinstance(progress.gang_scheduler, JobSchedulingDialect),
    wait_for_workload,
)


def group_steps(scheduler: GangScheduler) -> tuple[CreateOwned, ...]:
    """Return the steps that create the objects of a scheduling group, in order."""
    return tuple(_group_step(scheduler, resource) for resource in scheduler.objects)


def _group_step(scheduler: GangScheduler, resource: Resource) -> CreateOwned:
    """Return the step that creates the Workload or the PodGroup. The PodGroup refers to the uid of the Workload."""

    def body(progress: Progress) -> Object | None:
        if progress.gang_scheduler is None:
            return None
        if resource.kind == "Workload":
            return scheduler.workload(progress.group, progress.ref.uid)
        workload = progress.owned.get(("Workload", progress.group.name))
        return scheduler.pod_group(progress.group, progress.ref.uid, workload["metadata"]["uid"] if workload else "")

    return CreateOwned(resource, body)


async def validate_by_dry_run(progress: Progress) -> None:
    """POST the Job as a dry run. The server validates the Job, checks quota and permissions, and stores nothing.

    Raises:
        InvalidGangSpec: the server refuses the Job. Each cause in the answer becomes a problem.
        GangUnsupported: the server would drop the pods' link to their group, and a gang is required.
    """
    body = render_job(progress.spec, progress.attempt, progress.decision, progress.scheduler, progress.shape)
    stored = await _dry_run(progress, body, progress.spec)
    if stored is None:
        return
    check_gang_link(progress, stored)
    for role in roles_of(progress.spec)[1:]:
        scheduler = progress.gang_scheduler
        body = render_role(progress.spec, role, progress.attempt, progress.decision, scheduler, main_job_uid="")
        del body["metadata"]["ownerReferences"]  # the owner does not exist yet
        of_role = replace(progress.spec, roles={role.name: (progress.spec.roles or {})[role.name]})
        await _dry_run(progress, body, of_role, role.name)


async def _dry_run(progress: Progress, job: Object, spec: GangSpec, role: str = "") -> Object | None:
    """Return the Job that the server would store; None if a Job of this name exists.

    :param spec: The part of the parameters from which the Job was made.
    :param role: The name of the role, unless it is the first one.
    """
    try:
        return await progress.requests.create(JOBS, job, dry_run=True)
    except AlreadyExists:
        return None  # created by a concurrent submitter, or a conflict: the next step shows which
    except (Invalid, BadRequest) as error:
        unnamed = Problem("Job", error.message, "Correct the fields that the server names")
        problems = refused_fields_of(error, spec) or (unnamed,)
        raise InvalidGangSpec(tuple(_with_role(each, role) if role else each for each in problems)) from error


def _with_role(problem: Problem, role: str) -> Problem:
    """Return the problem with the role in its path, which a field that the user did not write lacks."""
    if problem.path.startswith((f"roles.{role}", "pod_overrides", "manifest")):
        return problem
    return Problem(f"roles.{role}: {problem.path}", problem.what, problem.remedy)


DRY_RUN: Final = RepeatableStep(
    "validate the Job by a dry run", lambda progress: progress.dry_run and not progress.job, validate_by_dry_run
)
