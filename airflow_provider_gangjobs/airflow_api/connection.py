"""The `kubernetes` connection. The worker and the triggerer read the connection by the same rules.

The default connection may be missing. Then the provider uses the kubeconfig of the environment or the service account
of the pod, as the cncf.kubernetes provider does. If any other connection is missing, the read fails.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from airflow.sdk import BaseHook, Connection
from asgiref.sync import sync_to_async

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException

DEFAULT_CONN_ID: Final = "kubernetes_default"


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


class _Read(NamedTuple):
    """A read of a connection, which may still run."""

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

    The asynchronous lookup is used from Airflow 3.3.2 on, where `aextra_dejson` exists. Earlier releases mask secrets
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
