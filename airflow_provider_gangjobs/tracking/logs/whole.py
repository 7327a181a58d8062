"""Reads a log from its beginning, or from a position, to its end, in chunks and over broken connections."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.http.log_parser import LogCursor, LogParser
from airflow_provider_gangjobs.cluster.http.options import LogQuery
from airflow_provider_gangjobs.cluster.resources import PODS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.http.log_parser import LogPosition
    from airflow_provider_gangjobs.tracking.logs.sources import LogSource

FAILURES_MAX: Final = 5
"""How many requests in a row may fail before the rest of a log is given up."""
BACKOFF_BASE_S: Final = 0.5
BACKOFF_CAP_S: Final = 10.0


LOG_SHORTENED: Final = "the kubelet has rotated the log while it was read"
"""What `LogShortened` means, for people."""


class LogShortened(Exception):  # noqa: N818 - a state of the log
    """The log is shorter than it was, because the kubelet has rotated its file."""


async def read_log_chunks(client: Client, source: LogSource, query: LogQuery) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a log. After a broken connection the log is requested again, and what was read is skipped.

    The log of a container that has ended does not change. The log of a container that runs may only grow.

    Raises:
        ClusterError: the log cannot be read.
        LogShortened: the log became shorter while it was read.
    """
    query = replace(query, container=source.container)
    backoff = Backoff(client.clock, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S)
    read = failures = 0
    while True:
        to_skip = read
        try:
            async with client.open_log(source.pod, source.namespace, query) as chunks:
                async for chunk in chunks:
                    skipped = min(to_skip, len(chunk))
                    to_skip -= skipped
                    if skipped < len(chunk):
                        read += len(chunk) - skipped
                        failures = 0
                        yield chunk[skipped:]
        except ClusterError as error:
            failures += 1
            may_succeed = error.transient or (isinstance(error, NotFound) and await pod_exists(client, source))
            if failures >= FAILURES_MAX or not may_succeed:
                raise
            await client.clock.sleep(backoff.next(at_least_s=error.retry_after_s))
        else:
            if to_skip:
                raise LogShortened
            return


async def pod_exists(client: Client, source: LogSource) -> bool:
    """Return whether the pod of a log exists, or may exist.

    A kubelet that has just started does not know its pods, and answers that the pod of a log does not exist.
    """
    try:
        await client.get(PODS, source.pod, source.namespace)
    except NotFound:
        return False
    except ClusterError:
        return True
    return True


async def read_rest(
    client: Client, source: LogSource, position: LogPosition, on_other_file: Callable[[], None]
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a log after a position.

    :param on_other_file: Called if the log is not the one of the position. Then all of it since that time follows.

    Raises:
        ClusterError, LogShortened: as for `read_log_chunks`.
    """
    cursor = LogCursor(position)
    parser = LogParser(timestamps=True)
    query = LogQuery(since_s=cursor.begin(), timestamps=True)
    was_other_file = False
    chunks = read_log_chunks(client, source, query)
    async with aclosing(chunks):
        async for chunk in chunks:
            parts = cursor.new_parts(parser.feed(chunk))
            if cursor.is_other_file and not was_other_file:
                was_other_file = True
                on_other_file()
            yield b"".join(part.text + b"\n" if part.ends else part.text for part in parts)
    yield b"".join(part.text for part in cursor.new_parts(parser.end()))
