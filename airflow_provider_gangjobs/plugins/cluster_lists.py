"""A cache of the lists of gangs that the page "Gangs" shows, shared by all its viewers.

There is one list for each connection and namespace. One reader at a time reads a list, and a list serves every request
for `LIST_TTL_S` or, if it took long to read, for `REST_FACTOR` times as long. So the cost does not grow with the number
of viewers. A request waits `WAIT_S` at most; then the page says that the cluster has not answered, and shows the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.plugins.clients import SharedClients
from airflow_provider_gangjobs.plugins.list_source import ALL_NAMESPACES, ListSource
from airflow_provider_gangjobs.plugins.page_gangs import PageList, list_for_page
from airflow_provider_gangjobs.plugins.snapshot_cache import OTHER_ERROR, describe_error, read_connection
from airflow_provider_gangjobs.tracking.overview import Overview, read_overview

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

log = logging.getLogger(__name__)

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
TIMED_OUT: Final = f"The cluster of the connection {{conn_id!r}} did not answer within {READ_TIMEOUT_S:.0f} seconds."


@dataclass(frozen=True)
class ListResult:
    """The gangs of one source, or a sentence that says why they are unknown."""

    source: ListSource
    gangs: PageList | None = None
    overview: Overview | None = None
    """What `gangs` was made from, so that the next reading judges only what has changed."""
    read_at: datetime | None = None
    where: tuple[str, str | None] | None = None
    """Cluster and namespace. Two connections may have the same."""
    error: str = ""

    @property
    def is_recent(self) -> bool:
        """The list may be shown while the next one is read."""
        return self.read_at is not None and datetime.now(UTC) - self.read_at < timedelta(seconds=KEPT_FOR_S)


@dataclass
class _Entry:
    task: asyncio.Task[ListResult]
    expires_at: float | None = None
    """By the clock of the cache; `None` while the task runs."""
    last: ListResult | None = None
    """The list that was read before, without an error."""


@dataclass
class ListCache:
    """The lists of one process. The cache belongs to the event loop of its first use."""

    clients: SharedClients = field(default_factory=SharedClients)
    clock: Callable[[], float] = time.monotonic
    read_config: Callable[[str], Awaitable[ClusterConfig]] = read_connection
    wait_s: float = WAIT_S
    _entries: dict[tuple[ListSource, str], _Entry] = field(default_factory=dict, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_READS_MAX), init=False)

    async def get(self, source: ListSource, installation: str) -> ListResult:
        """Return the gangs of a source. An error of the cluster is a result, never raised."""
        key = (source, installation)
        entry = self._entries.get(key)
        if entry is None or (entry.expires_at is not None and entry.expires_at <= self.clock()):
            entry = self._start(key, entry)
        await asyncio.wait({entry.task}, timeout=self.wait_s)
        if entry.task.done():
            return entry.task.result()
        if entry.last is not None and entry.last.is_recent:
            return entry.last
        return ListResult(source, error=NOT_READ_YET.format(conn_id=source.conn_id))

    def forget_all_but(self, sources: frozenset[ListSource]) -> None:
        """Drop the lists of sources that no page reads any more."""
        for key, entry in list(self._entries.items()):
            if key[0] not in sources and entry.task.done():
                del self._entries[key]

    def _start(self, key: tuple[ListSource, str], before: _Entry | None) -> _Entry:
        last = None
        if before is not None:
            found = before.task.result()
            last = before.last if found.error else found
        overview = last.overview if last else None
        task = asyncio.create_task(self._read(*key, overview), name=f"list of gangs of {key[0]}")
        entry = _Entry(task, last=last)
        self._entries[key] = entry
        began = self.clock()

        def rest(done: asyncio.Task[ListResult]) -> None:
            took_s = self.clock() - began
            usual_s = ERROR_TTL_S if not done.cancelled() and done.result().error else LIST_TTL_S
            entry.expires_at = self.clock() + max(usual_s, REST_FACTOR * took_s)

        task.add_done_callback(rest)
        return entry

    async def _read(self, source: ListSource, installation: str, before: Overview | None) -> ListResult:
        result, namespace = ListResult(source), source.namespace or None
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self._slots:
                config = await self.read_config(source.conn_id)
                async with self.clients.service(config) as service:
                    namespace = None if source.namespace == ALL_NAMESPACES else namespace or service.namespace
                    read_at = datetime.now(UTC)
                    overview = await read_overview(service.client, namespace, installation=installation, before=before)
                    gangs = await asyncio.to_thread(list_for_page, overview, str(source))
                    where = config.key, namespace
                    return replace(result, gangs=gangs, overview=overview, read_at=read_at, where=where)
        except TimeoutError:
            return replace(result, error=TIMED_OUT.format(conn_id=source.conn_id))
        except (ClusterError, AirflowNotFoundException) as error:
            log.warning("The API server could not list the gangs of %s: %s", source, error)
            return replace(result, error=describe_error(error, source.conn_id, namespace or ALL_NAMESPACES))
        except Exception:
            # A secrets backend may raise any exception, and the page has to show a message.
            log.exception("The API server could not list the gangs of %s", source)
            return replace(result, error=OTHER_ERROR)
