"""Discovery for one gang: what the cluster serves of the scheduler that places this gang.

A gang that names no scheduler needs no request beyond `cluster.discovery`, unless the cluster serves the Workload API
only in versions that this release of the provider does not know. Then dry runs show whether such a version keeps the
link of the pods and the policy of the group.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.api_groups import read_api_group
from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources, discover
from airflow_provider_gangjobs.cluster.errors import ApiError, ClusterError
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.gang.render.manifest import manifest_of
from airflow_provider_gangjobs.gang.render.shape import shape_of
from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.native import newer_dialects, select_dialect, wanted_versions
from airflow_provider_gangjobs.gang.schedulers.selection import select_scheduler
from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.submission.probe_job import PROBE, PROBE_SIZE, probe_job

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.schedulers.base import ApiKind
    from airflow_provider_gangjobs.gang.schedulers.native import Dialect
    from airflow_provider_gangjobs.gang.spec import GangSpec

log = logging.getLogger(__name__)

PROVEN_FOR_S: Final = 600.0
"""How long the result of the dry runs of a version is used."""


async def discover_for(client: Client, spec: GangSpec, *, namespace: str) -> DiscoveredResources:
    """Return the capabilities of the cluster that matter for this gang.

    :param namespace: The namespace of dry runs, in which the provider may create Jobs.

    Raises:
        InvalidGangSpec: the spec is invalid.
        ClusterError: no request could be sent.
    """
    default = client.config.gang_scheduler
    known = DiscoveredResources(None, None, {}, gang_scheduler=default, is_complete=False)
    if spec.gang == GangPolicy.OFF:
        return known
    scheduler = select_scheduler(spec.gang_scheduler, _scheduler_name(spec), default)
    if scheduler is None:
        found = await discover(client, wanted=wanted_versions(spec.dialect), clock=client.clock)
        return await _prove_newer_versions(client, replace(found, gang_scheduler=default), namespace)
    if scheduler.api_group is None:
        return known
    group = await read_api_group(client, scheduler.api_group)
    unknown = {**known.unknown, scheduler.api_group: group.unknown} if group.unknown else known.unknown
    return replace(known, groups={scheduler.api_group: group.versions}, unknown=unknown)


def _scheduler_name(spec: GangSpec) -> str | None:
    """Return the `schedulerName` of the pods; `None` if they have none."""
    if spec.manifest is None and spec.pod_overrides is None:
        return spec.scheduler_name
    require_valid(spec)
    return shape_of(spec, manifest_of(spec)).scheduler_name


async def _prove_newer_versions(client: Client, known: DiscoveredResources, namespace: str) -> DiscoveredResources:
    """Add the newer versions of the Workload API that are proven, if the cluster serves no known version."""
    newer = newer_dialects(known.resources)
    if not newer or select_dialect(known.resources) is not None:
        return known
    results = {dialect.version: await _prove(client, dialect, namespace) for dialect in newer}
    proven = tuple(version for version, refusal in results.items() if not refusal)
    refusals = {version: refusal for version, refusal in results.items() if refusal}
    return replace(known, proven_versions=proven, refused_versions=refusals)


async def _prove(client: Client, dialect: Dialect, namespace: str) -> str:
    """Return why a version cannot be used; empty if dry runs keep the link and the group."""
    cache = loop_local(_Proofs).known
    key = client.config.key, dialect.version
    refusal, expires_at = cache.get(key, ("", 0.0))
    if client.clock.monotonic() >= expires_at:
        refusal = await _dry_run(client, dialect, namespace)
        cache[key] = refusal, client.clock.monotonic() + PROVEN_FOR_S
        log.info(
            "scheduling.k8s.io/%s is newer than this release of the provider. %s",
            dialect.version,
            f"It is not used: {refusal}" if refusal else "Dry runs keep the link and the group, so it is used",
        )
    return refusal


class _Proofs:
    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[str, float]] = {}


async def _dry_run(client: Client, dialect: Dialect, namespace: str) -> str:
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE, PROBE_SIZE)
    try:
        stored = await client.create(JOBS, dialect.with_link(probe_job(namespace), group), namespace, dry_run=True)
        if not dialect.has_link(stored, group):
            return f"a dry run drops {dialect.link_path}"
        for kind, rendered in zip(dialect.objects, _objects(dialect, group), strict=True):
            kept = await _keeps_spec(client, kind, rendered, namespace)
            if not kept:
                return f"a dry run changes the spec of the {kind.kind}"
    except (ApiError, ClusterError) as error:
        return f"the server refuses a dry run: {error}"
    return ""


def _objects(dialect: Dialect, group: SchedulingGroup) -> list[dict[str, Any]]:
    """Return Workload and PodGroup without owners, because nothing that could own them exists.

    The PodGroup does not refer to its Workload either: the server refuses a PodGroup whose Workload does not exist.
    """
    rendered = [dialect.workload(group, ""), dialect.pod_group(group, "", "")]
    objects = []
    for one in filter(None, rendered):
        spec = {name: value for name, value in one["spec"].items() if name != "workloadRef"}
        metadata = {name: value for name, value in one["metadata"].items() if name != "ownerReferences"}
        objects.append({**one, "metadata": metadata, "spec": spec})
    return objects


async def _keeps_spec(client: Client, kind: ApiKind, rendered: dict[str, Any], namespace: str) -> bool:
    stored = await client.create(Resource(*kind), rendered, namespace, dry_run=True)
    return _contains(stored.get("spec"), rendered["spec"])


def _contains(stored: Any, wanted: Any) -> bool:
    """Return whether all fields of `wanted` are in `stored`, which may have further fields with defaults."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(_contains(stored.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(stored, list) and len(stored) == len(wanted)
        return same and all(_contains(*pair) for pair in zip(stored, wanted, strict=True))
    return bool(stored == wanted)


__all__ = ["discover_for"]
