"""Discovery for one gang: what the cluster serves of the scheduler that places this gang.

A gang that names no scheduler needs no request beyond `cluster.discovery`, unless the cluster serves the Workload API
only in versions that are newer than the provider. Such a version is expected to have the fields of the newest known
one. A server drops fields that it does not know, so dry runs of a Job, a Workload and a PodGroup show whether the
version keeps the link of the pods and the policy of the group.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources, discover, read_api_group
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden
from airflow_provider_gangjobs.cluster.loop_local import EXPIRY_S, Answer, cached_read
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.gang.render.shape_and_placement import shape_of
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.native import newer_dialects, select_dialect, wanted_versions
from airflow_provider_gangjobs.gang.schedulers.selection import select_scheduler
from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.submission.discovery.capabilities import PROBE, PROBE_SIZE, probe_job

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.schedulers.base import ApiKind
    from airflow_provider_gangjobs.gang.schedulers.native import Dialect
    from airflow_provider_gangjobs.gang.spec import GangSpec

__all__ = ["discover_for", "why_unusable"]


log = logging.getLogger(__name__)

_REFERENCE: Final = "workloadRef"
"""The field by which a PodGroup refers to its Workload."""


async def why_unusable(client: Client, dialect: Dialect, namespace: str) -> str:
    """Return why a version of the Workload API cannot be used; empty if dry runs keep the link and the group.

    :param namespace: The namespace of the dry runs, in which the provider may create Jobs.
    """

    async def read() -> Answer[str]:
        reason = await _dry_run(client, dialect, namespace)
        result = f"It is not used: {reason}" if reason else "It is used, because dry runs keep the link and the group"
        log.info("scheduling.k8s.io/%s is newer than this release of the provider. %s", dialect.version, result)
        return Answer(reason, EXPIRY_S)

    return await cached_read(client, (why_unusable, dialect.version), read)


async def _dry_run(client: Client, dialect: Dialect, namespace: str) -> str:
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE, PROBE_SIZE)
    workload, pod_group = dialect.workload(group, ""), dialect.pod_group(group, "", "")
    try:
        stored = await client.create(JOBS, dialect.with_link(probe_job(namespace), group), namespace, dry_run=True)
        if not dialect.has_link(stored, group):
            return f"a dry run drops {dialect.link_path}"
        for kind, rendered in zip(dialect.objects, (workload, pod_group), strict=True):
            if rendered is not None and not await _keeps_spec(client, kind, rendered, namespace):
                return f"a dry run drops fields of the {kind.kind}"
    except ClusterError as error:
        return f"the server refuses a dry run: {error}"
    return ""


async def _keeps_spec(client: Client, kind: ApiKind, rendered: dict[str, Any], namespace: str) -> bool:
    """Return whether the server would store all fields of the spec of a Workload or a PodGroup.

    The server refuses a PodGroup whose Workload does not exist. That shows that the server knows the reference, and the
    other fields are checked without it.
    """
    metadata = {name: value for name, value in rendered["metadata"].items() if name != "ownerReferences"}
    body = {**rendered, "metadata": metadata}
    try:
        stored = await client.create(Resource(*kind), body, namespace, dry_run=True)
    except Forbidden as error:
        if _REFERENCE not in body["spec"] or PROBE not in error.message or "not found" not in error.message:
            raise
        spec = {name: value for name, value in body["spec"].items() if name != _REFERENCE}
        return await _keeps_spec(client, kind, {**body, "spec": spec}, namespace)
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
    known = DiscoveredResources(None, None, {}, is_complete=False, **defaults)
    if spec.gang == GangPolicy.OFF:
        return known
    scheduler = select_scheduler(spec.gang_scheduler, _scheduler_name(spec), config.gang_scheduler)
    if scheduler is None:
        found = await discover(client, wanted=wanted_versions(spec.dialect))
        return await _prove_newer_versions(client, replace(found, **defaults), namespace)
    if scheduler.api_group is None:
        return known
    group = await read_api_group(client, scheduler.api_group)
    unknown = {scheduler.api_group: group.unknown} if group.unknown else {}
    return replace(known, groups={scheduler.api_group: group.versions}, unknown=unknown)


def _scheduler_name(spec: GangSpec) -> str | None:
    if spec.manifest is None and spec.pod_overrides is None:
        return spec.scheduler_name
    require_valid(spec)
    return shape_of(spec, manifest_of(spec)).scheduler_name


async def _prove_newer_versions(client: Client, known: DiscoveredResources, namespace: str) -> DiscoveredResources:
    """Add the newer versions of the Workload API that are proven, if the cluster serves no known version."""
    newer = newer_dialects(known.resources)
    if not newer or select_dialect(known.resources) is not None:
        return known
    reasons = {dialect.version: await why_unusable(client, dialect, namespace) for dialect in newer}
    proven = tuple(version for version, reason in reasons.items() if not reason)
    refused = {version: reason for version, reason in reasons.items() if reason}
    return replace(known, proven_versions=proven, refused_versions=refused)
