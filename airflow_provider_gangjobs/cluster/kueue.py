"""Kueue's objects of one Job: its Workloads, and its position in its queue.

Each version of Kueue's API that is known has the fields that are read. Where a permission is missing, or Kueue is not
installed, the answer is unknown and not no.

One task reads the pending Workloads of a LocalQueue (Kueue's visibility API) for all gangs of an event loop that wait
in the queue. The first read is some seconds after the first gang has begun to wait, so gangs that are admitted at once
cost no request. Further reads follow once a minute, as long as gangs wait. A process that looks now and then, such as
Airflow's API server, uses `recent_position` instead. A position is information for people only: if it cannot be read,
it is unknown, and nothing is logged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import ValidationError

from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.loop_local import Answer, cached_read, loop_local
from airflow_provider_gangjobs.cluster.served_resources import read_api_group
from airflow_provider_gangjobs.kube.resources import KUEUE_GROUP, KUEUE_VISIBILITY_GROUP, Resource
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, PendingWorkloadsView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_JOB_UID

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.informer import Notification

VERSIONS: Final = ("v1beta2", "v1beta1")
"""The versions of the API, and of its visibility API, that are known, in order of preference."""


def kueue_workloads(version: str) -> Resource:
    """Return the resource of Kueue's Workloads, which differ from those of scheduling.k8s.io."""
    return Resource(KUEUE_GROUP, version, "workloads", "Workload")


async def deactivate_workload(client: Client, namespace: str, job_uid: str) -> bool:
    """Deactivate the Workload of a Job: Kueue takes its quota back, and does not let the Job run again.

    Returns:
        False if the Job has no Workload, or if the permission to read or to change Workloads is missing.

    Raises:
        ClusterError: it is unknown whether the Workload is deactivated.
    """
    body = {"spec": {"active": False}}
    try:
        resource, found = await list_workloads(client, namespace, job_uid)
        metas = [one.metadata for one in found]
        patched = [await patch_uid(client, resource, meta.name, namespace, meta.uid, body) for meta in metas]
    except Forbidden:
        return False
    return any(patched)


async def list_workloads(client: Client, namespace: str, job_uid: str) -> tuple[Resource, list[KueueWorkloadView]]:
    """Return the Workloads of a Job, and their resource in the version that was used.

    There are none if the cluster does not serve them.

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
        return resource, [view(KueueWorkloadView, one) for one in found]
    return kueue_workloads(VERSIONS[0]), []


async def served_versions(client: Client) -> frozenset[str] | None:
    """Return the versions of Kueue's API that the cluster serves; none if Kueue is not installed, `None` if unknown."""
    try:
        group = await read_api_group(client, KUEUE_GROUP)
    except ClusterError:
        return None
    return None if group.unknown and not group.versions else frozenset(group.versions)


async def watched_workloads(client: Client) -> Resource | None:
    """Return the resource of Kueue's Workloads in the best version that the cluster serves.

    It is `None` if the cluster does not serve Kueue's API, or if this is unknown.
    """
    served = await served_versions(client) or ()
    return next((kueue_workloads(version) for version in VERSIONS if version in served), None)


FIRST_READ_AFTER_S: Final = 5.0
READ_EVERY_S: Final = 60.0
NOT_SERVED_READ_EVERY_S: Final = 600.0
"""The pause after a response that says that the API is not served, or that the permission is missing."""
RECENT_READ_TIMEOUT_S: Final = 2.0
"""How long `recent_position` waits for a response. Somebody waits for a page meanwhile."""


def pending_positions() -> PendingPositions:
    """Return the positions that the running loop knows."""
    return loop_local(PendingPositions)


class Position:
    """The position of one Job in its queue. The user calls `close` after use."""

    __slots__ = ("_notification", "_reader", "job_uid", "number")

    def __init__(self, reader: _QueueReader, job_uid: str, notification: Notification) -> None:
        self._reader = reader
        self._notification = notification
        self.job_uid = job_uid
        self.number: int | None = None
        """The position in the ClusterQueue, from 1; `None` if it is unknown."""

    def update(self, number: int | None) -> None:
        """Set the position, and notify the user if it is known for the first time or has been halved."""
        before, self.number = self.number, number
        if number is not None and (before is None or number.bit_length() < before.bit_length()):
            self._notification.notify()

    def close(self) -> None:
        """Stop using the position. Safe to repeat."""
        self._reader.positions.discard(self)


