"""The queue of a gang: what its ClusterQueue guarantees, and the checks of the queue before anything is created.

Where a permission to read an object of Kueue is missing, the fact is unknown, and nothing is refused because of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import AlreadyExists, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.kueue import VERSIONS, served_versions
from airflow_provider_gangjobs.cluster.resources import JOBS, KUEUE_GROUP, Resource
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.queues import (
    MULTIKUEUE,
    QueueFacts,
    admission_checks,
    held_reason,
    job_without_queue_error,
    name_parameter,
    parse_topology,
    queue_problems,
    unnamed_roles_error,
)
from airflow_provider_gangjobs.gang.render.job_manifest import render_job
from airflow_provider_gangjobs.gang.schedulers.base import Guarantee
from airflow_provider_gangjobs.gang.schedulers.kueue_topology import (
    QueueTopologies,
    flavor_names,
    topology_guarantee,
)
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.submission.steps.step import RepeatableStep

if TYPE_CHECKING:
    from airflow_provider_gangjobs.jobs.requests import RetryingRequests
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.steps.step import Progress


async def read_topology_guarantee(requests: RetryingRequests, queue: str) -> Guarantee:
    """Return whether Kueue keeps gangs together in this queue of the namespace.

    Raises:
        ClusterError: the cluster could not be reached.
    """
    for version in VERSIONS:
        try:
            return await requests.retry(partial(_read_object, requests, version, queue))
        except NotFound:
            continue
        except Forbidden as error:
            return Guarantee(None, f"it is unknown whether Kueue queue {queue} keeps gangs together: {error}")
    return Guarantee(False, "the cluster does not serve a known version of kueue.x-k8s.io")


async def _read_object(requests: RetryingRequests, version: str, queue: str) -> Guarantee:
    found = await requests.list_once(Resource(KUEUE_GROUP, version, "localqueues", "LocalQueue"))
    local = next((item for item in found if item["metadata"]["name"] == queue), None)
    if local is None:
        return Guarantee(False, f"{queue} is no LocalQueue of namespace {requests.namespace}")
    return topology_guarantee(queue, await read_topologies(requests, version, local["spec"]["clusterQueue"]))


async def read_topologies(requests: RetryingRequests, version: str, cluster_queue: str) -> QueueTopologies:
    """Return the flavors of a ClusterQueue and their Topologies. Not retried.

    Raises:
        Forbidden: a permission is missing.
    """
    find = partial(find_cluster_object, requests, version)
    stored = await find("clusterqueues", "ClusterQueue", cluster_queue)
    if stored is None:
        return QueueTopologies(missing=(f"ClusterQueue {cluster_queue}",))
    flavors: dict[str, str | None] = {}
    levels: dict[str, list[str]] = {}
    missing: list[str] = []
    for name in flavor_names(stored):
        flavor = await find("resourceflavors", "ResourceFlavor", name)
        if flavor is None:
            missing.append(f"ResourceFlavor {name}")
            continue
        topology = flavors[name] = flavor.get("spec", {}).get("topologyName")
        if topology is None or topology in levels:
            continue
        found = await find("topologies", "Topology", topology)
        if found is None:
            missing.append(f"Topology {topology} of flavor {name}")
            continue
        levels[topology] = [str(level["nodeLabel"]) for level in found.get("spec", {}).get("levels") or ()]
    return QueueTopologies(flavors, levels, missing)


async def find_cluster_object(
    requests: RetryingRequests, version: str, plural: str, kind: str, name: str
) -> Object | None:
    """Return an object of Kueue that has no namespace; `None` if the object does not exist. Not retried."""
    return await requests.find_once(Resource(KUEUE_GROUP, version, plural, kind, namespaced=False), name)


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
    requests = progress.requests
    for version in VERSIONS:
        try:
            found = await requests.list_once(Resource(KUEUE_GROUP, version, "localqueues", "LocalQueue"))
        except NotFound:
            continue
        except Forbidden:
            return version, QueueFacts(has_priority=await _has_priority(progress, version, priority))
        queues = {str(queue["metadata"]["name"]): queue for queue in found}
        has_priority = await _has_priority(progress, version, priority)
        queue = queues.get(str(progress.shape.kueue_queue))
        if queue is None:
            return version, QueueFacts(queues, has_priority)
        check = await _multikueue_check(progress, version, queue)
        return version, QueueFacts(queues, has_priority, check, await _topology_levels(progress, version, queue))
    return None, QueueFacts()


async def _multikueue_check(progress: Progress, version: str, local_queue: Object) -> str | None:
    """Return the AdmissionCheck of the queue that belongs to MultiKueue; None if there is none or this is unknown.

    An inactive queue may have this reason, so the check is read before the queue counts as held.
    """
    find = partial(find_cluster_object, progress.requests, version)
    try:
        cluster_queue = await find("clusterqueues", "ClusterQueue", local_queue["spec"]["clusterQueue"])
        for name in admission_checks(cluster_queue or {}):
            check = await find("admissionchecks", "AdmissionCheck", name) or {}
            if check.get("spec", {}).get("controllerName") == MULTIKUEUE:
                return name
    except Forbidden:
        pass
    return None


async def _topology_levels(progress: Progress, version: str, local_queue: Object) -> tuple[str, ...] | None:
    """Return the levels of the Topologies of the queue, if the gang names a level; None if they are unknown."""
    if progress.spec.topology is None:
        return None
    try:
        return (await read_topologies(progress.requests, version, local_queue["spec"]["clusterQueue"])).all_levels
    except Forbidden:
        return None


async def _has_priority(progress: Progress, version: str, priority: str | None) -> bool | None:
    if priority is None:
        return None
    classes = Resource(KUEUE_GROUP, version, "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)
    try:
        return await progress.requests.find(classes, priority) is not None
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
    if await progress.requests.send(partial(served_versions, retry_for_s=0.0)) == frozenset():
        return
    body = render_job(progress.spec, progress.attempt, progress.decision, progress.scheduler, progress.shape)
    body["spec"]["suspend"] = False
    try:
        stored = await progress.requests.dry_run_create(JOBS, body)
    except AlreadyExists:
        return  # created by a concurrent submitter, or a conflict: the next step shows which
    job, has_roles = read_job(stored), progress.spec.roles is not None
    error = unnamed_roles_error(job, has_job_set=progress.has_job_set) if has_roles else job_without_queue_error(job)
    if error is not None:
        raise error


def _has_unnamed_queue(progress: Progress) -> bool:
    """Return whether a Job of a new gang names no queue.

    The user starts a Job with `keep_suspended`, so the provider does not judge how the cluster manages this Job.
    """
    has_unnamed = progress.shape.kueue_queue is None and not progress.spec.keep_suspended
    return (has_unnamed or progress.spec.roles is not None) and not progress.job


CHECK_UNNAMED_QUEUE: Final = RepeatableStep(
    "find out whether the cluster manages Jobs without a queue", _has_unnamed_queue, check_job_without_queue
)
