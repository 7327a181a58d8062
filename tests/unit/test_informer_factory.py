"""Which users share an informer, how long it runs, what a burst costs, and what an expired token does to it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_gangjobs.cluster.auth.credentials import FORCED_RENEWAL_INTERVAL_S, TOKEN_FILE_PERIOD_S
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import Informer, InformerClosedError, InformerFactory, informers
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from tests.provider.virtual_time import in_virtual_time
from tests.timeouts import TIMEOUT_S, until
from tests.unit.fault_server import (
    Connection,
    FaultServer,
    ModelApi,
    Request,
    View,
    by_name,
    config_for,
    kubeconfig,
    status,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


# -- Which users share an informer, how long the informer runs, and what happens to waiters when it ends -------------


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


# -- The whole informer over HTTP against a server with faults: requests are few, and the state converges ------------

HURRIED = InformerConfig(
    page_objects=2,
    backoff_base_s=0.02,
    backoff_cap_s=0.2,
    healthy_after_s=0.1,
    watch_timeout_s=(2.0, 3.0),
    idle_margin_s=-1.9,
    poll_interval_s=(0.04, 0.06),
    watch_retry_after_s=0.3,
)
"""Fifty times faster than usual; a silent watch is given up after 0.1 to 1.1 s."""


@asynccontextmanager
async def informer_of(
    api: ModelApi, pace: InformerConfig = HURRIED
) -> AsyncGenerator[tuple[Informer[View], FaultServer], None]:
    clock = Clock(monotonic=asyncio.get_running_loop().time, random=random.Random(7))
    registry = InformerFactory(config=pace, clock=clock)
    async with FaultServer(api.handle) as server:
        try:
            async with registry.acquire(server.config, JOBS, "team", decode=View, index=by_name) as informer:
                yield informer, server
        finally:
            await registry.aclose()


def knows(informer: Informer[View], api: ModelApi) -> bool:
    return informer.is_synced and all(
        {uid: v.value for uid, v in informer.objects(name).items()}
        == ({api.objects[name]["metadata"]["uid"]: api.objects[name]["value"]} if name in api.objects else {})
        for name in "abc"
    )


async def test_loop_is_never_blocked_by_a_burst() -> None:
    """Ten thousand events at once: other tasks of the loop run all the while.

    Counted in CPU time, and several times, since a virtual machine that is stopped for a while counts that as CPU time.
    """
    longest_s = 1.0
    for _ in range(5):
        longest_s = min(longest_s, await longest_turn_in_a_burst())
        if longest_s < 0.1:
            break
    assert longest_s < 0.1


async def longest_turn_in_a_burst() -> float:
    api = ModelApi()
    async with informer_of(api, InformerConfig()) as (informer, _):
        await informer.synced()
        await until(lambda: informer.statistics().watches_open == 1)
        lines = b"".join(
            msgspec.json.encode(
                {
                    "type": "ADDED",
                    "object": {"metadata": {"uid": f"u{i}", "name": f"n{i}", "resourceVersion": str(1000 + i)}},
                }
            )
            + b"\n"
            for i in range(10_000)
        )

        async def burst(_: Any, __: Any, connection: Any) -> None:
            connection.begin_stream()
            for start in range(0, len(lines), 2**16):
                await connection.chunk(lines[start : start + 2**16])
            await connection.silence()

        api.watch_faults.append(burst)
        api.cut_watches()
        longest_s, before = 0.0, time.thread_time()
        gc.disable()  # the test does not measure garbage collections of the process
        while informer.statistics().events < 10_000:
            await asyncio.sleep(0)
            longest_s, before = max(longest_s, time.thread_time() - before), time.thread_time()
        gc.enable()
        assert informer.statistics().objects == 10_000
        return longest_s


# -- A token expires while a watch is open: the watch continues, the next watch is refused, and no change is
#    lost ------------------------------------------------------------------------------------------------------------

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
