"""What is read once of a cluster: discovery, and reads that many callers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import ClusterError, Unreachable
from airflow_provider_gangjobs.cluster.kueue import served_versions
from airflow_provider_gangjobs.cluster.loop_local import Answer, CachedReads
from airflow_provider_gangjobs.cluster.served_resources import (
    DiscoveredResources,
    discover,
    read_api_group,
    read_group_names,
    with_release,
)
from tests.provider.virtual_time import VirtualTimeLoop, elapsed, in_virtual_time
from tests.unit.fault_server import Connection, FaultServer, Request, status

# -- Discovery distinguishes resources that are served, not served, and unknown --------------------------------------

VERBS = ["create", "delete", "get", "list", "patch", "watch"]
STALE = "Stale"


@dataclass
class Cluster:
    """What a cluster answers; an integer in place of an answer is the status of an error."""

    major: str = "1"
    minor: str = "37"
    groups: dict[str, dict[str, list[str] | str]] | int = field(default_factory=dict)
    """Plurals of the resources by group and version, or `STALE`."""
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
        assert path == "/apis"
        if isinstance(self.groups, int):
            return self.groups
        items = [
            {"metadata": {"name": name, "creationTimestamp": None}, "versions": [_version(*one) for one in of.items()]}
            for name, of in self.groups.items()
        ]
        return {"kind": "APIGroupDiscoveryList", "metadata": {}, "items": items}


def _version(name: str, served: list[str] | str) -> dict[str, Any]:
    if served == STALE:
        return {"version": name, "freshness": STALE}
    resources = [{"resource": plural, "verbs": VERBS, "subresources": []} for plural in served]
    return {"version": name, "freshness": "Current", "resources": resources}


def scheduling(versions: Any) -> Cluster:
    return Cluster(groups=versions if isinstance(versions, int) else {"scheduling.k8s.io": versions})


async def known_of(cluster: Cluster) -> DiscoveredResources:
    async with FaultServer(cluster.handle) as server, Client(server.config, retry_for_s=0) as client:
        return await with_release(client, await discover(client))


WORKLOAD = ["workloads", "podgroups"]
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
    known = await known_of(scheduling(versions))
    assert (known.scheduling_versions, known.unknown) == (expected, {})


async def test_resources_of_each_version_are_distinguished() -> None:
    known = await known_of(scheduling({"v1": CLASSES, "v1alpha1": ["workloads"], "v1alpha2": WORKLOAD}))
    assert [v for v, served in known.resources.items() if "podgroups" in served] == ["v1alpha2"]
    assert known.can_watch("v1alpha2", "podgroups")
    assert not known.can_watch("v1alpha1", "podgroups")


async def test_absent_group_is_known_to_be_absent() -> None:
    known = await known_of(Cluster(groups={"batch": {"v1": ["jobs"]}}))
    assert (known.resources, known.unknown) == ({}, {})


@pytest.mark.parametrize("code", [403, 404, 406, 500, 503])
async def test_groups_that_cannot_be_read_are_not_known(code: int) -> None:
    known = await known_of(scheduling(code))
    assert (known.scheduling_versions, list(known.unknown)) == ((), ["scheduling.k8s.io"])


async def test_server_that_lists_only_the_names_of_groups_does_not_show_that_a_group_is_absent() -> None:
    """A server without aggregated discovery may ignore the type that the client asks for."""

    async def handle(request: Request, connection: Connection) -> None:
        await connection.reply(
            200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "kueue.x-k8s.io"}]}
        )

    async with FaultServer(handle) as server, Client(server.config, retry_for_s=0) as client:
        assert "no aggregated discovery" in (await read_api_group(client, "kueue.x-k8s.io")).unknown
        assert await served_versions(client) is None


async def test_names_of_groups_include_a_stale_group() -> None:
    cluster = Cluster(groups={"kueue.x-k8s.io": {"v1beta2": STALE}})
    async with FaultServer(cluster.handle) as server, Client(server.config) as client:
        assert list(await read_group_names(client)) == ["kueue.x-k8s.io"]


async def test_names_of_groups_that_cannot_be_read_are_an_error_and_read_again() -> None:
    cluster = scheduling(503)
    async with FaultServer(cluster.handle) as server, Client(server.config, retry_for_s=0) as client:
        assert (await read_api_group(client, "kueue.x-k8s.io")).unknown
        with pytest.raises(ClusterError, match="503"):
            await read_group_names(client)
        cluster.groups = {"kueue.x-k8s.io": {"v1beta2": ["workloads"]}}
        assert list(await read_group_names(client)) == ["kueue.x-k8s.io"]


async def test_stale_version_is_not_known_but_others_are() -> None:
    known = await known_of(scheduling({"v1": CLASSES, "v1beta1": STALE, "v1alpha3": WORKLOAD}))
    assert known.scheduling_versions == ("v1alpha3",)
    assert known.unknown == {"scheduling.k8s.io": "the API server could not refresh v1beta1 of scheduling.k8s.io"}


@pytest.mark.parametrize(
    ("groups", "served"),
    [
        ({"kueue.x-k8s.io": {"v1beta2": ["workloads"], "v1beta1": ["workloads"]}}, {"v1beta1", "v1beta2"}),
        ({"batch": {"v1": ["jobs"]}}, set()),
        ({"kueue.x-k8s.io": {"v1beta2": STALE}}, None),
        ({"metrics.k8s.io": {"v1beta1": STALE}}, set()),
        (503, None),
    ],
    ids=["served", "not installed", "stale", "another group is stale", "unreadable"],
)
async def test_kueue_is_served_or_not_or_this_is_not_known(groups: Any, served: set[str] | None) -> None:
    async with FaultServer(Cluster(groups=groups).handle) as server, Client(server.config, retry_for_s=0) as client:
        assert await served_versions(client) == served


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
        assert await served_versions(client) is None


async def test_all_groups_are_one_request() -> None:
    cluster = scheduling({"v1": CLASSES})
    async with FaultServer(cluster.handle) as server, Client(server.config) as client:
        await asyncio.gather(*(discover(client) for _ in range(20)))
        await asyncio.gather(*(served_versions(client) for _ in range(20)))
        await read_api_group(client, "scheduling.volcano.sh")
        assert list(await read_group_names(client)) == ["scheduling.k8s.io"]
        assert [request.path for request in server.requests] == ["/apis"]
        known = await discover(client)
        await asyncio.gather(*(with_release(client, known) for _ in range(20)))
    assert [request.path for request in server.requests] == ["/apis", "/version"]


@pytest.mark.parametrize(
    ("groups", "lasts_s"),
    [
        ({"scheduling.k8s.io": {"v1": CLASSES}}, 600.0),
        ({"scheduling.k8s.io": {"v1": CLASSES}, "metrics.k8s.io": {"v1beta1": STALE}}, 600.0),
        ({"scheduling.k8s.io": {"v1": CLASSES, "v1beta1": STALE}}, 30.0),
        ({}, 30.0),
        (403, 30.0),
    ],
    ids=["served", "another group is stale", "stale", "not served", "not known"],
)
async def test_old_discovery_is_repeated(groups: Any, lasts_s: float) -> None:
    now = 0.0
    clock = Clock(monotonic=lambda: now)
    handle = Cluster(groups=groups).handle
    async with FaultServer(handle) as server, Client(server.config, clock=clock, retry_for_s=0) as client:
        await discover(client)
        now = lasts_s - 1
        await discover(client)
        assert len(server.requests) == 1
        now = lasts_s
        await discover(client)
        assert len(server.requests) == 2


async def test_scheduler_that_is_installed_later_is_noticed() -> None:
    now = 0.0
    cluster = scheduling({"v1": CLASSES})
    clock = Clock(monotonic=lambda: now)
    async with FaultServer(cluster.handle) as server, Client(server.config, clock=clock) as client:
        assert (await read_api_group(client, "scheduling.volcano.sh")).versions == {}
        cluster.groups["scheduling.volcano.sh"] = {"v1beta1": ["podgroups"]}  # type: ignore[index, call-overload]
        now = 30.0
        assert list((await read_api_group(client, "scheduling.volcano.sh")).versions) == ["v1beta1"]


async def test_cancelled_discovery_is_repeated_by_the_next_caller() -> None:
    async with FaultServer(scheduling({"v1": CLASSES}).handle) as server, Client(server.config) as client:
        first = asyncio.create_task(discover(client))
        second = asyncio.create_task(discover(client))
        await asyncio.sleep(0)
        first.cancel()
        assert list((await second).resources) == ["v1"]


# -- Callers of a cached read share it, and a read that fails or is cancelled leaves what it should, in virtual
#    time ------------------------------------------------------------------------------------------------------------

LASTS_S = 60.0
UNANSWERED = Answer(None, 30.0)


@dataclass
class Source:
    """A cluster whose reads take some time and return their number, or raise."""

    took_s: float = 1.0
    error: Exception | None = None
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    """When the reads ended that returned a value."""

    async def read(self) -> Answer[int]:
        self.began.append(elapsed())
        await asyncio.sleep(self.took_s)
        if self.error is not None:
            raise self.error
        self.ended.append(elapsed())
        return Answer(len(self.began), LASTS_S)


def get(reads: CachedReads, source: Source, key: str = "key", **options: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(reads.get(key, source.read, asyncio.get_running_loop().time, **options))


@in_virtual_time
async def test_callers_share_a_read_until_its_answer_expires() -> None:
    reads, source = CachedReads(), Source()
    assert await asyncio.gather(*(get(reads, source) for _ in range(5))) == [1] * 5
    await asyncio.sleep(LASTS_S - 0.1)
    assert await get(reads, source) == 1
    await asyncio.sleep(0.1)
    assert await get(reads, source) == 2
    assert source.began == [0.0, 61.0]


@in_virtual_time
async def test_caller_that_needs_more_than_was_read_reads_again() -> None:
    reads, source = CachedReads(), Source()
    assert await get(reads, source) == 1
    assert await get(reads, source, accepts=lambda value: value > 1) == 2
    assert await get(reads, source, accepts=lambda value: value > 0) == 2


@in_virtual_time
async def test_error_is_raised_and_leaves_nothing() -> None:
    reads, source = CachedReads(), Source(error=Unreachable("GET /", "refused"))
    with pytest.raises(Unreachable):
        await get(reads, source)
    source.error = None
    assert await get(reads, source) == 2


@pytest.mark.parametrize("error", [Unreachable("GET /", "refused"), ValueError("no quantity")], ids=["server", "value"])
@in_virtual_time
async def test_failed_read_of_little_importance_is_unanswered_for_a_while(error: Exception) -> None:
    reads, source = CachedReads(), Source(error=error)
    assert await get(reads, source, unanswered=UNANSWERED) is None
    source.error = None
    await asyncio.sleep(29.9)
    assert await get(reads, source, unanswered=UNANSWERED) is None
    await asyncio.sleep(0.1)
    assert await get(reads, source, unanswered=UNANSWERED) == 2


@in_virtual_time
async def test_slow_cluster_that_callers_give_up_on_is_not_asked_by_each_of_them() -> None:
    reads, source = CachedReads(), Source(took_s=100.0)
    for _ in range(4):
        try:
            async with asyncio.timeout(5.0):
                assert await get(reads, source, within_s=10.0, unanswered=UNANSWERED) is None
        except TimeoutError:
            assert elapsed() == 5.0
        await asyncio.sleep(5.0)
    assert source.began == [0.0]


@in_virtual_time
async def test_cancelled_caller_of_a_read_without_another_answer_leaves_the_read_to_the_next() -> None:
    reads, source = CachedReads(), Source()
    first, second = get(reads, source), get(reads, source)
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == 2
    assert first.cancelled()
    assert source.began == [0.0, 0.5]


@in_virtual_time
async def test_answers_that_have_expired_are_removed() -> None:
    reads = CachedReads()
    for number in range(100):
        await get(reads, Source(), f"key {number}")
        await asyncio.sleep(LASTS_S)
    assert len(reads) == 1


@dataclass(frozen=True)
class Caller:
    """A caller that comes at a time, and gives up after a while."""

    comes_s: int
    waits_s: int
    is_best_effort: bool


callers = st.lists(st.builds(Caller, st.integers(0, 300), st.integers(0, 40), st.booleans()), min_size=1, max_size=12)


@given(callers=callers, took_s=st.sampled_from([0.0, 1.5, 8.5, 15.5, 35.5]), fails=st.booleans())
def test_any_callers_read_one_at_a_time_and_never_while_there_is_an_answer(
    callers: list[Caller], took_s: float, fails: bool
) -> None:
    """An answer is never older than its time, and a best-effort caller waits for no more than the reads before it."""
    reads = CachedReads()
    source = Source(took_s, Unreachable("GET /", "refused") if fails else None)
    reading, free_at = 0, 0.0

    async def read(kept_s: float | None) -> Answer[int]:
        """Check that nobody else reads, and that no answer is kept. Note until when the answer of this read is."""
        nonlocal reading, free_at
        assert reading == 0
        assert elapsed() >= free_at
        reading = 1
        try:
            answer = await source.read()
            kept_s = answer.lasts_s
            return answer
        finally:
            reading = 0
            if kept_s is not None:
                free_at = elapsed() + kept_s

    async def call(caller: Caller) -> None:
        await asyncio.sleep(caller.comes_s)
        options: dict[str, Any] = {"within_s": 10.0, "unanswered": UNANSWERED} if caller.is_best_effort else {}
        kept_s = UNANSWERED.lasts_s if caller.is_best_effort else None
        try:
            async with asyncio.timeout(caller.waits_s):
                value = await reads.get("key", lambda: read(kept_s), asyncio.get_running_loop().time, **options)
        except TimeoutError:
            assert elapsed() == caller.comes_s + caller.waits_s
        except Unreachable:
            assert fails
            assert not caller.is_best_effort
        else:
            assert value is None or elapsed() - source.ended[-1] < LASTS_S

    async def all_calls() -> None:
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(call(caller))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(all_calls())
