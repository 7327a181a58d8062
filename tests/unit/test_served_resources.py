"""Discovery distinguishes resources that are served, not served, and unknown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import Unreachable
from airflow_provider_gangjobs.cluster.served_resources import DiscoveredResources, discover
from tests.unit.fault_server import Connection, FaultServer, Request, status

GROUP = "/apis/scheduling.k8s.io"


@dataclass
class Cluster:
    """The discovery documents of a cluster; an integer in place of a document is the status of an error."""

    major: str = "1"
    minor: str = "37"
    versions: dict[str, list[str] | int] | int = field(default_factory=dict)
    version: int | None = None

    async def handle(self, request: Request, connection: Connection) -> None:
        document = self._document(request.path)
        if isinstance(document, int):
            await connection.reply(document, status(document, ""))
        else:
            await connection.reply(200, document)

    def _document(self, path: str) -> dict[str, Any] | int:
        if path == "/version":
            return self.version or {"major": self.major, "minor": self.minor, "gitVersion": f"v1.{self.minor}.0"}
        if isinstance(self.versions, int):
            return self.versions
        if path == GROUP:
            listed = [{"version": name} for name in self.versions]
            return {"kind": "APIGroup", "versions": listed, "preferredVersion": listed[0] if listed else None}
        served = self.versions.get(path.rpartition("/")[2], 404)
        if isinstance(served, int):
            return served
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        return {"kind": "APIResourceList", "resources": [{"name": plural, "verbs": verbs} for plural in served]}


async def known_of(cluster: Cluster) -> DiscoveredResources:
    async with FaultServer(cluster.handle) as server, Client(server.config, retry_for_s=0) as client:
        return await discover(client)


WORKLOAD = ["workloads", "podgroups", "podgroups/status"]
CLASSES = ["priorityclasses"]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"v1": CLASSES}, ()),
        ({"v1": CLASSES, "v1alpha1": ["workloads"]}, ("v1alpha1",)),
        ({"v1": CLASSES, "v1alpha2": WORKLOAD}, ("v1alpha2",)),
        ({"v1": CLASSES, "v1beta1": WORKLOAD, "v1alpha3": WORKLOAD}, ("v1beta1", "v1alpha3")),
        ({"v1": [*CLASSES, *WORKLOAD]}, ("v1",)),
        ({"v1": CLASSES, "v1alpha2": []}, ()),
    ],
    ids=["classes only", "1.35", "1.36", "1.37", "a later release", "listed but empty"],
)
async def test_versions_are_those_that_serve_workloads(versions: Any, expected: tuple[str, ...]) -> None:
    known = await known_of(Cluster(versions=versions))
    assert (known.scheduling_versions, known.unknown) == (expected, {})


async def test_resources_of_each_version_are_distinguished() -> None:
    known = await known_of(Cluster(versions={"v1": CLASSES, "v1alpha1": ["workloads"], "v1alpha2": WORKLOAD}))
    assert [v for v, served in known.resources.items() if "podgroups" in served] == ["v1alpha2"]
    assert known.can_watch("v1alpha2", "podgroups")
    assert not known.can_watch("v1alpha1", "podgroups")


async def test_absent_group_is_known_to_be_absent() -> None:
    known = await known_of(Cluster(versions=404))
    assert (known.resources, known.unknown, known.is_complete) == ({}, {}, True)


@pytest.mark.parametrize("code", [403, 500, 503])
async def test_unreadable_group_is_not_known(code: int) -> None:
    known = await known_of(Cluster(versions=code))
    assert (known.scheduling_versions, list(known.unknown)) == ((), ["scheduling.k8s.io"])


async def test_unreadable_version_is_not_known_but_others_are() -> None:
    known = await known_of(Cluster(versions={"v1": CLASSES, "v1beta1": 403, "v1alpha3": WORKLOAD}))
    assert (known.scheduling_versions, list(known.unknown)) == (("v1alpha3",), ["v1beta1"])


@pytest.mark.parametrize(
    ("major", "minor", "release"), [("1", "37", "1.37"), ("1", "36+", "1.36"), ("", "", None), ("1", "x", None)]
)
async def test_release_is_read_from_the_version(major: str, minor: str, release: str | None) -> None:
    assert (await known_of(Cluster(major=major, minor=minor))).release == release


async def test_unreadable_version_document_is_not_known() -> None:
    known = await known_of(Cluster(version=403))
    assert (known.release, known.git_version, list(known.unknown)) == (None, None, ["version"])


async def test_unreachable_cluster_is_an_error() -> None:
    async with FaultServer(Cluster().handle) as server:
        config = server.config
    async with Client(config, retry_for_s=0) as client:
        with pytest.raises(Unreachable):
            await discover(client)


async def test_concurrent_discoveries_send_one_request() -> None:
    async with FaultServer(Cluster(versions={"v1": CLASSES}).handle) as server, Client(server.config) as client:
        await asyncio.gather(*(discover(client) for _ in range(20)))
        await discover(client)
    assert [request.path for request in server.requests] == [GROUP, f"{GROUP}/v1", "/version"]


WANTED = {"v1beta1": {"workloads", "podgroups"}, "v1alpha2": {"workloads", "podgroups"}, "v1alpha1": {"workloads"}}


@pytest.mark.parametrize(
    ("versions", "served", "read"),
    [
        ({"v1": CLASSES, "v1beta1": WORKLOAD, "v1alpha2": WORKLOAD}, ("v1beta1",), ["/v1beta1"]),
        ({"v1": CLASSES, "v1alpha2": WORKLOAD}, ("v1alpha2",), ["/v1beta1", "", "/v1alpha2"]),
        ({"v1": CLASSES, "v1alpha1": WORKLOAD}, ("v1alpha1",), ["/v1beta1", "", "/v1alpha1"]),
        ({"v1": CLASSES, "v1beta1": 403, "v1alpha2": WORKLOAD}, ("v1alpha2",), ["/v1beta1", "", "/v1alpha2"]),
        ({"v1": CLASSES}, (), ["/v1beta1", "", "/v1", "version"]),
        ({"v1": CLASSES, "v1beta1": []}, (), ["/v1beta1", "", "/v1", "version"]),
        (500, (), ["/v1beta1", "", "version"]),
    ],
    ids=["1.37", "1.36", "1.35", "best unreadable", "none", "listed but empty", "unreadable group"],
)
async def test_discovery_stops_at_the_first_wanted_version(versions: Any, served: Any, read: list[str]) -> None:
    async with FaultServer(Cluster(versions=versions).handle) as server, Client(server.config, retry_for_s=0) as client:
        known = await discover(client, wanted=WANTED)
    assert known.scheduling_versions == served
    assert [request.path for request in server.requests] == ["/version" if p == "version" else GROUP + p for p in read]
    assert known.is_complete is (not served)


async def test_discovery_that_stopped_early_for_one_gang_is_not_shared() -> None:
    versions: Any = {"v1": CLASSES, "v1beta1": WORKLOAD, "v1alpha2": WORKLOAD}
    async with FaultServer(Cluster(versions=versions).handle) as server, Client(server.config) as client:
        await discover(client, wanted=WANTED)
        await discover(client, wanted=WANTED)
        assert len(server.requests) == 1
        assert (await discover(client)).scheduling_versions == ("v1beta1", "v1alpha2")
        assert (await discover(client, wanted=WANTED)).is_complete


@pytest.mark.parametrize(("versions", "lasts_s"), [({"v1": CLASSES}, 600.0), (403, 30.0)], ids=["known", "not known"])
async def test_old_discovery_is_repeated(versions: Any, lasts_s: float) -> None:
    now = 0.0
    clock = Clock(monotonic=lambda: now)
    async with FaultServer(Cluster(versions=versions).handle) as server, Client(server.config, clock=clock) as client:
        await discover(client)
        first = len(server.requests)
        now = lasts_s - 1
        await discover(client)
        assert len(server.requests) == first
        now = lasts_s
        await discover(client)
        assert len(server.requests) == 2 * first


async def test_cancelled_discovery_is_repeated_by_the_next_caller() -> None:
    async with FaultServer(Cluster(versions={}).handle) as server, Client(server.config) as client:
        first = asyncio.create_task(discover(client))
        second = asyncio.create_task(discover(client))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).release == "1.37"
