"""Print as JSON what users of two teams may see, in an Airflow of several teams with a database of its own.

The program sets up Airflow's tables itself: each of the teams `red` and `blue` has a DAG and a connection, and a third
DAG and a third connection belong to no team.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
from airflow import settings
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models import Connection, DagModel
from airflow.models.base import Base
from airflow.models.dagbundle import DagBundleModel
from airflow.models.team import Team
from airflow.utils.session import create_session
from fastapi import FastAPI, HTTPException
from starlette.routing import Mount

from airflow_provider_gangjobs.plugins.app import make_app, readable_dags
from airflow_provider_gangjobs.plugins.rest import URL_PREFIX
from airflow_provider_gangjobs.plugins.rest_access import Place, may_read, may_use_connection, may_write

if TYPE_CHECKING:
    from collections.abc import Callable


TEAMS = ("red", "blue")
OWNERS = (*TEAMS, "nobody")
DAGS = {f"{owner}-dag" for owner in OWNERS}
TASK = "/dags/{}/dagRuns/run/taskInstances/task/-1"
ADDRESSES = (TASK, f"{TASK}/ranks/0", f"{URL_PREFIX}{TASK}/gang")


def main() -> None:
    Base.metadata.create_all(settings.engine)
    with create_session() as session:
        for owner in OWNERS:
            bundle = DagBundleModel(name=owner)
            team = Team(name=owner) if owner in TEAMS else None
            bundle.teams = [team] if team else []
            session.add(bundle)
            session.flush()
            session.add(DagModel(dag_id=f"{owner}-dag", bundle_name=owner, relative_fileloc="a", fileloc="a"))
            session.add(Connection(conn_id=f"{owner}_conn", conn_type="kubernetes", team_name=team and team.name))
    create_auth_manager()
    app = make_app()
    print(json.dumps({team: seen_by(app, team) for team in TEAMS}))


def seen_by(app: FastAPI, team: str) -> dict[str, Any]:
    user = SimpleAuthManagerUser(username=team, role="op", teams=[team])
    (rest,) = (one.app for one in app.routes if isinstance(one, Mount) and isinstance(one.app, FastAPI))
    for each in (app, rest):
        each.dependency_overrides[get_user] = lambda: user
    connections = [f"{owner}_conn" for owner in OWNERS]
    return {
        "dags": sorted(readable_dags(user, DAGS)),
        "connections": [conn_id for conn_id in connections if may_use_connection("GET", conn_id, user)],
        "read": [conn_id for conn_id in connections if is_allowed(may_read, conn_id, user)],
        "written": [conn_id for conn_id in connections if is_allowed(may_write, conn_id, user)],
        "statuses": {dag_id: asyncio.run(statuses(app, dag_id)) for dag_id in sorted(DAGS)},
    }


def is_allowed(rule: Callable[..., Place], conn_id: str, user: SimpleAuthManagerUser) -> bool:
    try:
        return bool(rule(conn_id, "default", user))
    except HTTPException:
        return False


async def statuses(app: FastAPI, dag_id: str) -> list[int]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://airflow") as client:
        return [(await client.get(address.format(dag_id))).status_code for address in ADDRESSES]


if __name__ == "__main__":
    main()
