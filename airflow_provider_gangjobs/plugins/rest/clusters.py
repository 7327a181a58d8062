"""Runs the use cases of `service` for requests, on an event loop in a thread of its own.

Airflow's event loop only waits, so neither the validation of a large spec nor a cluster that answers slowly delays
other requests to Airflow's API server.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.plugins.clients import SharedClients
from airflow_provider_gangjobs.plugins.rest.access import namespace_not_allowed
from airflow_provider_gangjobs.plugins.rest.limits import too_many

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.plugins.rest.access import Place
    from airflow_provider_gangjobs.service import GangService

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_WITHIN_S: Final = 30.0
"""How long a request takes at most. Proxies wait for a minute by default."""
DELETION_ANSWERED_AFTER_S: Final = 20.0
"""For how long a request waits for a deletion, which goes on without it."""
DELETIONS_MAX: Final = 64
"""Each one asks every few seconds whether pods are gone."""


class Clusters:
    """The clusters of one application. Its thread starts with the first request."""

    def __init__(self, *, deletion_answered_after_s: float = DELETION_ANSWERED_AFTER_S) -> None:
        self._deletion_answered_after_s = deletion_answered_after_s
        self._clients = SharedClients()
        self._deletions: dict[tuple[str, str, str], asyncio.Task[tuple[GangRef, ...]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    async def call(self, place: Place, action: Callable[[GangService], Awaitable[T]]) -> T:
        """Run an action on the cluster of a place, within `REQUEST_WITHIN_S`.

        Raises:
            TimeoutError: the time is over. What the action has begun may be repeated.
            HTTPException: the configuration does not allow the namespace.
        """

        async def bounded() -> T:
            async with asyncio.timeout(REQUEST_WITHIN_S), self._service(place) as service:
                return await action(service)

        return await self._run(bounded())

    async def compute(self, function: Callable[[], T]) -> T:
        """Return the result of a function that does not wait."""

        async def computed() -> T:
            return function()

        return await self._run(computed())

    async def delete(self, place: Place, submission_id: str) -> tuple[GangRef, ...] | None:
        """Delete a submission, and return the Jobs that it had; `None` if the deletion needs more time, and goes on.

        Requests for the same submission share a deletion.
        """
        return await self._run(self._delete(place, submission_id))

    async def aclose(self) -> None:
        """Stop the deletions that run, close the clients, and end the thread."""
        if self._loop is not None:
            await self._run(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _stop(self) -> None:
        for deletion in list(self._deletions.values()):
            deletion.cancel()
            await asyncio.wait({deletion})
        await self._clients.aclose()
        await asyncio.get_running_loop().shutdown_default_executor()

    async def _delete(self, place: Place, submission_id: str) -> tuple[GangRef, ...] | None:
        key = (place.conn_id, place.namespace, submission_id)
        deletion = self._deletions.get(key)
        if deletion is None:
            if len(self._deletions) >= DELETIONS_MAX:
                raise too_many(f"{DELETIONS_MAX} submissions are being deleted")
            deletion = self._deletions[key] = asyncio.create_task(self._delete_to_the_end(place, submission_id))
            deletion.add_done_callback(partial(self._forget_deletion, key))
        await asyncio.wait({deletion}, timeout=self._deletion_answered_after_s)
        return deletion.result() if deletion.done() else None

    async def _delete_to_the_end(self, place: Place, submission_id: str) -> tuple[GangRef, ...]:
        async with self._service(place) as service:
            return await service.delete_submission(submission_id, job=True, namespace=place.namespace)

    def _forget_deletion(self, key: tuple[str, str, str], deletion: asyncio.Task[Any]) -> None:
        del self._deletions[key]
        if not deletion.cancelled() and (error := deletion.exception()) is not None:
            log.warning("The deletion of submission %s in %s stopped: %s", key[2], key[1], error)

    @asynccontextmanager
    async def _service(self, place: Place) -> AsyncIterator[GangService]:
        hook = GangJobHook(place.conn_id, must_exist=True)
        config = await asyncio.to_thread(hook.config)
        async with self._clients.service(config) as service:
            if place.needs_own_namespace and place.namespace != service.namespace:
                raise namespace_not_allowed(place.conn_id, place.namespace)
            yield service

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_to_the_end, args=(self._loop,), name="gangjobs REST", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


def _run_to_the_end(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


__all__ = ["Clusters"]
