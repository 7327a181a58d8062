"""Discovery before a submission: the capabilities of a cluster, and what it serves of the scheduler of one gang.

An API server that serves the Workload API may still drop the pods' link to their group from a Job: the server drops
the fields of a disabled feature gate silently. A dry run of a Job shows whether the server keeps the link. No request
shows whether the scheduler and the Job controller have their feature gates enabled. Only the placement of a gang does.

A gang needs no request beyond the one of `cluster.served_resources`, unless the cluster serves the Workload API only in
versions that are newer than the provider. Such a version is expected to have the fields of the
newest known one. A server drops fields that it does not know, so dry runs of a Job, a Workload and a PodGroup show
whether the version keeps the link of the pods and the policy of the group.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import BadRequest, ClusterError, Forbidden, Invalid
from airflow_provider_gangjobs.cluster.loop_local import EXPIRY_S, UNKNOWN_EXPIRY_S, Answer, cached_read
from airflow_provider_gangjobs.cluster.served_resources import (
    DiscoveredResources,
    discover,
    read_api_group,
    with_release,
)
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.render.placement import ONE_CLAIM, SHARED_CLAIMS, shape_of
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.schedulers import (
    DISCOVERED_DIALECTS,
    Dialect,
    JobSchedulingDialect,
    PodGroupDialect,
    SchedulingGroup,
    newer_dialects,
    select_dialect,
    select_scheduler,
)
from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.kube.resources import JOBS, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.spec import GangSpec


PROBE: Final = "gangjobs-probe"
"""Name of the Job, and of the objects of its group."""
PROBE_SIZE: Final = 2
"""Number of its ranks."""


def probe_job(namespace: str) -> dict[str, Any]:
    """Return an Indexed Job whose pods can be a gang."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": PROBE}]}
    spec = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": PROBE_SIZE,
        "parallelism": PROBE_SIZE,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    metadata = {"name": PROBE, "namespace": namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


API_SERVER: Final = "kube-apiserver"


class Gate(Struct, frozen=True):
    """A feature gate in one component of the control plane."""

    name: str
    component: str
    is_on: bool | None
    """None if no request can show the state of the gate."""
    evidence: str


class Capabilities(Struct, frozen=True):
    """What is known about a cluster, with the evidence."""

    discovered: DiscoveredResources
    dialects: tuple[str, ...]
    """The dialects in which gangs can be submitted to this cluster, in order of preference."""
    fields: Mapping[str, bool | None] = {}
    """For each path of a Job's field, whether a dry run keeps the field. None if this is unknown."""
    gates: tuple[Gate, ...] = ()

    @property
    def release(self) -> str | None:
        """The release, such as "1.37". None if it is unknown."""
        return self.discovered.release

    @property
    def git_version(self) -> str | None:
        """The version of the server, such as "v1.37.0". None if it is unknown."""
        return self.discovered.git_version

    @property
    def scheduling_versions(self) -> tuple[str, ...]:
        """The versions of scheduling.k8s.io that serve Workloads, the server's preferred one first."""
        return self.discovered.scheduling_versions

    @property
    def unknown(self) -> Mapping[str, str]:
        """What discovery could not read, and why."""
        return self.discovered.unknown

    @property
    def holds_gangs(self) -> bool | None:
        """Whether the API server can store a gang. None if this is unknown."""
        if not self.dialects:
            return None if self.unknown else False
        return next(gate.is_on for gate in self.gates if gate.component == API_SERVER)


async def read_capabilities(client: Client, *, namespace: str) -> Capabilities:
    """Read the capabilities: discovery, and at most two dry runs. The result is cached for as long as discovery is.

    Raises:
        ClusterError: the cluster could not be reached.
    """

    async def read() -> Answer[Capabilities]:
        found = await _read_capabilities(client, namespace)
        is_whole = not found.unknown and None not in found.fields.values()
        return Answer(found, EXPIRY_S if is_whole else UNKNOWN_EXPIRY_S)

    return await cached_read(client, (Capabilities, namespace), read)


async def _read_capabilities(client: Client, namespace: str) -> Capabilities:
    known = await with_release(client, await discover(client))
    offered = tuple(dialect for dialect in DISCOVERED_DIALECTS if dialect.is_served(known.resources))
    of_jobs = JobSchedulingDialect()
    tried = (*offered[:1], of_jobs)
    links = {dialect.link_path: await _keeps_link(client, namespace, dialect) for dialect in tried}
    keeps_scheduling, _ = links[of_jobs.link_path]
    dialects = tuple(dialect.name for dialect in (*offered, *([of_jobs] if keeps_scheduling else [])))
    fields = {path: is_kept for path, (is_kept, _) in links.items()}
    return Capabilities(known, dialects, fields, _gates(offered, links))


async def _keeps_link(client: Client, namespace: str, dialect: Dialect) -> tuple[bool | None, str]:
    """Return whether the server would store a Job with the field of this dialect, and the evidence."""
    try:
        return await _find_link(client, namespace, dialect)
    except ClusterError as error:
        return None, f"a dry run failed: {error}"


async def _find_link(client: Client, namespace: str, dialect: Dialect) -> tuple[bool, str]:
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE)
    job = dialect.with_link(probe_job(namespace), group)
    try:
        stored = await client.create(JOBS, job, namespace, dry_run=True)
    except (BadRequest, Invalid) as error:
        return False, f"the server refuses a dry run: {error.message}"
    if dialect.has_link(stored, group):
        return True, f"a dry run keeps {dialect.link_path}"
    return False, f"a dry run drops {dialect.link_path}"


