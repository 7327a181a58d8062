"""Requests about Kueue's objects of one Job. Each version of Kueue's API that is known has the fields that are read.

Where a permission is missing, or Kueue is not installed, the answer is unknown and not no.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.discovery import EXPIRY_S, UNKNOWN_EXPIRY_S
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.preconditions import PatchingClient, patch_uid
from airflow_provider_gangjobs.cluster.resources import KUEUE_GROUP, Resource
from airflow_provider_gangjobs.kube.metadata_keys import LABEL_KUEUE_JOB_UID
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.client_protocol import ClientProtocol

VERSIONS: Final = ("v1beta2", "v1beta1")
"""The versions of the API that are known, in order of preference."""


class KueueClient(PatchingClient, Protocol):
    """The methods of `cluster.client.Client` that this module uses."""

    async def list(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str | None = None
    ) -> list[dict[str, Any]]:
        """Return all objects that match the label selector."""


def kueue_workloads(version: str) -> Resource:
    """Return the resource of Kueue's Workloads, which differ from those of scheduling.k8s.io."""
    return Resource(KUEUE_GROUP, version, "workloads", "Workload")


class Deactivation(Enum):
    """The result of a request to deactivate the Workload of a Job."""

    DONE = "done"
    NO_WORKLOAD = "no Workload"
    """Kueue has made no Workload for the Job, or the Workload was deleted."""
    FORBIDDEN = "forbidden"
    """The permission to read or to change Workloads is missing."""


async def deactivate_workload(client: KueueClient, namespace: str, job_uid: str) -> Deactivation:
    """Deactivate the Workload of a Job: Kueue takes its quota back, and does not let the Job run again.

    Raises:
        ClusterError: it is unknown whether the Workload is deactivated.
    """
    try:
        found = await list_workloads(client, namespace, job_uid)
        patched = [await _deactivate(client, one) for one in found]
    except Forbidden:
        return Deactivation.FORBIDDEN
    return Deactivation.DONE if any(patched) else Deactivation.NO_WORKLOAD


async def _deactivate(client: KueueClient, found: FoundWorkload) -> bool:
    metadata = found.view.metadata
    body = {"spec": {"active": False}}
    return await patch_uid(client, found.resource, metadata.name, metadata.namespace, metadata.uid, body)


class FoundWorkload(NamedTuple):
    """A Workload as it was read, with its resource in the version that was used."""

    resource: Resource
    view: KueueWorkloadView


async def find_workload(client: KueueClient, namespace: str, job_uid: str) -> FoundWorkload | None:
    """Return the Workload of a Job; `None` if there is none, or if the permission to read it is missing.

    Raises:
        ClusterError: this is unknown.
    """
    try:
        found = await list_workloads(client, namespace, job_uid)
    except Forbidden:
        return None
    return found[0] if found else None


async def list_workloads(client: KueueClient, namespace: str, job_uid: str) -> list[FoundWorkload]:
    """Return the Workloads of a Job; none if the cluster does not serve them.

    Raises:
        Forbidden: the permission to read them is missing.
        ClusterError: this is unknown.
    """
    for version in VERSIONS:
        resource = kueue_workloads(version)
        try:
            found = await client.list(resource, namespace, label_selector=f"{LABEL_KUEUE_JOB_UID}={job_uid}")
        except NotFound:
            continue
        return [FoundWorkload(resource, view(KueueWorkloadView, one)) for one in found]
    return []


async def patch_workload(client: KueueClient, found: FoundWorkload, body: Mapping[str, Any]) -> bool:
    """Merge-patch a Workload in exactly the version that was read. Return false if it has changed or is gone.

    Raises:
        ClusterError: the request failed. The patch may have been applied.
    """
    metadata = found.view.metadata
    versioned = {**body, "metadata": {"resourceVersion": metadata.resource_version}}
    try:
        return await patch_uid(client, found.resource, metadata.name, metadata.namespace, metadata.uid, versioned)
    except Conflict:
        return False


async def served_versions(client: ClientProtocol, *, retry_for_s: float | None = None) -> frozenset[str] | None:
    """Return the versions of Kueue's API that the cluster serves; none if Kueue is not installed, `None` if unknown.

    :param retry_for_s: How long the client retries the request, in seconds. The default is that of the client.
    """
    try:
        group = await client.get_raw(f"/apis/{KUEUE_GROUP}", retry_for_s=retry_for_s)
    except NotFound:
        return frozenset()
    except ClusterError:
        return None
    return frozenset(str(item.get("version")) for item in group.get("versions") or ())


async def watched_workloads(client: Client) -> Resource | None:
    """Return the resource of Kueue's Workloads in the best version that the cluster serves.

    The answer is cached for as long as discovery is, and concurrent callers wait for one request. It is `None` if the
    cluster does not serve Kueue's API, or if this is unknown.
    """
    return await loop_local(_VersionCache).get(client)


class _Entry:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.resource: Resource | None = None
        self.expires_at = float("-inf")


class _VersionCache:
    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._clock = Clock()

    async def get(self, client: Client) -> Resource | None:
        entry = self._entries.setdefault(client.config.key, _Entry())
        async with entry.lock:
            if self._clock.monotonic() >= entry.expires_at:
                entry.resource = await _served_workloads(client)
                lasts_s = UNKNOWN_EXPIRY_S if entry.resource is None else EXPIRY_S
                entry.expires_at = self._clock.monotonic() + lasts_s
            return entry.resource


async def _served_workloads(client: Client) -> Resource | None:
    served = await served_versions(client) or ()
    return next((kueue_workloads(version) for version in VERSIONS if version in served), None)
