"""Replies of an API server that a test requires, and the wait until a server answers."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httpx

from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S: Final = 0.1


def accepted(reply: httpx.Response) -> dict[str, Any]:
    """Return the object in the reply of a request that must succeed."""
    assert reply.is_success, f"{reply.request.method} {reply.request.url}: {reply.status_code} {reply.text}"
    answer: dict[str, Any] = reply.json()
    return answer


def is_healthy(url: str) -> bool:
    """Return whether a program on this machine answers its health check with 200.

    :raises httpx.TransportError: The program does not answer.
    """
    # Health checks need no authentication. With `verify`, each request would read the certificates of the system.
    return httpx.get(url, verify=False, trust_env=False).status_code == httpx.codes.OK


def wait_until(is_done: Callable[[], bool], what: str) -> None:
    """Wait until the condition is met. The wait goes on while the server does not answer.

    :param what: The condition, for the message of a failure.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with suppress(httpx.TransportError):
            if is_done():
                return
        assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT_S:g} s"
        time.sleep(POLL_S)
