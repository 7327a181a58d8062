"""Recognizes a kubelet's message that it has no log, which arrives as a log.

A kubelet removes the log of a run that another run has followed, and the logs of containers that are gone. The kubelet
answers a request for such a log with the status 200 and a message without a line end (`GetContainerLogs` in
pkg/kubelet/kuberuntime/kuberuntime_container.go).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

_BEGINNING: Final = b"unable to retrieve container logs for "
_MESSAGE: Final = re.compile(_BEGINNING + rb"[a-z0-9.-]+://[0-9a-f]*")
_BYTES_MAX: Final = 256


async def refuse_message(chunks: AsyncIterator[bytes], request: str) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a log.

    Raises:
        BadRequest: the chunks are the kubelet's message. The kubelet has no log.
    """
    held = b""
    is_decided = False
    async for chunk in chunks:
        if is_decided:
            yield chunk
            continue
        held += chunk
        is_decided = not _may_be_message(held)
        if is_decided:
            yield held
    if not is_decided and held:
        check_not_message(held, request)
        yield held


def check_not_message(log: bytes, request: str) -> None:
    """Check a whole log.

    Raises:
        BadRequest: the log is the kubelet's message. The kubelet has no log.
    """
    if len(log) <= _BYTES_MAX and _MESSAGE.fullmatch(log):
        raise BadRequest(400, request=request, message=f"the kubelet has removed the log: {log.decode()}")


def _may_be_message(log: bytes) -> bool:
    """Return whether the beginning of a log may be the beginning of the message."""
    return len(log) <= _BYTES_MAX and b"\n" not in log and log[: len(_BEGINNING)] == _BEGINNING[: len(log)]
