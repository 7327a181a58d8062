"""Fault injection: what the client receives, and whether the server executes the request."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gangjobs_sandbox.api import Fault, FaultKind, Faults, create_app, serving
from gangjobs_sandbox.registry import Registry
from tests.timeouts import TIMEOUT_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATH = "/api/v1/namespaces/default/configmaps"
OBJ = {"metadata": {"name": "a"}}


class Bench:
    """A served API with fault injection, a client, and the registry."""

    def __init__(self, registry: Registry, faults: Faults, http: httpx.AsyncClient) -> None:
        self.registry, self.faults, self.http = registry, faults, http

    def arm(self, kind: FaultKind, **conditions: Any) -> Fault:
        return self.faults.add(Fault(kind, **conditions))

    @property
    def has_object(self) -> bool:
        return self.registry.find("configmaps", "default", "a") is not None


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Bench]:
    registry, faults = Registry(), Faults()
    app = create_app(registry, token=None, faults=faults, **options)
    async with serving(app) as address, client(address.url) as http:
        yield Bench(registry, faults, http)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with served() as bench:
        yield bench


@pytest.mark.parametrize(("code", "reason"), [(410, "Expired"), (500, "InternalError"), (503, "ServiceUnavailable")])
async def test_refused_request_is_not_executed(bench: Bench, code: int, reason: str) -> None:
    bench.arm(FaultKind.STATUS, code=code)
    response = await bench.http.post(PATH, json=OBJ)
    assert (response.status_code, response.json()["reason"], bench.has_object) == (code, reason, False)


async def test_refusal_can_have_retry_after(bench: Bench) -> None:
    bench.arm(FaultKind.STATUS, code=429, retry_after_s=7)
    response = await bench.http.get(PATH)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "7")
    assert response.json()["details"]["retryAfterSeconds"] == 7


async def test_request_refused_afterwards_is_executed(bench: Bench) -> None:
    bench.arm(FaultKind.STATUS_AFTER, code=504)
    response = await bench.http.post(PATH, json=OBJ)
    assert (response.status_code, bench.has_object) == (504, True)


@pytest.mark.parametrize(("kind", "applied"), [(FaultKind.DROP_BEFORE, False), (FaultKind.DROP_AFTER, True)])
async def test_connection_breaks_before_or_after_the_write(bench: Bench, kind: FaultKind, applied: bool) -> None:
    bench.arm(kind, method="POST")
    with pytest.raises(httpx.TransportError):
        await bench.http.post(PATH, json=OBJ)
    assert bench.has_object is applied


async def test_fault_expires_after_its_count(bench: Bench) -> None:
    bench.arm(FaultKind.STATUS, times=2)
    codes = [(await bench.http.get(PATH)).status_code for _ in range(3)]
    assert codes == [500, 500, 200]


async def test_fault_can_skip_requests(bench: Bench) -> None:
    bench.arm(FaultKind.STATUS, skip=1)
    codes = [(await bench.http.get(PATH)).status_code for _ in range(3)]
    assert codes == [200, 500, 200]


async def test_fault_applies_only_to_matching_requests(bench: Bench) -> None:
    bench.arm(FaultKind.STATUS, method="GET", path="pods", query="watch=", times=None)
    assert (await bench.http.get(PATH)).status_code == 200
    assert (await bench.http.get("/api/v1/pods")).status_code == 200
    assert (await bench.http.get("/api/v1/pods?watch=1")).status_code == 500


async def test_delayed_request_is_executed_late(bench: Bench) -> None:
    bench.arm(FaultKind.DELAY, delay_s=0.05)
    started = asyncio.get_running_loop().time()
    assert (await bench.http.post(PATH, json=OBJ)).status_code == 201
    assert asyncio.get_running_loop().time() - started >= 0.05


async def test_half_open_watch_delivers_nothing(bench: Bench) -> None:
    """The connection stays open, but delivers no events."""
    bench.arm(FaultKind.HALF_OPEN, query="watch=")
    bench.registry.create("configmaps", OBJ)
    async with bench.http.stream("GET", PATH, params={"watch": "1"}) as response:
        assert response.status_code == 200
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(response.aiter_lines())


async def test_half_open_response_delivers_nothing(bench: Bench) -> None:
    bench.arm(FaultKind.HALF_OPEN)
    asking = asyncio.create_task(bench.http.post(PATH, json=OBJ))
    await until(lambda: bench.has_object)
    assert not (await asyncio.wait([asking], timeout=0.1))[0]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("kind", [FaultKind.DROP_AFTER, FaultKind.HALF_OPEN])
async def test_watch_fails_after_some_events(bench: Bench, kind: FaultKind) -> None:
    bench.arm(kind, query="watch=", chunks=1)
    bench.registry.create("configmaps", OBJ)
    async with bench.http.stream("GET", PATH, params={"watch": "1"}) as response:
        lines = response.aiter_lines()
        assert '"ADDED"' in await anext(lines)
        bench.registry.create("configmaps", {"metadata": {"name": "b"}})
        with pytest.raises(TimeoutError if kind is FaultKind.HALF_OPEN else httpx.TransportError):
            async with asyncio.timeout(0.1 if kind is FaultKind.HALF_OPEN else TIMEOUT_S):
                await anext(lines)


async def test_faults_are_managed_over_http(bench: Bench) -> None:
    armed = (await bench.http.post("/sandbox/faults", json={"kind": "status", "code": 503, "times": None})).json()
    assert (await bench.http.get(PATH)).status_code == 503
    listed = (await bench.http.get("/sandbox/faults")).json()
    assert [fault["id"] for fault in listed["armed"]] == [armed["id"]]
    assert [hit["path"] for hit in listed["history"]] == [PATH]
    assert (await bench.http.delete("/sandbox/faults", params={"id": str(armed["id"])})).json() == {"armed": []}
    assert (await bench.http.get(PATH)).status_code == 200


@pytest.mark.parametrize(
    "wanted", [{}, {"kind": "none"}, {"kind": "status", "odd": 1}, {"kind": "status", "path": "("}]
)
async def test_invalid_fault_is_refused(bench: Bench, wanted: dict[str, Any]) -> None:
    assert (await bench.http.post("/sandbox/faults", json=wanted)).status_code == 400


async def test_managing_faults_requires_the_token() -> None:
    app = create_app(Registry(), token="secret")
    async with serving(app) as address, client(address.url) as http:
        assert (await http.get("/sandbox/faults")).status_code == 401
