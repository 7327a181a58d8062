"""Release removes the finalizer from every pod of the provider in its scope, and from no other pod."""

from __future__ import annotations

import pytest

from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST
from airflow_provider_gangjobs.tracking.release import release_pods
from gangjobs_sandbox.resources import NAMESPACES, PODS
from tests.guarantees.history import is_held
from tests.provider.virtual_control_plane import VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time

FOREIGN = "example.org/other"


def _pod(
    plane: VirtualControlPlane, name: str, namespace: str = "default", *, finalizers=(FINALIZER_HARVEST,), labels=None
) -> None:
    meta = {"name": name, "finalizers": list(finalizers), "labels": labels or {}}
    body = {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    plane.registry.create(PODS, body, namespace)


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
async def test_release_frees_its_scope_only(scope, left):
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        await _filled(plane)
        total = await release_pods(plane.client, **scope)
        assert _held(plane) == left
        assert (total.released, total.failed) == (4 - len(left), 0)


@in_virtual_time
async def test_foreign_finalizers_stay():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        await _filled(plane)
        await release_pods(plane.client)
        finalizers = {p["metadata"]["name"]: p["metadata"].get("finalizers") for p in plane.registry.list(PODS)}
        assert finalizers["foreign"] == finalizers["both"] == [FOREIGN]


@in_virtual_time
async def test_release_twice_is_as_good_as_once():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        await _filled(plane)
        await release_pods(plane.client)
        again = await release_pods(plane.client)
        assert (again.pods, again.released, again.failed) == (5, 0, 0)


@in_virtual_time
async def test_release_reads_page_by_page():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        for number in range(501):
            _pod(plane, f"pod-{number}")
        total = await release_pods(plane.client, namespace="default")
        assert (total.pods, total.released) == (501, 501)
        assert plane.client.statistics().requests["list"] == 2


@in_virtual_time
async def test_pod_that_cannot_be_freed_is_named_and_stops_no_other():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        await _filled(plane)
        plane.arm("status", method="PATCH", path="/pods/ours", code=403, message="a webhook says no")
        total = await release_pods(plane.client, namespace="default")
        assert (total.released, total.failed) == (2, 1)
        assert total.failures[0].startswith("default/ours: ")
        assert "a webhook says no" in total.failures[0]


@in_virtual_time
async def test_release_needs_nothing_but_list_and_patch():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        await _filled(plane)
        await release_pods(plane.client)
        assert set(plane.client.statistics().requests) == {"list", "patch"}


@in_virtual_time
async def test_gang_without_namespace_is_refused():
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        with pytest.raises(ValueError, match="a namespace is needed"):
            await release_pods(plane.client, gang="train")


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


@pytest.mark.parametrize("fault", STORMS.values(), ids=STORMS)
@in_virtual_time
async def test_of_many_pods_none_stays_held_by_the_faults_of_a_server(fault):
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        for number in range(300):
            _pod(plane, f"pod-{number}")
        plane.arm(method="PATCH", skip=100, times=3, **fault)
        plane.arm(method="PATCH", skip=60, times=3, **fault)
        first = await release_pods(plane.client, namespace="default")
        again = await release_pods(plane.client, namespace="default")
        assert _held(plane) == []
        assert first.released + first.failed == 300
        assert again.failed == 0
        assert len(plane.faults.history) == 6
