"""The `kubernetes` connection: which cluster, and which credentials.

The worker and the triggerer read the connection by the same rules. Credentials go into the client only: no log, error,
trigger argument, or event has them.

The default connection may be missing. Then the provider uses the kubeconfig of the environment or the service account
of the pod, as the cncf.kubernetes provider does. If any other connection is missing, the read fails.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook, Connection
from asgiref.sync import sync_to_async
from msgspec import Struct

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_CONN_ID: Final = "kubernetes_default"

READ_PAUSE_BASE_S: Final = 1.0
READ_PAUSE_CAP_S: Final = 30.0
"""The longest pause between two reads of a connection."""


class ConnectionMissing(AirflowNotFoundException):
    """The process of a trigger does not know a connection that its worker has read."""

    def __init__(self, conn_id: str) -> None:
        super().__init__(
            f"The triggerer on {socket.gethostname()} has no connection {conn_id!r}, although a worker has it. Define "
            "it in Airflow's database, in a secrets backend of all processes, or in the environment of triggerers too"
        )


def read_extras(conn_id: str) -> dict[str, Any] | None:
    """Return the extras of the connection, or `None` if the default connection is missing. Blocks.

    Raises:
        AirflowNotFoundException: the connection is missing and is not the default connection.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        if conn_id != DEFAULT_CONN_ID:
            raise
        return None
    extras: dict[str, Any] = connection.extra_dejson
    return extras


def is_missing(conn_id: str) -> bool:
    """Return whether Airflow says that it has no such connection, and no other place has it or fails. Blocks.

    The usual lookup says the same of a connection that could not be read.
    """
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    try:
        if any(backend.get_connection(conn_id=conn_id) for backend in ensure_secrets_backend_loaded()):
            return False
        answer: Any = task_runner.SUPERVISOR_COMMS.send(GetConnection(conn_id=conn_id))
    except Exception:  # a secrets backend may raise anything
        return False
    return isinstance(answer, ErrorResponse) and answer.error.name == "CONNECTION_NOT_FOUND"


class _Read(Struct, frozen=True):
    extras: asyncio.Task[dict[str, Any] | None]
    began_at: float
    """The time of the event loop, in seconds."""


class SharedReads:
    """The last read of each connection on one event loop. The callers that ask at about the same time share a read.

    Each read in a triggerer costs up to four messages to its supervisor, which queries the database of Airflow after
    each message. So a triggerer that starts with a thousand gangs reads their connection once.
    """

    def __init__(self) -> None:
        self._reads: dict[str, _Read] = {}

    async def read(self, conn_id: str, *, max_age_s: float) -> dict[str, Any] | None:
        """Return the extras as `aread_extras` does, from a read that began at most `max_age_s` seconds ago.

        If a read fails, it fails for all who wait for it, and the next caller reads again.

        Raises:
            AirflowNotFoundException: the connection is missing and is not the default connection.
        """
        loop = asyncio.get_running_loop()
        read = self._reads.get(conn_id)
        if read is None or loop.time() - read.began_at >= max_age_s:
            read = self._reads[conn_id] = _Read(loop.create_task(aread_extras(conn_id)), loop.time())
        try:
            # The cancellation of one caller does not end the read of the others.
            return await asyncio.shield(read.extras)
        except Exception:
            if self._reads.get(conn_id) is read:
                del self._reads[conn_id]
            raise


async def aread_extras(conn_id: str) -> dict[str, Any] | None:
    """Return the extras of the connection, or `None` if the default connection is missing. For code on an event loop.

    The asynchronous lookup is used from Airflow 3.3.2 on, where `aextra_dejson` exists. Earlier versions mask secrets
    by a blocking call on the loop. Under `dag.test()` the asynchronous lookup does not find the connections of the
    metadata database, so a connection that is not found is looked up again by the blocking lookup, in a thread.

    Raises:
        AirflowNotFoundException: the connection is missing and is not the default connection.
    """
    if hasattr(Connection, "aextra_dejson"):
        try:
            connection = await BaseHook.aget_connection(conn_id)
            extras: dict[str, Any] = await connection.aextra_dejson()
        except AirflowNotFoundException:
            pass
        else:
            return extras
    # Not `asyncio.to_thread`: concurrent blocking lookups crash the triggerer (airflow#66412). This uses one thread.
    return await sync_to_async(read_extras)(conn_id)


def pauses_of(for_s: float) -> Iterator[float]:
    """Return the pauses between reads of the connection. Together they last at most `for_s` seconds."""
    from airflow_provider_gangjobs.cluster.clock import Backoff, Clock

    backoff = Backoff(Clock(), base_s=READ_PAUSE_BASE_S, cap_s=READ_PAUSE_CAP_S)
    while (pause_s := backoff.next()) <= for_s:
        for_s -= pause_s
        yield pause_s
