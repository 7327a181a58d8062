"""Which users share an informer, how long the informer runs, and what happens to waiters when it ends."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.informer import InformerClosedError, InformerFactory, informers
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from tests.timeouts import TIMEOUT_S, until
from tests.unit.fault_server import Connection, FaultServer, ModelApi, Request, View, by_name, config_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class OtherView(View, frozen=True):
    pass


def by_uid(view: View) -> str:
    return view.metadata.uid


@asynccontextmanager
async def cluster(*, linger_s: float = 60) -> AsyncGenerator[tuple[InformerFactory, FaultServer, ModelApi]]:
    api = ModelApi()
    registry = InformerFactory(config=InformerConfig(linger_s=linger_s))
    async with FaultServer(api.handle) as server:
        try:
            yield registry, server, api
        finally:
            await registry.aclose()


async def test_hundred_gangs_share_one_list_and_one_watch() -> None:
    async with cluster() as (registry, server, api):

        async def gang(name: str) -> None:
            async with registry.acquire(server.config, JOBS, "team", decode=View, index=by_name) as informer:
                await informer.synced()
                subscription = informer.subscribe(name)
                while not subscription.objects():
                    await subscription.changed()

        gangs = [asyncio.create_task(gang(f"gang-{number}")) for number in range(100)]
        await until(lambda: server.count()["watch"] == 1)
        for number in range(100):
            api.put(f"gang-{number}")
        await asyncio.gather(*gangs)
        assert server.count() == {"list": 1, "watch": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"resource": PODS},
        {"namespace": "other"},
        {"label_selector": "a=b"},
        {"decode": OtherView},
        {"index": by_uid},
        {"cluster": config_for("http://127.0.0.1:1")},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_other_arguments_get_another_informer(other: dict[str, object]) -> None:
    async with cluster() as (registry, server, _):
        same = {"cluster": server.config, "resource": JOBS, "namespace": "team", "decode": View, "index": by_name}
        async with (
            registry.acquire(**same),
            registry.acquire(**{**same, **other}),
            registry.acquire(**same),
        ):
            assert len(registry.statistics()) == 2


async def test_one_client_serves_all_informers_of_a_cluster() -> None:
    made = []

    def connect(config: object) -> Client:
        made.append(Client(config))
        return made[-1]

    async with FaultServer(ModelApi().handle) as server:
        registry = InformerFactory(connect=connect)
        async with (
            registry.acquire(server.config, JOBS, decode=View, index=by_name) as jobs,
            registry.acquire(Client(server.config), PODS, decode=View, index=by_name) as pods,
        ):
            async with registry.client(server.config) as client:
                await jobs.synced()
                await pods.synced()
            assert made == [client]
        await registry.aclose()
        assert registry._clients == {}


async def test_client_is_closed_if_the_factory_is_closed_before_an_informer_has_begun() -> None:
    async with cluster() as (registry, server, _):
        async with registry.client(server.config):
            registry.acquire(server.config, JOBS, decode=View, index=by_name)
            await registry.aclose()
        assert registry.client_statistics() == {}


def test_lambda_as_index_is_refused() -> None:
    async def lease() -> None:
        async with InformerFactory().acquire(
            config_for("http://x"), JOBS, decode=View, index=lambda v: v.metadata.name
        ):
            pass

    with pytest.raises(ValueError, match="must be a function of a module"):
        asyncio.run(lease())


async def test_informer_lingers_for_the_next_user() -> None:
    async with cluster() as (registry, server, _):
        for _ in range(3):
            async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer:
                assert await informer.synced(TIMEOUT_S)
        await until(lambda: server.count()["watch"] == 1)
        assert server.count()["list"] == 1


async def test_informer_ends_after_lingering() -> None:
    async with cluster(linger_s=0.05) as (registry, server, _):
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer:
            await informer.synced()
        await until(lambda: not registry._tasks)
        assert (registry.statistics(), registry._clients) == ({}, {})
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer:
            assert await informer.synced(TIMEOUT_S)
        assert server.count()["list"] == 2


async def test_stopped_informer_drops_its_objects() -> None:
    async with cluster(linger_s=0.05) as (registry, server, api):
        for name in "abc":
            api.put(name)
        async with registry.acquire(server.config, JOBS, "team", decode=View, index=by_name) as informer:
            await informer.synced()
            store = informer._shared.store
            assert store.objects("a")
        await until(lambda: not registry._tasks)
        assert not any(store.objects(name) for name in "abc")


async def test_acquire_during_the_linger_keeps_the_informer() -> None:
    async with cluster(linger_s=0.05) as (registry, server, _):
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer:
            await informer.synced()
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer:
            began = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() > began + 0.2)
            assert informer.is_synced
        assert server.count()["list"] == 1


async def test_release_closes_subscriptions() -> None:
    async with (
        cluster() as (registry, server, _),
        registry.acquire(server.config, JOBS, decode=View, index=by_name) as kept,
    ):
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as ended:
            ended.subscribe("a")
            kept.subscribe("a")
            assert kept.statistics().subscriptions == 2
        assert kept.statistics().subscriptions == 1


async def test_closing_notifies_all_waiters() -> None:
    async with (
        cluster() as (registry, server, _),
        registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer,
    ):
        await informer.synced()
        waiting = asyncio.create_task(informer.subscribe("a").changed())
        await asyncio.sleep(0)
        await registry.aclose()
        with pytest.raises(InformerClosedError):
            await waiting


async def test_closing_before_the_first_iteration_notifies_all_waiters() -> None:
    async with (
        cluster() as (registry, server, _),
        registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer,
    ):
        subscription = informer.subscribe("a")
        await registry.aclose()
        with pytest.raises(InformerClosedError):
            await subscription.changed()


async def test_shared_task_does_not_inherit_the_context_of_a_trigger() -> None:
    """A triggerer routes log lines by a context variable, and an informer may outlive the trigger that opened it."""
    trigger = contextvars.ContextVar("trigger", default="none")
    trigger.set("first")
    seen = []

    class InformerLog(Client):
        async def list_page(self, *args: object, **options: object) -> bytes:
            seen.append(trigger.get())
            return await super().list_page(*args, **options)

    async with FaultServer(ModelApi().handle) as server:
        registry = InformerFactory(connect=InformerLog)
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer:
            await informer.synced()
        await registry.aclose()
    assert seen == ["none"]


def test_each_loop_has_its_own_informers() -> None:
    async def mine() -> InformerFactory:
        assert informers() is informers()
        return informers()

    assert asyncio.run(mine()) is not asyncio.run(mine())


def test_end_of_the_loop_closes_everything() -> None:
    """A worker runs one wait in one loop, and the process continues."""

    async def once() -> tuple[int, InformerFactory]:
        async with FaultServer(ModelApi().handle) as server:
            async with informers().acquire(server.config, JOBS, decode=View, index=by_name) as informer:
                await informer.synced()
            return len(asyncio.all_tasks()), informers()

    tasks, registry = asyncio.run(once())
    assert tasks > 1
    assert (registry._tasks, registry._clients) == (set(), {})


async def test_silence_of_the_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The check of staleness runs with each informer, and ends with the informer."""
    waits = asyncio.Queue[float]()
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        waits.put_nowait(seconds)
        await asyncio.sleep(0)
        now += seconds

    async def never(_: Request, __: ModelApi, connection: Connection) -> None:
        await connection.silence()

    api = ModelApi(list_faults=[never])
    registry = InformerFactory(clock=Clock(monotonic=lambda: now, sleep=sleep), config=InformerConfig(linger_s=0))
    async with FaultServer(api.handle) as server:
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name):
            while "informer is stale" not in caplog.text:
                await asyncio.wait_for(waits.get(), 60)
        await until(lambda: not registry._tasks)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("health")]


async def test_unexpected_error_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error does not stop the informer."""
    failures = iter([RuntimeError("defect")])

    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    class Broken(Client):
        async def list_page(self, *args: object, **options: object) -> bytes:
            for failure in failures:
                raise failure
            return await super().list_page(*args, **options)

    async with FaultServer(ModelApi().handle) as server:
        registry = InformerFactory(connect=Broken, clock=Clock(sleep=at_once))
        async with registry.acquire(server.config, JOBS, decode=View, index=by_name) as informer:
            assert await informer.synced(TIMEOUT_S)
        await registry.aclose()
    assert "restarts after an unexpected error" in caplog.text
