"""A token expires while a watch is open: the watch continues, the next watch is refused, and no change is lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.auth.credentials import FORCED_RENEWAL_INTERVAL_S, TOKEN_FILE_PERIOD_S
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import Informer, InformerFactory
from airflow_provider_gangjobs.cluster.resources import JOBS
from tests.provider.virtual_time import in_virtual_time
from tests.unit.fault_server import Connection, FaultServer, ModelApi, Request, kubeconfig, status
from tests.unit.test_informer_faults import View, by_name, knows, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

WITHIN_S = 600


@dataclass
class Guarded:
    """An API that accepts one token, and checks the token only at the beginning of a request."""

    api: ModelApi
    token: str

    async def handle(self, request: Request, connection: Connection) -> None:
        if request.headers.get("authorization") == f"Bearer {self.token}":
            await self.api.handle(request, connection)
        else:
            await connection.reply(401, status(401, "Unauthorized"))


@dataclass
class Watched:
    """An informer that has synced and watches with a token from a file."""

    informer: Informer[View]
    api: ModelApi
    guard: Guarded
    server: FaultServer
    file: Path

    def expire(self) -> None:
        """Let the API refuse the token that is in use."""
        self.guard.token = "second"

    def renew(self) -> None:
        """Write the new token to the file."""
        self.file.write_text("second")

    def cut_and_miss(self) -> None:
        """End the watch, and change objects before the next watch."""
        self.api.cut_watches()
        self.api.put("a", "changed")
        self.api.delete("b")
        self.api.put("c", "new")

    @property
    def watches(self) -> list[tuple[str, str]]:
        """The resource version and the token of each watch request."""
        return [
            (request.query["resourceVersion"], request.headers["authorization"].removeprefix("Bearer "))
            for request in self.server.requests
            if request.is_watch
        ]


@asynccontextmanager
async def watched(folder: Path) -> AsyncGenerator[Watched, None]:
    file = folder / "token"
    file.write_text("first")
    api = ModelApi()
    api.put("a", "1")
    api.put("b", "1")
    guard = Guarded(api, "first")
    clock = Clock(monotonic=asyncio.get_running_loop().time, random=random.Random(7))
    registry = InformerFactory(clock=clock, connect=lambda config: Client(config, clock=clock))
    async with FaultServer(guard.handle) as server:
        user = {"tokenFile": str(file)}
        config = ClusterConfig.from_extras("test", {"kube_config": kubeconfig(server.url, user=user)})
        try:
            async with registry.acquire(config, JOBS, "team", decode=View, index=by_name) as informer:
                await until(lambda: informer.statistics().watches_open == 1)
                yield Watched(informer, api, guard, server, file)
        finally:
            await registry.aclose()


@in_virtual_time
async def test_open_watch_outlives_its_token(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        it.expire()
        it.api.put("a", "2")
        await until(lambda: knows(it.informer, it.api))
        assert len(it.watches) == 1
        assert it.informer.problem is None


@in_virtual_time
async def test_watch_continues_with_the_renewed_token_from_its_version(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        gone = it.informer.subscribe("b")
        await asyncio.sleep(10)  # a watch that was open for a while is resumed at once
        version = str(it.api.version)
        it.expire()
        it.renew()
        it.cut_and_miss()
        await until(lambda: knows(it.informer, it.api))
        assert it.watches[1:] == [(version, "first"), (version, "second")]
        assert [view.value for view in gone.take_deleted().values()] == ["1"]
        statistics = it.informer.statistics()
        assert (statistics.lists, statistics.back_offs, statistics.problem) == (1, 0, None)


@in_virtual_time
async def test_token_that_is_due_is_read_again_before_a_request_is_refused(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        await asyncio.sleep(TOKEN_FILE_PERIOD_S + 1)
        it.expire()
        it.renew()
        it.cut_and_miss()
        await until(lambda: knows(it.informer, it.api))
        assert [token for _, token in it.watches] == ["first", "second"]


@pytest.mark.parametrize("late_s", [1.0, FORCED_RENEWAL_INTERVAL_S, 45.0])
@in_virtual_time
async def test_token_that_is_renewed_late_is_waited_for(tmp_path: Path, late_s: float) -> None:
    async with watched(tmp_path) as it:
        gone = it.informer.subscribe("b")
        await asyncio.sleep(10)
        it.expire()
        it.cut_and_miss()
        await asyncio.sleep(late_s)
        assert it.informer.problem is not None
        assert "401" in it.informer.problem
        it.renew()
        await until(lambda: knows(it.informer, it.api), within_s=WITHIN_S)
        assert [view.value for view in gone.take_deleted().values()] == ["1"]
        assert len(it.server.requests) <= 20
        await until(lambda: it.informer.problem is None)
