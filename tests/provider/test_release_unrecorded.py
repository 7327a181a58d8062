"""Release removes the finalizer from every pod of the provider in its scope, and from no other pod."""

from __future__ import annotations

import pytest

from airflow_provider_gangjobs.cluster import resources as cluster_resources
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.ending.release import release_all, release_pods
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import NAMESPACES, PODS
from tests.guarantees.history import is_held
from tests.provider.virtual_control_plane import VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

FOREIGN = "example.org/other"


def _pod(
    plane: VirtualControlPlane, name: str, namespace: str = "default", *, finalizers=(FINALIZER_HARVEST,), labels=None
) -> None:
    meta = {"name": name, "finalizers": list(finalizers), "labels": labels or {}}
    body = {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    plane.registry.create(PODS, body, namespace)


async def _views(plane: VirtualControlPlane) -> list[PodView]:
    pages = plane.client.list_views(PodView, cluster_resources.PODS, "default")
    return [pod async for page in pages for pod in page]


def _held(plane: VirtualControlPlane) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in plane.registry.list(PODS) if is_held(pod))


async def _filled(plane: VirtualControlPlane) -> None:
    plane.registry.create(NAMESPACES, {"metadata": {"name": "other"}})
    gang = {"gangjobs.airflow/gang": "train"}
    _pod(plane, "ours", labels=gang)
    _pod(plane, "unlabelled")
    _pod(plane, "elsewhere", "other", labels=gang)
    _pod(plane, "foreign", finalizers=[FOREIGN])
    _pod(plane, "both", finalizers=[FOREIGN, FINALIZER_HARVEST])


SCOPES = {
    "one gang": ({"namespace": "default", "gang": "train"}, ["both", "elsewhere", "unlabelled"]),
    "a namespace": ({"namespace": "default"}, ["elsewhere"]),
    "the cluster": ({}, []),
}


@pytest.mark.parametrize(("scope", "left"), SCOPES.values(), ids=SCOPES)
@in_virtual_time
async def test_release_frees_its_scope_only(idle_plane, scope, left):
    await _filled(idle_plane)
    total = await release_pods(idle_plane.client, **scope)
    assert _held(idle_plane) == left
    assert (total.released, total.failed) == (4 - len(left), 0)


@in_virtual_time
async def test_foreign_finalizers_stay(idle_plane):
    await _filled(idle_plane)
    await release_pods(idle_plane.client)
    finalizers = {p["metadata"]["name"]: p["metadata"].get("finalizers") for p in idle_plane.registry.list(PODS)}
    assert finalizers["foreign"] == finalizers["both"] == [FOREIGN]


@in_virtual_time
async def test_second_release_changes_nothing(idle_plane):
    await _filled(idle_plane)
    await release_pods(idle_plane.client)
    again = await release_pods(idle_plane.client)
    assert (again.pods, again.released, again.failed) == (5, 0, 0)


@in_virtual_time
async def test_release_reads_page_by_page(idle_plane):
    for number in range(501):
        _pod(idle_plane, f"pod-{number}")
    total = await release_pods(idle_plane.client, namespace="default")
    assert (total.pods, total.released) == (501, 501)
    assert idle_plane.client.statistics().requests["list"] == 2


@in_virtual_time
async def test_pod_that_cannot_be_freed_is_named_and_stops_no_other(idle_plane):
    await _filled(idle_plane)
    idle_plane.arm("status", method="PATCH", path="/pods/ours", code=403, message="a webhook says no")
    total = await release_pods(idle_plane.client, namespace="default")
    assert (total.released, total.failed) == (2, 1)
    assert total.failures[0].startswith("default/ours: ")
    assert "a webhook says no" in total.failures[0]


@in_virtual_time
async def test_release_only_lists_and_patches(idle_plane):
    await _filled(idle_plane)
    await release_pods(idle_plane.client)
    assert set(idle_plane.client.statistics().requests) == {"list", "patch"}


@in_virtual_time
async def test_gang_without_namespace_is_refused(idle_plane):
    with pytest.raises(ValueError, match="a namespace is needed"):
        await release_pods(idle_plane.client, gang="train")


STORMS = {
    "busy": {"kind": "status", "code": 429, "retry_after_s": 1},
    "broken": {"kind": "status", "code": 500},
    "broken after it was done": {"kind": "status-after", "code": 500},
    "cut off": {"kind": "drop-before"},
    "cut off after it was done": {"kind": "drop-after"},
    "cut off in the answer": {"kind": "drop-after", "chunks": 1},
    "silent": {"kind": "half-open"},
    "refused credentials": {"kind": "status", "code": 401},
}


@in_virtual_time
async def test_pods_that_are_gone_or_replaced_count_as_released() -> None:
    async with (
        VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane,
        Client(plane.config, clock=loop_clock()) as client,
    ):
        for number in range(200):
            _pod(plane, f"pod-{number}")
        pods = await _views(plane)
        for name in ("pod-7", "pod-150"):
            plane.registry.patch(PODS, name, "default", {"metadata": {"finalizers": None}}, PatchKind.MERGE)
            plane.registry.delete(PODS, name, "default")
        _pod(plane, "pod-150")
        errors = {}
        await release_all(client, pods, lambda pod, error: errors.update({pod.metadata.name: error}))
        assert errors == dict.fromkeys((f"pod-{number}" for number in range(200)), None)
        assert _held(plane) == ["pod-150"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=name, marks=() if name in {"busy", "cut off after it was done"} else pytest.mark.slow)
        for name, fault in STORMS.items()
    ],
)
@in_virtual_time
async def test_of_many_pods_none_stays_held_by_the_faults_of_a_server(fault):
    async with (
        VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane,
        Client(plane.config, clock=loop_clock()) as client,
    ):
        for number in range(300):
            _pod(plane, f"pod-{number}")
        plane.arm(method="PATCH", skip=100, times=3, **fault)
        plane.arm(method="PATCH", skip=60, times=3, **fault)
        first = await release_pods(client, namespace="default")
        again = await release_pods(client, namespace="default")
        assert _held(plane) == []
        assert first.released + first.failed == 300
        assert again.failed == 0
        assert len(plane.faults.history) == 6
