"""Asking a cluster for as long as it takes: faults that pass are waited out, refusals that stay are not.

An API server that is down comes back, and a gang may wait for days, so no count of retries ends the asking.
Only a refusal that has lasted (no permission, no trust, a connection that cannot be used) does: nobody
will change it while nobody hears of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_gangjobs.cluster.clock import Backoff, Timing
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid, InvalidConnection, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")

REFUSED_FOR_S: Final = 300.0
"""Long enough for a rotated token, a restarted webhook or a repaired role."""
PAUSE_BASE_S: Final = 0.5
PAUSE_CAP_S: Final = 30.0


class ClusterRefuses(Exception):  # noqa: N818 - a state of the cluster
    """The cluster has refused to answer for `REFUSED_FOR_S`; `error` is its last word."""

    def __init__(self, error: ClusterError) -> None:
        self.error = error
        super().__init__(str(error))


async def ask(request: Callable[[], Awaitable[T]], *, timing: Timing) -> T:
    """Repeat a request until it is answered; that there is no such object is an answer.

    Raises:
        NotFound: there is no such object.
        ClusterRefuses: it was refused for `REFUSED_FOR_S`, or can never be sent.
    """
    backoff = Backoff(timing, base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)
    refused_since: float | None = None
    while True:
        try:
            return await request()
        except NotFound:
            raise
        except InvalidConnection as error:
            raise ClusterRefuses(error) from error
        except ClusterError as error:
            now = timing.monotonic()
            refused_since = None if error.transient or error.may_have_applied else refused_since or now
            if refused_since is not None and now - refused_since >= REFUSED_FOR_S:
                raise ClusterRefuses(error) from error
            await timing.sleep(backoff.next(at_least_s=error.retry_after_s))


async def together(*questions: Coroutine[Any, Any, Any]) -> list[Any]:
    """Ask all at once; the answers in order. If one fails, the others are cancelled, and its error is raised."""
    tasks = [asyncio.create_task(question) for question in questions]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_of_another_uid(error: Exception) -> bool:
    """A patch met another object of this name: 409, or 422 because the uid of an object never changes."""
    if isinstance(error, Invalid):
        causes = error.details.get("causes") or ()
        return any(cause.get("field") == "metadata.uid" for cause in causes)
    return isinstance(error, Conflict)
