"""Who may use which namespaces by the REST interface, and how much: permissions, and limits of requests.

A submission belongs to no DAG, so the connection decides, twice:

* **Airflow's permission for the connection**: `GET` to read submissions, `PUT` to write them. Whoever may change a
  connection can use its credentials anyway, so the REST interface gives nobody more than Airflow has given.
* **The configuration** names the connections, and their namespaces, for which the interface is on: none by default.

Airflow's `requires_access_connection` is not used: in an Airflow of several teams it reads the whole body of the
request as JSON, before any limit, because it expects a connection there.

The size of a request, and how many requests a user may send, are limited for one process of the API server. The limits
keep one client from slowing Airflow and the clusters down.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models import Connection
from fastapi import Depends, HTTPException, Path

from airflow_provider_gangjobs.airflow_api.configuration import SECTION, conf
from airflow_provider_gangjobs.kube.names import is_dns_label
from airflow_provider_gangjobs.plugins.clusters import ALL_NAMESPACES, OWN_NAMESPACE, named_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import Request


READ_OPTION: Final = "rest_connections"
WRITE_OPTION: Final = "rest_write_connections"

READ_ENTITIES: Final = (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.TASK_LOGS)
READ_DAG: Final = [Depends(requires_access_dag(method="GET", access_entity=entity)) for entity in READ_ENTITIES]
"""Reading what a gang of a task does. It shows messages that the user's program has written."""


@dataclass(frozen=True)
class Place:
    """A namespace of a connection's cluster, which a user may read or write."""

    conn_id: str
    namespace: str
    user: str
    needs_own_namespace: bool
    """The configuration allows only the namespace of the connection, which the reader of the connection compares."""


def may_read(connection_id: Annotated[str, Path()], namespace: Annotated[str, Path()], user: GetUserDep) -> Place:
    """Return the place in the address of a request that changes nothing.

    Raises:
        HTTPException: 401, 403, or 404 if the address names no namespace.
    """
    return _place("GET", connection_id, namespace, user)


def may_write(connection_id: Annotated[str, Path()], namespace: Annotated[str, Path()], user: GetUserDep) -> Place:
    """Return the place in the address of a request that submits or deletes. Raises as `may_read` does."""
    return _place("PUT", connection_id, namespace, user)


ReadPlace = Annotated[Place, Depends(may_read)]
WritePlace = Annotated[Place, Depends(may_write)]


def _place(method: Literal["GET", "PUT"], conn_id: str, namespace: str, user: GetUserDep) -> Place:
    if not may_use_connection(method, conn_id, user):
        what = "read" if method == "GET" else "edit"
        raise HTTPException(403, f"This needs Airflow's permission to {what} the connection {conn_id!r}")
    options = (WRITE_OPTION,) if method == "PUT" else (READ_OPTION, WRITE_OPTION)
    allowed = {one.namespace for option in options for one in named_sources(option) if one.conn_id == conn_id}
    if not allowed:
        raise HTTPException(403, f"[{SECTION}] {options[0]} in Airflow's configuration does not name {conn_id!r}")
    if not is_dns_label(namespace):
        raise HTTPException(404, "The address has no name of a namespace")
    is_named = bool(allowed & {namespace, ALL_NAMESPACES})
    if not is_named and OWN_NAMESPACE not in allowed:
        raise namespace_not_allowed(conn_id, namespace, options[0])
    return Place(conn_id, namespace, str(user.get_id()), needs_own_namespace=not is_named)


def may_use_connection(method: Literal["GET", "PUT"], conn_id: str, user: Any) -> bool:
    """Return whether Airflow lets the user read or edit a connection. The call blocks."""
    has_teams = conf.getboolean("core", "multi_team", fallback=False)
    details = ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id) if has_teams else None)
    return bool(get_auth_manager().is_authorized_connection(method=method, details=details, user=user))


def namespace_not_allowed(conn_id: str, namespace: str, option: str = f"{READ_OPTION} or {WRITE_OPTION}") -> Exception:
    """Return the error for a namespace that the configuration does not name."""
    entry = f"{conn_id}/{namespace}"
    return HTTPException(403, f"[{SECTION}] {option} in Airflow's configuration does not name {entry!r}")


BODY_BYTES_MAX: Final = 4 * 2**20
"""The API server of a cluster accepts 3 MiB for one object, and a gang has one object with files."""
DISCARDED_BYTES_MAX: Final = 16 * 2**20
"""How much of a larger body is read and thrown away. Most clients see an answer only after they have sent the body."""
_DIGITS_MAX: Final = len(str(BODY_BYTES_MAX + DISCARDED_BYTES_MAX))
BODY_WITHIN_S: Final = 30.0
AT_ONCE_MAX: Final = 32
AT_ONCE_OF_USER_MAX: Final = 16
REQUESTS_PER_S: Final = 10.0
BURST: Final = 100.0
"""How many requests a user may send at once who has sent none for a while."""


@dataclass
class Limits:
    """Counts the requests of users."""

    clock: Callable[[], float] = time.monotonic
    _running: Counter[str] = field(default_factory=Counter, init=False)
    _left: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """By user, how many requests were left when the last one came, and when that was."""

    @contextmanager
    def admit(self, user: str) -> Iterator[None]:
        """Count a request of the user while the block runs.

        Raises:
            HTTPException: 429 with `Retry-After`, if the user or all users together send too many.
        """
        left, at = self._left.get(user, (BURST, 0.0))
        now = self.clock()
        left = min(BURST, left + (now - at) * REQUESTS_PER_S)
        if left < 1:
            raise _too_many(f"You may send {REQUESTS_PER_S:.0f} requests per second")
        if self._running[user] >= AT_ONCE_OF_USER_MAX or self._running.total() >= AT_ONCE_MAX:
            raise _too_many(f"You may send {AT_ONCE_OF_USER_MAX} requests at once, and all users {AT_ONCE_MAX}")
        self._left[user] = (left - 1, now)
        self._running[user] += 1
        try:
            yield
        finally:
            self._running[user] -= 1


def _too_many(limit: str) -> HTTPException:
    return HTTPException(429, f"Too many requests. {limit}", {"Retry-After": "1"})


async def read_json(request: Request) -> bytes:
    """Return the body of a request, which is not decoded. A body that is too large is not kept.

    Raises:
        HTTPException: 408, 413, or 415. Only JSON is accepted, which a form on another website cannot send.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "Send the body with the header Content-Type: application/json")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > _DIGITS_MAX or int(declared) > BODY_BYTES_MAX + DISCARDED_BYTES_MAX):
        raise _too_large()
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                size += len(part)
                if size <= BODY_BYTES_MAX:
                    body += part
                elif size > BODY_BYTES_MAX + DISCARDED_BYTES_MAX:
                    break
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {BODY_WITHIN_S:.0f} seconds") from None
    if size > BODY_BYTES_MAX:
        raise _too_large()
    return bytes(body)


def _too_large() -> HTTPException:
    remedy = "Store large files as uploads, which several requests may send"
    return HTTPException(413, f"The body has more than {BODY_BYTES_MAX:,} bytes. {remedy}")
