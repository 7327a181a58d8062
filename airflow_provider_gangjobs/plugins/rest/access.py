"""Who may use which namespaces by the REST interface.

A submission belongs to no DAG, so the connection decides, twice:

* **Airflow's permission for the connection**: `GET` to read submissions, `PUT` to write them. Whoever may change a
  connection can use its credentials anyway, so the REST interface gives nobody more than Airflow has given.
* **The configuration** names the connections, and their namespaces, for which the interface is on: none by default.

Airflow's `requires_access_connection` is not used: in an Airflow of several teams it reads the whole body of the
request as JSON, before any limit, because it expects a connection there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models import Connection
from fastapi import Depends, HTTPException, Path

from airflow_provider_gangjobs.airflow_api.configuration import SECTION, conf
from airflow_provider_gangjobs.kube.names import is_dns_label
from airflow_provider_gangjobs.plugins.list_source import ALL_NAMESPACES, OWN_NAMESPACE, named_sources

READ_OPTION: Final = "rest_connections"
WRITE_OPTION: Final = "rest_write_connections"

READ_DAG: Final = [
    Depends(requires_access_dag(method="GET", access_entity=entity))
    for entity in (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.TASK_LOGS)
]
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
    team = Connection.get_team_name(conn_id) if conf.getboolean("core", "multi_team", fallback=False) else None
    details = ConnectionDetails(conn_id=conn_id, team_name=team) if team else ConnectionDetails(conn_id=conn_id)
    if not get_auth_manager().is_authorized_connection(method=method, details=details, user=user):
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


def namespace_not_allowed(conn_id: str, namespace: str, option: str = f"{READ_OPTION} or {WRITE_OPTION}") -> Exception:
    """Return the error for a namespace that the configuration does not name."""
    entry = f"{conn_id}/{namespace}"
    return HTTPException(403, f"[{SECTION}] {option} in Airflow's configuration does not name {entry!r}")
