"""Retries a request until a deadline, if a retry is safe and may help.

A read is retried after every transient failure. A write is retried only if the server says that it did not process
the request (429, or 503 with a Retry-After). After any other failure, the caller has to find out what the write did.

One deadline for all requests of an operation, however many loops retry inside each other.

A client retries a request for a while, and an operation retries a step that failed. Without a common deadline these
retry budgets multiply. Inside a `request_deadline` block neither of them starts a retry after the deadline. The
deadline applies to the current asyncio task and to the tasks that it creates in the block.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ApiError, ClusterError, is_webhook_unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.cluster.http.log_reader import TailBuffer
    from airflow_provider_gangjobs.cluster.http.request import Request
    from airflow_provider_gangjobs.cluster.http.transport import Transport

__all__ = ["current_deadline", "request_deadline"]


_deadline: ContextVar[float] = ContextVar("request_deadline", default=math.inf)


@contextmanager
def request_deadline(at_s: float) -> Iterator[None]:
    """Start no retry after `at_s`, a time of `Clock.monotonic`, in the block. An earlier outer deadline stays."""
    token = _deadline.set(min(at_s, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def current_deadline() -> float:
    """Return the time of `Clock.monotonic` after which no retry starts; infinity without a deadline."""
    return _deadline.get()


T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_FOR_S = 60.0
"""Longer than the restart of an API server or an election of etcd takes."""
BACKOFF_BASE_S = 0.2
BACKOFF_CAP_S = 10.0


class RetryingTransport:
    """A transport that retries. Counts the requests by verb, including the retries."""

    def __init__(self, transport: Transport, clock: Clock, *, retry_for_s: float = RETRY_FOR_S) -> None:
        self._transport = transport
        self._clock = clock
        self._retry_for_s = retry_for_s
        self.requests: Counter[str] = Counter()
        self.retries = 0

    async def read(self, verb: str, request: Request, *, timeout_s: float, retry_for_s: float | None = None) -> bytes:
        """Send a request that changes nothing and return the body of the response.

        :param retry_for_s: Do not start a retry later than this many seconds from now.

        Raises:
            ClusterError: the last failure.
        """
        budget_s = self._retry_for_s if retry_for_s is None else retry_for_s
        send = partial(self._transport.send, request, timeout_s=timeout_s)
        return await self._send_with_retries(verb, send, budget_s, _is_transient)

    async def read_end(self, verb: str, request: Request, *, timeout_s: float, bytes_max: int) -> TailBuffer:
        """Send a request that changes nothing and return the last `bytes_max` bytes of the body, of any length.

        Raises:
            ClusterError: the last failure.
        """
        send = partial(self._transport.send_for_end, request, timeout_s=timeout_s, bytes_max=bytes_max)
        return await self._send_with_retries(verb, send, self._retry_for_s, _is_transient)

    async def write(self, verb: str, request: Request, *, timeout_s: float) -> bytes:
        """Send a request that changes something.

        Raises:
            ClusterError: the last failure. If `may_have_applied` is true, the server may have processed the request.
        """
        send = partial(self._transport.send, request, timeout_s=timeout_s)
        return await self._send_with_retries(verb, send, self._retry_for_s, _is_not_processed)

    async def _send_with_retries(
        self,
        verb: str,
        send: Callable[[], Awaitable[T]],
        retry_for_s: float,
        should_retry: Callable[[ClusterError], bool],
    ) -> T:
        deadline = min(self._clock.monotonic() + retry_for_s, current_deadline())
        backoff = Backoff(self._clock, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
        is_reported = False
        while True:
            self.requests[verb] += 1
            try:
                return await send()
            except ClusterError as error:
                pause_s = backoff.next(at_least_s=error.retry_after_s)
                if not should_retry(error) or self._clock.monotonic() + pause_s > deadline:
                    raise
                if is_webhook_unavailable(error) and not is_reported:
                    is_reported = True
                    log.warning("%s. The request is repeated for at most %.0f s", error, retry_for_s)
                log.debug("%s; retry in %.1f s", error, pause_s)
            self.retries += 1
            await self._clock.sleep(pause_s)


def _is_transient(error: ClusterError) -> bool:
    return error.transient


def _is_not_processed(error: ClusterError) -> bool:
    return isinstance(error, ApiError) and error.not_processed