_UNKNOWN_UNTIL_PLACED: Final = "no request shows this; it shows when a gang is placed"


def _gates(offered: tuple[Dialect, ...], links: Mapping[str, tuple[bool | None, str]]) -> tuple[Gate, ...]:
    """Return the gates, by whether a dry run keeps each link, and the evidence."""
    unserved = (False, "no version of scheduling.k8s.io serves Workloads")
    in_jobs_only = "no request shows this; the provider does not need the gate"
    merged = f"merged into GenericWorkload in 1.37; {_UNKNOWN_UNTIL_PLACED}"
    return (
        Gate("GenericWorkload", API_SERVER, *(links[offered[0].link_path] if offered else unserved)),
        Gate("WorkloadWithJob", API_SERVER, *links[JobSchedulingDialect().link_path]),
        Gate("WorkloadWithJob", "kube-controller-manager", None, in_jobs_only),
        Gate("GenericWorkload", "kube-scheduler", None, _UNKNOWN_UNTIL_PLACED),
        Gate("GangScheduling", "kube-scheduler", None, merged),
    )


log = logging.getLogger(__name__)

_REFERENCE: Final = "workloadRef"
"""The field by which a PodGroup refers to its Workload."""


async def why_unusable(client: Client, dialect: Dialect, namespace: str) -> str:
    """Return why a version of the Workload API cannot be used; empty if dry runs keep the link and the group.

    :param namespace: The namespace of the dry runs, in which the provider may create Jobs.

    Raises:
        ClusterError: this is unknown.
    """

    async def read() -> Answer[str]:
        reason = await _dry_run(client, dialect, namespace)
        result = f"It is not used: {reason}" if reason else "It is used, because dry runs keep the link and the group"
        log.info("scheduling.k8s.io/%s is newer than this release of the provider. %s", dialect.version, result)
        return Answer(reason, EXPIRY_S)

    return await cached_read(client, (why_unusable, dialect.version), read)


TOPOLOGY_GATE: Final = "TopologyAwareWorkloadScheduling"


async def require_topology(client: Client, dialect: Dialect, namespace: str) -> None:
    """Return if the API server keeps the topology of a group. The scheduler needs the feature gate, too.

    :param namespace: The namespace of the dry run, in which the provider may create Workloads.

    Raises:
        InvalidGangSpec: the server drops the topology.
        ClusterError: this is unknown.
    """
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE, topology="kubernetes.io/hostname")
    if not await _keeps_group(client, dialect, group, TOPOLOGY_GATE):
        problem = f"is given without queue_name, and the API server drops it: its gate {TOPOLOGY_GATE} is off"
        raise InvalidGangSpec((Problem("topology", problem, "Switch the gate on, give queue_name, or use affinity"),))


CLAIMS_GATE: Final = "DRAWorkloadResourceClaims"


async def require_claims(client: Client, dialect: Dialect, namespace: str) -> None:
    """Return if the API server keeps the claims of a group. Scheduler and controllers need the feature gate, too.

    :param namespace: The namespace of the dry run, in which the provider may create Workloads.

    Raises:
        InvalidGangSpec: the server drops the claims, so that each pod would get devices of its own.
        ClusterError: this is unknown.
    """
    claims = ({"name": PROBE, "resourceClaimName": PROBE},)
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE, resource_claims=claims)
    if not await _keeps_group(client, dialect, group, CLAIMS_GATE):
        problem = f"is given, and the API server drops it: its gate {CLAIMS_GATE} is off"
        raise InvalidGangSpec((Problem(SHARED_CLAIMS, problem, f"Switch the gate on, or {ONE_CLAIM}"),))


