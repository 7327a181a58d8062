"""The `kubernetes` connection: which cluster, and which credentials.

The worker and the triggerer read the connection by the same rules. Credentials go into the client only: no log, error,
trigger argument, or event has them.

The default connection may be missing. Then the provider uses the kubeconfig of the environment or the service account
of the pod, as the cncf.kubernetes provider does. If any other connection is missing, the read fails.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.sdk import BaseHook, Connection
from asgiref.sync import sync_to_async

from airflow_provider_gangjobs.airflow_api.configuration import configured_links
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

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


class ClusterConnection:
    """Reads a connection, and retries. Airflow reports a connection as missing also if it could not be read.

    :param must_exist: Fail if the connection is missing, also if it is the default connection.
    """

    def __init__(self, conn_id: str, log: Logger, *, must_exist: bool = False) -> None:
        self._conn_id = conn_id
        self._log = log
        self._must_exist = must_exist
        self.exists: bool | None = None
        """Whether Airflow had the connection when it was last read. None before the first read."""

    def read(self, *, retry_for_s: float = 0.0) -> ClusterConfig:
        """Read the connection. Returns the cluster and the credentials.

        :param retry_for_s: How many seconds to retry if the connection cannot be read or used. Airflow reports a
            connection as missing also if a secrets backend could not be reached.

        Raises:
            AirflowNotFoundException: the connection is missing.
            InvalidConnection: its extras contradict each other, or a link cannot be read.
        """
        pauses = _pauses(retry_for_s)
        while True:
            try:
                return self._config(read_extras(self._conn_id))
            except Exception as error:
                time.sleep(self._pause_s(pauses, error))

    async def aread(self, *, retry_for_s: float = 0.0, max_age_s: float = 0.0) -> ClusterConfig:
        """Read the connection as `read` does, on an event loop. Does not retry if the connection is really missing.

        :param max_age_s: Accept a read of this event loop that began at most so many seconds ago.

        Raises:
            ConnectionMissing: this process does not know the connection.
        """
        from airflow_provider_gangjobs.cluster.loop_local import loop_local

        pauses = _pauses(retry_for_s)
        while True:
            try:
                return self._config(await loop_local(SharedReads).read(self._conn_id, max_age_s=max_age_s))
            except AirflowNotFoundException as error:
                if retry_for_s and await sync_to_async(is_missing)(self._conn_id):
                    raise ConnectionMissing(self._conn_id) from error
                await asyncio.sleep(self._pause_s(pauses, error))
            except Exception as error:
                await asyncio.sleep(self._pause_s(pauses, error))

    def _pause_s(self, pauses: Iterator[float], error: Exception) -> float:
        pause_s = next(pauses, None)
        if pause_s is None:
            raise error
        # The text of the error is not logged: the error of a secrets backend may contain a credential.
        self._log.warning(
            "Connection %r could not be read (%s); trying again in %.0f s",
            self._conn_id,
            type(error).__name__,
            pause_s,
        )
        return pause_s

    def _config(self, extras: dict[str, Any] | None) -> ClusterConfig:
        from airflow_provider_gangjobs.cluster.config import ClusterConfig
        from airflow_provider_gangjobs.cluster.errors import InvalidConnection

        self.exists = extras is not None
        if self._must_exist and extras is None:
            raise AirflowNotFoundException(f"Connection {self._conn_id!r} was there before, and cannot be read")
        config = ClusterConfig.from_extras(self._conn_id, extras or {})
        try:
            return replace(config, links=(*configured_links(), *config.links))
        except ValueError as error:
            problem, remedy = f"[gangjobs] links {error}", "Correct it in the configuration of Airflow."
            raise InvalidConnection(self._conn_id, problem, remedy) from None


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


class _Read(NamedTuple):
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


def _pauses(for_s: float) -> Iterator[float]:
    """Return the pauses between reads of the connection. Together they last at most `for_s` seconds."""
    from airflow_provider_gangjobs.cluster.clock import Backoff, Clock

    backoff = Backoff(Clock(), base_s=READ_PAUSE_BASE_S, cap_s=READ_PAUSE_CAP_S)
    while (pause_s := backoff.next()) <= for_s:
        for_s -= pause_s
        yield pause_s
