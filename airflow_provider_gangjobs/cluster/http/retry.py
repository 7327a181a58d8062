"""Sends a request again when that is safe and may help, until a deadline.

Reads are repeated after every transient failure. A write is repeated only if the server says that it did not
act (429, or 503 with a Retry-After); after any other failure its outcome is for the caller to find out.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ApiError, ClusterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.clock import Timing
    from airflow_provider_gangjobs.cluster.http.log_tail import TailBuffer
    from airflow_provider_gangjobs.cluster.http.transport import Exchange, Transport

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_FOR_S = 60.0
"""Longer than an API server's restart or an etcd election."""
BACKOFF_BASE_S = 0.2
BACKOFF_CAP_S = 10.0


class Persistent:
    """A transport that does not give up at the first failure; counts requests by verb, retries included."""

    def __init__(self, transport: Transport, timing: Timing, *, retry_for_s: float = RETRY_FOR_S) -> None:
        self._transport = transport
        self._timing = timing
        self._retry_for_s = retry_for_s
        self.requests: Counter[str] = Counter()
        self.retries = 0

    async def read(self, verb: str, exchange: Exchange, *, timeout_s: float, retry_for_s: float | None = None) -> bytes:
        """Send what changes nothing. Raises the last failure when the deadline has come."""
        limit_s = self._retry_for_s if retry_for_s is None else retry_for_s
        send = partial(self._transport.send, exchange, timeout_s=timeout_s)
        return await self._repeat(verb, send, limit_s, _is_transient)

    async def read_end(self, verb: str, exchange: Exchange, *, timeout_s: float, bytes_max: int) -> TailBuffer:
        """As `read`, of a body of any length, of which the end is kept."""
        send = partial(self._transport.send_for_end, exchange, timeout_s=timeout_s, bytes_max=bytes_max)
        return await self._repeat(verb, send, self._retry_for_s, _is_transient)

    async def write(self, verb: str, exchange: Exchange, *, timeout_s: float) -> bytes:
        """Send what changes something. A failure with `may_have_applied` leaves open whether it did."""
        send = partial(self._transport.send, exchange, timeout_s=timeout_s)
        return await self._repeat(verb, send, self._retry_for_s, _is_not_processed)

    async def _repeat(
        self,
        verb: str,
        send: Callable[[], Awaitable[T]],
        retry_for_s: float,
        may_repeat: Callable[[ClusterError], bool],
    ) -> T:
        deadline = self._timing.monotonic() + retry_for_s
        backoff = Backoff(self._timing, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
        while True:
            self.requests[verb] += 1
            try:
                return await send()
            except ClusterError as error:
                pause_s = backoff.next(at_least_s=error.retry_after_s)
                if not may_repeat(error) or self._timing.monotonic() + pause_s > deadline:
                    raise
                log.debug("%s; again in %.1f s", error, pause_s)
            self.retries += 1
            await self._timing.sleep(pause_s)


def _is_transient(error: ClusterError) -> bool:
    return error.transient


def _is_not_processed(error: ClusterError) -> bool:
    return isinstance(error, ApiError) and error.not_processed
