"""The `kubernetes` connection, read alike by the worker and by the triggerer.

The default connection may be missing: then the client library finds a kubeconfig or the pod's
service account by itself, as with the cncf.kubernetes provider. Any other missing one is an error.
"""

from __future__ import annotations

from typing import Any, Final

from airflow.sdk import BaseHook, Connection
from asgiref.sync import sync_to_async

from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowNotFoundException

DEFAULT_CONN_ID: Final = "kubernetes_default"


def read_extras(conn_id: str) -> dict[str, Any] | None:
    """Extras of the connection, `None` if it is the default one and missing. Blocks, so not for an event loop.

    Raises:
        AirflowNotFoundException: there is no such connection, and it is not the default one.
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
    """Extras of the connection, `None` if it is the default one and missing; on an event loop.

    The asynchronous lookup is used from Airflow 3.3.2 on, which `aextra_dejson` tells: before, it masks
    secrets by a blocking call on the loop. It knows no connections of the metadata database under
    `dag.test()`, so what it does not find is looked up again by the blocking one, in a thread.

    Raises:
        AirflowNotFoundException: there is no such connection, and it is not the default one.
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
