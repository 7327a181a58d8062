"""How requests and responses travel: requests, transports, retries, and logs.

A client has one of two transports, which keep the same rules (`transport.Transport`) and differ in what they cost. Only
the chosen one is imported:

* `for_few_requests` (httpx) handles a handful of requests, as in the process of one task, which has loaded httpx.
* `for_watches` (aiohttp) takes 100 ms of CPU to load, and reads the events of a busy watch for half of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.http.transport import Transport

    ChooseTransport = Callable[[], type[Transport]]

__all__ = ["for_few_requests", "for_watches"]


def for_few_requests() -> type[Transport]:
    """Return the transport of a process that sends some requests and ends."""
    from airflow_provider_gangjobs.cluster.http.httpx_transport import HttpxTransport

    return HttpxTransport


def for_watches() -> type[Transport]:
    """Return the transport of a process that watches many objects for a long time."""
    from airflow_provider_gangjobs.cluster.http.aiohttp_transport import AiohttpTransport

    return AiohttpTransport
