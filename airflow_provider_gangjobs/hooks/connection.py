"""The `kubernetes` connection. The worker and the triggerer read the connection by the same rules.

The default connection may be missing. Then the client library uses a kubeconfig or the service account of the pod, as
with the cncf.kubernetes provider. If any other connection is missing, the read fails.
"""

from __future__ import annotations

from typing import Any, Final

from airflow.sdk import BaseHook, Connection
from asgiref.sync import sync_to_async

from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowNotFoundException

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
