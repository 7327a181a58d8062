"""Faults of one request of a submission, and a gang with every object that a submission creates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.errors import Conflict, ReplyLost, ServerError, TooManyRequests, Unreachable
from airflow_provider_gangjobs.gang.spec import GangSpec
from tests.crashes import ProcessDied

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC = GangSpec(
    image="python:3.12",
    command=["python", "-c", "import time; time.sleep(600)"],
    workers=2,
    resources={"cpu": "100m"},
    files={"a.txt": "a"},
    termination_grace_s=1,
)

FAULTS: dict[str, tuple[Callable[[], BaseException], bool]] = {
    "dies before": (ProcessDied, False),
    "dies after": (ProcessDied, True),
    "409": (lambda: Conflict(409, request="request", reason="Conflict"), False),
    "429": (lambda: TooManyRequests(429, request="request", reason="TooManyRequests", retry_after_s=0.1), False),
    "500 before": (lambda: ServerError(500, request="request", reason="InternalError"), False),
    "500 after": (lambda: ServerError(500, request="request", reason="InternalError"), True),
    "503": (lambda: ServerError(503, request="request", reason="ServiceUnavailable"), False),
    "unreachable": (lambda: Unreachable("request", "injected"), False),
    "reply lost before": (lambda: ReplyLost("request", "injected"), False),
    "reply lost after": (lambda: ReplyLost("request", "injected"), True),
}
"""The error of the request, and whether the API server has applied the request."""