async def _keeps_group(client: Client, dialect: Dialect, group: SchedulingGroup, gate: str) -> bool:
    """Return whether the API server keeps a template of this group, whose fields need the gate."""
    in_objects = PodGroupDialect(dialect.version) if isinstance(dialect, JobSchedulingDialect) else dialect

    async def read() -> Answer[bool]:
        resource, workload = in_objects.objects[0], in_objects.workload(group, "") or {}
        template = workload["spec"]["podGroupTemplates"][0]
        template.pop("disruptionMode")  # which has a gate of its own
        return Answer(await _keeps_spec(client, resource, workload, group.namespace), EXPIRY_S)

    return await cached_read(client, (_keeps_group, in_objects.version, gate), read)


async def _dry_run(client: Client, dialect: Dialect, namespace: str) -> str:
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE)
    workload, pod_group = dialect.workload(group, ""), dialect.pod_group(group, "", "")
    try:
        is_kept, evidence = await _find_link(client, namespace, dialect)
        if not is_kept:
            return evidence
        for resource, rendered in zip(dialect.objects, (workload, pod_group), strict=True):
            if rendered is not None and not await _keeps_spec(client, resource, rendered, namespace):
                return f"a dry run drops fields of the {resource.kind}"
    except ClusterError as error:
        if error.transient or error.may_have_applied:
            raise
        return f"the server refuses a dry run: {error}"
    return ""


async def _keeps_spec(client: Client, resource: Resource, rendered: dict[str, Any], namespace: str) -> bool:
    """Return whether the server would store all fields of the spec of a Workload or a PodGroup.

    The server refuses a PodGroup whose Workload does not exist. That shows that the server knows the reference, and the
    other fields are checked without it.
    """
    metadata = {name: value for name, value in rendered["metadata"].items() if name != "ownerReferences"}
    body = {**rendered, "metadata": metadata}
    try:
        stored = await client.create(resource, body, namespace, dry_run=True)
    except Forbidden as error:
        if _REFERENCE not in body["spec"] or PROBE not in error.message or "not found" not in error.message:
            raise
        spec = {name: value for name, value in body["spec"].items() if name != _REFERENCE}
        return await _keeps_spec(client, resource, {**body, "spec": spec}, namespace)
    return _contains(stored.get("spec"), body["spec"])


def _contains(stored: Any, wanted: Any) -> bool:
    """Return whether all fields of `wanted` are in `stored`, which may have further fields with defaults."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(_contains(stored.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(stored, list) and len(stored) == len(wanted)
        return same and all(_contains(*pair) for pair in zip(stored, wanted, strict=True))
    return bool(stored == wanted)


async def discover_for(client: Client, spec: GangSpec, *, namespace: str) -> DiscoveredResources:
    """Return the capabilities of the cluster that matter for this gang.

    :param namespace: The namespace of dry runs, in which the provider may create Jobs.

    Raises:
        InvalidGangSpec: the spec is invalid.
        ClusterError: no request could be sent.
    """
    config = client.config
    defaults: dict[str, Any] = {
        "gang_scheduler": config.gang_scheduler,
        "queue_name": config.queue_name,
        "queue_priority": config.queue_priority,
    }
    known = DiscoveredResources(None, None, {}, **defaults)
    if spec.gang == GangPolicy.OFF:
        return known
    scheduler = select_scheduler(spec.gang_scheduler, _scheduler_name(spec), config.gang_scheduler)
    if scheduler is None:
        found = await discover(client)
        if select_dialect(found.resources, spec.gang_scheduler or config.gang_scheduler) is None:
            found = await with_release(client, found)  # which an error names
        return await _prove_newer_versions(client, replace(found, **defaults), namespace)
    if scheduler.api_group is None:
        return known
    return replace(known, groups={scheduler.api_group: await read_api_group(client, scheduler.api_group)})


def _scheduler_name(spec: GangSpec) -> str | None:
    if spec.manifest is None and spec.pod_overrides is None:
        return spec.scheduler_name
    require_valid(spec)
    return shape_of(spec, manifest_of(spec)).scheduler_name


async def _prove_newer_versions(client: Client, known: DiscoveredResources, namespace: str) -> DiscoveredResources:
    """Add the newer versions of the Workload API that are proven, if the cluster serves no known version.

    A version whose dry runs have no answer is unknown, and is tried again by the next submission.
    """
    newer = newer_dialects(known.resources)
    if not newer or select_dialect(known.resources) is not None:
        return known
    reasons, unknown = {}, dict(known.unknown)
    for dialect in newer:
        try:
            reasons[dialect.version] = await why_unusable(client, dialect, namespace)
        except ClusterError as error:
            unknown[f"scheduling.k8s.io/{dialect.version}"] = str(error)
    proven = tuple(version for version, reason in reasons.items() if not reason)
    refused = {version: reason for version, reason in reasons.items() if reason}
    return replace(known, proven_versions=proven, refused_versions=refused, unknown=unknown)
