"""Discovery for one gang: what the cluster serves of the scheduler that places this gang.

A gang that names no scheduler needs no request beyond `cluster.discovery`, unless the cluster serves the Workload API
only in versions that this release of the provider does not know. Then dry runs show whether such a version keeps the
link of the pods and the policy of the group. A gang that names no queue needs one request more: whether the cluster
serves Kueue, which may manage Jobs without a queue, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.api_groups import read_api_group
from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources, discover
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.resources import KUEUE_GROUP
from airflow_provider_gangjobs.gang.render.manifest import manifest_of
from airflow_provider_gangjobs.gang.render.shape import shape_of
from airflow_provider_gangjobs.gang.schedulers.native import newer_dialects, select_dialect, wanted_versions
from airflow_provider_gangjobs.gang.schedulers.selection import select_scheduler
from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.submission.newer_versions import why_unusable

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
        serves_kueue=await _serves_kueue(client, spec),
    )


async def _serves_kueue(client: Client, spec: GangSpec) -> bool | None:
    """Return whether Kueue may manage a Job that names no queue; `None` if this is unknown or does not matter.

    The request is not repeated: if the answer is unknown, the submission sends a dry run, as if Kueue were served.
    """
    if spec.roles is None and (spec.queue_name or client.config.queue_name):
        return None
    try:
        await client.get_raw(f"/apis/{KUEUE_GROUP}", retry_for_s=0.0)
    except NotFound:
        return False
    except ClusterError:
        return None
    return True


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
