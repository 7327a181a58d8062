"""Caches that all viewers of the pages share: snapshots of gangs, the last lines of their logs, and lists of gangs.

Reading a snapshot takes at most `SNAPSHOT_TIMEOUT_S`, at most `CONCURRENT_SNAPSHOTS_MAX` snapshots are read at the same
time, and a snapshot serves every request for `SNAPSHOT_TTL_S`; so do logs. Many open pages of a gang therefore cost the
cluster no more than one open page.

There is one list for each connection and namespace. One reader at a time reads a list, and a list serves every request
for `LIST_TTL_S` or, if it took long to read, for `REST_FACTOR` times as long. So the cost does not grow with the number
of viewers. A request waits `WAIT_S` at most; then the page says that the cluster has not answered, and shows the rest.

The page shows an error as a sentence without any detail of the connection. The API server's log has the whole error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import (
    ClusterError,
    CredentialsFailed,
    Forbidden,
    InvalidConnection,
    TransportError,
    Unauthorized,
)
from airflow_provider_gangjobs.cluster.loop_local import Answer, CachedReads
from airflow_provider_gangjobs.gang.view import GangView, view_end, view_gang, view_job
from airflow_provider_gangjobs.plugins.clusters import ALL_NAMESPACES, ListSource, SharedClients
from airflow_provider_gangjobs.tracking.explanation import read_snapshot
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts
from airflow_provider_gangjobs.tracking.overview import Overview, read_overview

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.spec import Logs
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.gang.view import GangSnapshot
    from airflow_provider_gangjobs.kube.links import LinkTemplate
    from airflow_provider_gangjobs.plugins.locator import GangLocator
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog


T = TypeVar("T")

log = logging.getLogger(__name__)

SNAPSHOT_TIMEOUT_S: Final = 10.0
CONCURRENT_SNAPSHOTS_MAX: Final = 4
SNAPSHOT_TTL_S: Final = 2.0
ATTEMPTS_MAX: Final = 20
ATTEMPTS_READ_MAX: Final = 5
"""Of how many other attempts the outcomes are read, the latest first."""
ENDS_WITHIN_S: Final = 3.0
"""The page is shown without them if they take longer."""
ENDS_KEPT_MAX: Final = 1000

UNKNOWN_CONNECTION: Final = (
    "Airflow no longer has the rendered fields of this task, so the cluster of its gang is unknown."
)
JOB_NOT_FOUND: Final = "The gang's Job does not exist in the cluster."
FROM_END_EVENT: Final = "The page shows what Airflow recorded when the gang ended."
JOB_DELETED: Final = "The Job was deleted after the end of the gang. The page shows what Airflow recorded of it."
TIMED_OUT: Final = f"The cluster did not answer Airflow's API server within {SNAPSHOT_TIMEOUT_S:.0f} seconds."
OTHER_ERROR: Final = "Airflow's API server cannot read the cluster. The log of the API server has the error."
# The first entry that matches applies. No text quotes the error, which may contain addresses and paths.
_ERROR_TEXTS: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((AirflowNotFoundException,), "Airflow's API server does not find the connection {conn_id!r}."),
    ((Unauthorized, CredentialsFailed), "The cluster does not accept the credentials of the connection {conn_id!r}."),
    ((Forbidden,), "The connection {conn_id!r} may not list Jobs in namespace {namespace!r}."),
    ((InvalidConnection,), "Airflow's API server cannot use the connection {conn_id!r}."),
    ((TransportError,), "Airflow's API server cannot reach the cluster of the connection {conn_id!r}."),
)


class ClusterUnreadError(Exception):
    """The cluster could not be read. The message says why, without any detail of the connection."""


@dataclass(frozen=True)
class SnapshotResult:
    """A snapshot of the gang, or the reason why the cluster could not be read."""

    snapshot: GangSnapshot | None = None
    """`None` also if the Job does not exist."""
    error: str = ""
    attempts: tuple[GangView, ...] = ()
    """The other attempts, the latest first."""
    links: tuple[LinkTemplate, ...] = ()
    """Links of the connection to other systems."""

    def view(self, locator: GangLocator, now: datetime) -> GangView | None:
        """Return the view of the gang of a task; `None` if neither the cluster nor Airflow has it."""
        if self.snapshot is not None:
            ends_by = datetime.fromtimestamp(locator.deadline, UTC) if locator.deadline is not None else None
            return view_gang(self.snapshot, locator.end, deadlines=locator.deadlines, ends_by=ends_by, now=now)
        if locator.end is None:
            return None
        note = f"{self.error} {FROM_END_EVENT}" if self.error else JOB_DELETED
        return view_end(locator.end, locator.key, self.links, notes=(note,))


@dataclass
class SnapshotCache:
    """The snapshots of one process. The cache belongs to the event loop of its first use."""

    clock: Callable[[], float] = time.monotonic
    clients: SharedClients = field(default_factory=SharedClients)
    timeout_s: float = SNAPSHOT_TIMEOUT_S
    _ends: dict[str, GangView] = field(default_factory=dict, init=False)
    _snapshots: CachedReads = field(default_factory=CachedReads, init=False)
    _logs: CachedReads = field(default_factory=CachedReads, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_SNAPSHOTS_MAX), init=False)
    _slots_for_logs: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(CONCURRENT_SNAPSHOTS_MAX), init=False
    )
    """Of their own, because a node that answers slowly must not hold up the pages."""

    async def get(self, locator: GangLocator) -> SnapshotResult:
        """Return a snapshot that was read at most `SNAPSHOT_TTL_S` ago. An error of the cluster is a result, never
        raised."""
        key = (locator.kubernetes_conn_id, locator.must_exist, locator.ref, locator.key)

        async def read() -> Answer[SnapshotResult]:
            return Answer(await self._read(locator), SNAPSHOT_TTL_S)

        shared = self._snapshots.get(key, read, self.clock)
        # The shield lets the read go on for other users if this user closes the page. Its timeout bounds it.
        return await asyncio.shield(asyncio.create_task(shared, name=f"snapshot of gang {locator.ref}"))

    async def logs(
        self, locator: GangLocator, snapshot: GangSnapshot, policy: Logs, rank: int | None = None
    ) -> Sequence[RankLog]:
        """Return the last lines of logs of the gang of a snapshot, see `read_logs`.

        Raises:
            ClusterUnreadError: the cluster could not be read. A log that cannot be read is no error.
        """
        # The Job of the snapshot has the digest of the task. The name in the locator may be that of another gang.
        ref = snapshot.ref

        async def read_logs(service: GangService) -> Sequence[RankLog]:
            return await service.logs(ref, policy, outcomes=snapshot.outcomes or (), rank=rank)

        async def read() -> Answer[Sequence[RankLog]]:
            return Answer(await self._on_cluster(locator, self._slots_for_logs, read_logs), SNAPSHOT_TTL_S)

        key = (locator.kubernetes_conn_id, locator.must_exist, ref, policy, rank)
        shared = self._logs.get(key, read, self.clock)
        return await asyncio.shield(asyncio.create_task(shared, name=f"logs of gang {ref}"))

    async def _read(self, locator: GangLocator) -> SnapshotResult:
        try:
            return await self._on_cluster(locator, self._slots, lambda service: self._read_snapshot(service, locator))
        except ClusterUnreadError as error:
            return SnapshotResult(error=str(error))

    async def _on_cluster(
        self, locator: GangLocator, slots: asyncio.Semaphore, action: Callable[[GangService], Awaitable[T]]
    ) -> T:
        if locator.kubernetes_conn_id is None:
            raise ClusterUnreadError(UNKNOWN_CONNECTION)
        lent = self.clients.service(locator.kubernetes_conn_id, must_exist=locator.must_exist)
        try:
            async with asyncio.timeout(self.timeout_s), slots, lent as service:
                return await action(service)
        except Exception as error:
            ref = locator.ref
            text = _log_error(error, f"read gang {ref}", locator.kubernetes_conn_id, ref.namespace, TIMED_OUT)
            raise ClusterUnreadError(text) from error

    async def _read_snapshot(self, service: GangService, locator: GangLocator) -> SnapshotResult:
        attempts = await list_attempts(service.client, locator.ref.namespace, locator.key.digest)
        gang = next((one for one in attempts if one.ref.uid == locator.ref.uid), None)
        snapshot = await read_snapshot(service.client, gang) if gang is not None else None
        others = [one for one in attempts if one is not gang][:ATTEMPTS_MAX]
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDS_WITHIN_S):
                await self._read_ends(service.client, others)
        views = (self._ends.get(one.ref.uid) or view_job(one) for one in others)
        return SnapshotResult(snapshot, attempts=tuple(views), links=service.client.config.links)

    async def _read_ends(self, client: Client, others: Sequence[StoredGang]) -> None:
        """Read why other attempts failed. Each is read once, because an earlier attempt does not change."""
        failed = [one for one in others if view_job(one).has_failed][:ATTEMPTS_READ_MAX]
        for gang in failed:
            if gang.ref.uid not in self._ends:
                if len(self._ends) >= ENDS_KEPT_MAX:
                    self._ends.clear()
                with suppress(ClusterError):
                    self._ends[gang.ref.uid] = view_gang(await read_snapshot(client, gang))


def describe_error(error: Exception, conn_id: str | None, namespace: str) -> str:
    """Return a sentence for an error, without any detail of the connection."""
    text = next((text for kinds, text in _ERROR_TEXTS if isinstance(error, kinds)), OTHER_ERROR)
    return text.format(conn_id=conn_id, namespace=namespace)


def _log_error(error: Exception, what: str, conn_id: str, namespace: str, timed_out: str) -> str:
    """Log why the API server could not do something, and return a sentence for the page.

    A secrets backend may raise any exception, and the page has to show a message.
    """
    if isinstance(error, TimeoutError):
        return timed_out
    is_unexpected = not isinstance(error, (ClusterError, AirflowNotFoundException))
    log.log(
        logging.ERROR if is_unexpected else logging.WARNING,
        "The API server could not %s: %s",
        what,
        error,
        exc_info=error if is_unexpected else None,
    )
    return describe_error(error, conn_id, namespace)


LIST_TTL_S: Final = 5.0
ERROR_TTL_S: Final = 30.0
REST_FACTOR: Final = 4.0
"""The API server is busy with the lists for at most a fifth of its time."""
READ_TIMEOUT_S: Final = 60.0
WAIT_S: Final = 4.0
KEPT_FOR_S: Final = 60.0
"""How old a list may be that is shown while the next one is read."""
CONCURRENT_READS_MAX: Final = 2
NOT_READ_YET: Final = "The cluster of the connection {conn_id!r} has not answered yet. The page will show its gangs."
LIST_TIMED_OUT: Final = (
    f"The cluster of the connection {{conn_id!r}} did not answer within {READ_TIMEOUT_S:.0f} seconds."
)


@dataclass(frozen=True)
class ListResult:
    """The gangs of one source, or a sentence that says why they are unknown."""

    source: ListSource
    overview: Overview | None = None
    read_at: datetime | None = None
    where: tuple[str, str | None] | None = None
    """Cluster and namespace. Two connections may have the same."""
    error: str = ""

    @property
    def is_recent(self) -> bool:
        """The list may be shown while the next one is read."""
        return self.read_at is not None and datetime.now(UTC) - self.read_at < timedelta(seconds=KEPT_FOR_S)


def _with_source(overview: Overview, source: str) -> Overview:
    gangs = (gang if gang.source else with_fields(gang, source=source) for gang in overview.gangs)
    return replace(overview, gangs=tuple(gangs))


def lists_read(found: Sequence[ListResult]) -> list[ListResult]:
    """Return the lists that were read. A list of all namespaces of a connection has the gangs of its other lists."""
    read = [one for one in found if one.overview is not None]
    whole = {one.source.conn_id for one in read if one.source.namespace == ALL_NAMESPACES}
    return [one for one in read if one.source.namespace == ALL_NAMESPACES or one.source.conn_id not in whole]


@dataclass
class _SharedList:
    """The reading of one list, and the last list that was read without an error."""

    reads: CachedReads = field(default_factory=CachedReads)
    last: ListResult | None = None


@dataclass
class ListCache:
    """The lists of one process. The cache belongs to the event loop of its first use."""

    clients: SharedClients = field(default_factory=SharedClients)
    clock: Callable[[], float] = time.monotonic
    wait_s: float = WAIT_S
    _lists: dict[tuple[ListSource, str], _SharedList] = field(default_factory=dict, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_READS_MAX), init=False)

    async def get(self, source: ListSource, installation: str) -> ListResult:
        """Return the gangs of a source. An error of the cluster is a result, never raised."""
        shared = self._lists.setdefault((source, installation), _SharedList())

        async def read() -> Answer[ListResult]:
            async with self._slots:  # the wait for other lists is no time of this one
                began = self.clock()
                found = await self._read(source, installation, shared.last.overview if shared.last else None)
            if not found.error:
                shared.last = found
            usual_s = ERROR_TTL_S if found.error else LIST_TTL_S
            return Answer(found, max(usual_s, REST_FACTOR * (self.clock() - began)))

        reading = asyncio.create_task(shared.reads.get(source, read, self.clock), name=f"list of gangs of {source}")
        await asyncio.wait({reading}, timeout=self.wait_s)
        if reading.done():
            return reading.result()
        if shared.last is not None and shared.last.is_recent:
            return shared.last
        return ListResult(source, error=NOT_READ_YET.format(conn_id=source.conn_id))

    def forget_all_but(self, sources: frozenset[ListSource]) -> None:
        """Drop the lists of sources that no page reads any more, except the lists that are being read."""
        self._lists = {
            key: shared for key, shared in self._lists.items() if key[0] in sources or shared.reads.is_in_use
        }

    async def _read(self, source: ListSource, installation: str, before: Overview | None) -> ListResult:
        namespace = source.namespace
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self.clients.service(source.conn_id) as service:
                namespace = namespace or service.namespace
                where = None if namespace == ALL_NAMESPACES else namespace
                read_at = datetime.now(UTC)
                overview = await read_overview(service.client, where, installation=installation, before=before)
                overview = await asyncio.to_thread(_with_source, overview, str(source))
                return ListResult(source, overview, read_at, (service.client.config.key, where))
        except Exception as error:
            late = LIST_TIMED_OUT.format(conn_id=source.conn_id)
            text = _log_error(error, f"list the gangs of {source}", source.conn_id, namespace, late)
            return ListResult(source, error=text)
