"""A client of the REST interface for tests: each request meets a new application, as after a restart of Airflow."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user

from airflow_provider_gangjobs.plugins.caches import SnapshotCache
from airflow_provider_gangjobs.plugins.rest import Clusters, make_api
from airflow_provider_gangjobs.plugins.rest_access import READ_DAG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from airflow_provider_gangjobs.plugins.locator import TaskRecord

ADMIN = SimpleAuthManagerUser(username="ada", role="op")
VIEWER = SimpleAuthManagerUser(username="vera", role="viewer")


@dataclass
class RestClient:
    """Sends requests for submissions of one namespace of a connection."""

    conn_id: str
    namespace: str = "default"
    user: SimpleAuthManagerUser | None = field(default_factory=lambda: ADMIN)
    record: TaskRecord | None = None
    """What Airflow's database has of the one task instance, which the user may read."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FastAPI]:
        """Make an application, as Airflow does when it starts."""
        create_auth_manager()
        clusters = Clusters()
        snapshots = SnapshotCache()
        app = make_api(snapshots, lambda key: self.record, clusters=clusters)
        if self.record is not None:
            app.dependency_overrides |= {required.dependency: lambda: None for required in READ_DAG}
        if self.user is not None:
            app.dependency_overrides[get_user] = lambda: self.user
        try:
            yield app
        finally:
            await clusters.aclose()
            await snapshots.clients.aclose()

    @asynccontextmanager
    async def application(self) -> AsyncIterator[httpx.AsyncClient]:
        """Make an application, and yield a client of it."""
        async with self.running() as app:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow", timeout=60) as client:
                yield client

    async def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request to a new application, with a path below that of the namespace."""
        async with self.application() as client:
            return await client.request(method, self.path(path), **more)

    def path(self, path: str) -> str:
        return f"/connections/{self.conn_id}/namespaces/{self.namespace}{path}"

    async def get_gang(self, **query: Any) -> httpx.Response:
        """Ask for the gang of the task instance."""
        assert self.record is not None, "the test has a task instance"
        key = self.record.key
        async with self.application() as client:
            path = f"/dags/{key.dag_id}/dagRuns/{key.run_id}/taskInstances/{key.task_id}/{key.map_index}/gang"
            return await client.get(path, params=query)

    async def put(self, submission_id: str, spec: Any, **more: Any) -> httpx.Response:
        return await self.send("PUT", submission_path(submission_id), json=spec, **more)

    async def get(self, submission_id: str, **more: Any) -> httpx.Response:
        return await self.send("GET", submission_path(submission_id), **more)

    async def delete(self, submission_id: str) -> httpx.Response:
        return await self.send("DELETE", submission_path(submission_id))


def submission_path(submission_id: str) -> str:
    return f"/submissions/{quote(submission_id, safe='')}"
