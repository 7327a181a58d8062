"""Discovery for one gang: what the cluster serves of the scheduler that places this gang.

A gang that names no scheduler needs no request beyond `cluster.discovery`, unless the cluster serves the Workload API
only in versions that this release of the provider does not know. Then dry runs show whether such a version keeps the
link of the pods and the policy of the group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.api_groups import read_api_group
from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources, discover
from airflow_provider_gangjobs.gang.render.shape import shape_of
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.schedulers.native import newer_dialects, select_dialect, wanted_versions
from airflow_provider_gangjobs.gang.schedulers.selection import select_scheduler
from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.submission.newer_workload_versions import why_unusable

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.spec import GangSpec


async def discover_for(client: Client, spec: GangSpec, *, namespace: str) -> DiscoveredResources:
    """Return the capabilities of the cluster that matter for this gang.

    :param namespace: The namespace of dry runs, in which the provider may create Jobs.

    Raises:
        InvalidGangSpec: the spec is invalid.
        ClusterError: no request could be sent.
    """
    config = client.config
    found = await _discover_scheduler(client, spec, namespace)
    return replace(
        found,
        gang_scheduler=config.gang_scheduler,
        queue_name=config.queue_name,
        queue_priority=config.queue_priority,
    )


async def _discover_scheduler(client: Client, spec: GangSpec, namespace: str) -> DiscoveredResources:
    known = DiscoveredResources(None, None, {}, is_complete=False)
    if spec.gang == GangPolicy.OFF:
        return known
    scheduler = select_scheduler(spec.gang_scheduler, _scheduler_name(spec), client.config.gang_scheduler)
    if scheduler is None:
        found = await discover(client, wanted=wanted_versions(spec.dialect), clock=client.clock)
        return await _prove_newer_versions(client, found, namespace)
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
    reasons = {dialect.version: await why_unusable(client, dialect, namespace) for dialect in newer}
    proven = tuple(version for version, reason in reasons.items() if not reason)
    refused = {version: reason for version, reason in reasons.items() if reason}
    return replace(known, proven_versions=proven, refused_versions=refused)


__all__ = ["discover_for"]
