"""The transports of a client, which differ in what they cost. Only the chosen transport is imported.

* `for_few_requests` takes 10 ms of CPU to load and handles a handful of requests, as in the process of one task.
* `for_watches` takes 170 ms of CPU to load and reads the events of a busy watch for half of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.auth.credentials import Credentials
    from airflow_provider_gangjobs.cluster.http.transport import Transport


def for_few_requests(credentials: Credentials, *, tcp_keepalive: bool, monotonic: Callable[[], float]) -> Transport:
    """Return the transport of a process that sends some requests and ends."""
    from airflow_provider_gangjobs.cluster.http.httpx_transport import HttpxTransport

    return HttpxTransport(credentials, tcp_keepalive=tcp_keepalive, monotonic=monotonic)


def for_watches(credentials: Credentials, *, tcp_keepalive: bool, monotonic: Callable[[], float]) -> Transport:
    """Return the transport of a process that watches many objects for a long time."""
    from airflow_provider_gangjobs.cluster.http.aiohttp_transport import AiohttpTransport

    return AiohttpTransport(credentials, tcp_keepalive=tcp_keepalive, monotonic=monotonic)


class TransportFactory(Protocol):
    """Returns a transport: `for_few_requests` or `for_watches`."""

    def __call__(
        self, credentials: Credentials, *, tcp_keepalive: bool, monotonic: Callable[[], float]
    ) -> Transport: ...
