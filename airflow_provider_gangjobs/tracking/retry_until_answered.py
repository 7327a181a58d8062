"""Cluster requests that are repeated until they are answered.

A follower may wait for days, and an API server that is down comes back, so the number of retries is not limited. Only a
refusal that has lasted (missing permission, an untrusted certificate, a connection that cannot be used) ends the
retries, because a person has to correct the cause.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.cluster.errors import ClusterError, InvalidConnection, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")

REFUSED_FOR_S: Final = 300.0
"""Long enough for a token to be rotated, a webhook to restart, or a role to be corrected."""
PAUSE_BASE_S: Final = 0.5
PAUSE_CAP_S: Final = 30.0


class ClusterRefused(Exception):  # noqa: N818 - a state of the cluster
    """The cluster has refused a request for `REFUSED_FOR_S`, or cannot be reached at all. `error` is the last error."""

    def __init__(self, error: ClusterError) -> None:
        self.error = error
        super().__init__(str(error))


async def retry_until_answered(request: Callable[[], Awaitable[T]], *, clock: Clock) -> T:
    """Repeat a request until it is answered. "No such object" is an answer.

    Raises:
        NotFound: The object does not exist.
        ClusterRefused: The request was refused for `REFUSED_FOR_S`, or cannot be sent.
    """
    backoff = Backoff(clock, base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)
    refused_since: float | None = None
    while True:
        try:
            return await request()
        except NotFound:
            raise
        except InvalidConnection as error:
            raise ClusterRefused(error) from error
        except ClusterError as error:
            now = clock.monotonic()
            if error.transient or error.may_have_applied:
                refused_since = None
            elif refused_since is None:
                refused_since = now
            if refused_since is not None and now - refused_since >= REFUSED_FOR_S:
                raise ClusterRefused(error) from error
            await clock.sleep(backoff.next(at_least_s=error.retry_after_s))


async def gather_or_cancel(*requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all at once and return the results in order. If one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