class PendingPositions:
    """The positions of all Jobs of one event loop that wait in queues of Kueue."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, str, str], _QueueReader] = {}
        """By the key of the cluster, the namespace, and the name of the LocalQueue."""

    def acquire(
        self, config: ClusterConfig, namespace: str, queue: str, job_uid: str, notification: Notification
    ) -> Position:
        """Return the position of a Job in a LocalQueue, which is updated until the caller closes it."""
        key = config.key, namespace, queue
        reader = self._readers.get(key)
        if reader is None or reader.task is None or reader.task.done():
            reader = self._readers[key] = _QueueReader(namespace, queue)
            # A task process reads Workloads and no positions, and does not import the informers.
            from airflow_provider_gangjobs.cluster.informer import informers

            work = self._read(key, reader, config)
            reader.task = informers().start_task(work, name=f"positions in {namespace}/{queue}")
        return reader.add(job_uid, notification)

    async def _read(self, key: tuple[str, str, str], reader: _QueueReader, config: ClusterConfig) -> None:
        from airflow_provider_gangjobs.cluster.informer import informers

        async with informers().client(config) as client:
            try:
                await reader.run(client)
            finally:
                # At the same moment as `run` ends, so nobody gets a position that is not updated any more.
                del self._readers[key]


class _QueueReader:
    def __init__(self, namespace: str, queue: str) -> None:
        self.positions: set[Position] = set()
        self.task: asyncio.Task[None] | None = None
        self._queue = namespace, queue
        self._numbers: Mapping[str, int] = {}

    def add(self, job_uid: str, notification: Notification) -> Position:
        position = Position(self, job_uid, notification)
        self.positions.add(position)
        position.number = self._numbers.get(job_uid)
        return position

    async def run(self, client: Client) -> None:
        """Read and update the positions, until a read is due and there is no position to update."""
        await client.clock.sleep(FIRST_READ_AFTER_S)
        while self.positions:
            self._numbers, pause_s = await _read(client, *self._queue)
            for position in tuple(self.positions):
                position.update(self._numbers.get(position.job_uid))
            await client.clock.sleep(pause_s)


async def recent_position(client: Client, namespace: str, queue: str, job_uid: str) -> int | None:
    """Return the position of a Job in its ClusterQueue, from 1, as it was at most a minute ago.

    It is `None` if it is unknown. That is also so for up to a minute after the Job was queued, if somebody has looked
    at another Job of the queue before.
    """
    numbers = await cached_read(
        client,
        (recent_position, namespace, queue),
        partial(_read, client, namespace, queue),
        within_s=RECENT_READ_TIMEOUT_S,
        unanswered=_NO_POSITIONS,
    )
    return numbers.get(job_uid)


async def _read(client: Client, namespace: str, queue: str) -> Answer[Mapping[str, int]]:
    """Read the positions once, by uid. The next read is due when they have expired."""
    for version in VERSIONS:
        try:
            found = await client.get_raw(_path(version, namespace, queue), retry_for_s=0.0)
            return Answer(_numbers(found), READ_EVERY_S)
        except NotFound:
            continue
        except Forbidden:
            break
        except (ClusterError, ValidationError):
            return _NO_POSITIONS
    return Answer({}, NOT_SERVED_READ_EVERY_S)


_NO_POSITIONS: Final[Answer[Mapping[str, int]]] = Answer({}, READ_EVERY_S)


def _path(version: str, namespace: str, queue: str) -> str:
    """Return the URL path of the pending Workloads of a LocalQueue: the first 1,000, which is the API's default."""
    return Resource(KUEUE_VISIBILITY_GROUP, version, "localqueues", "LocalQueue").path(
        namespace, queue, "pendingworkloads"
    )


def _numbers(summary: dict[str, Any]) -> dict[str, int]:
    """Return the positions by the uids of the owners of the Workloads. The API counts from 0."""
    return {
        owner.uid: item.position_in_cluster_queue + 1
        for item in view(PendingWorkloadsView, summary).items
        for owner in item.metadata.owner_references
    }
