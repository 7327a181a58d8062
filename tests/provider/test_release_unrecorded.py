"""Pods are released without their outcomes: by a release of a scope, and after the deletion of their gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.ending.release import QUIET_S, drain_pods, release, release_everywhere
from airflow_provider_gangjobs.kube import resources as cluster_resources
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS, NAMESPACES, PODS
from tests.annotations import claimed
from tests.ends import begin_kill, delete_gang, discard, kill
from tests.guarantees.history import is_held
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef

pytestmark = in_virtual_time


# -- Release removes the finalizer from every pod of the provider in its scope, and from no other pod ----------------

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
async def test_release_frees_its_scope_only(idle_plane, scope, left):
    await _filled(idle_plane)
    total = await release_everywhere(idle_plane.client, **scope)
    assert _held(idle_plane) == left
    assert (total.released, total.failed) == (4 - len(left), 0)


async def test_release_of_the_cluster_leaves_foreign_finalizers_and_can_be_repeated(idle_plane):
    await _filled(idle_plane)
    await release_everywhere(idle_plane.client)
    finalizers = {p["metadata"]["name"]: p["metadata"].get("finalizers") for p in idle_plane.registry.list(PODS)}
    assert finalizers["foreign"] == finalizers["both"] == [FOREIGN]
    again = await release_everywhere(idle_plane.client)
    assert (again.pods, again.released, again.failed) == (5, 0, 0)
    assert set(idle_plane.client.statistics().requests) == {"list", "patch"}


async def test_release_reads_page_by_page(idle_plane):
    for number in range(501):
        _pod(idle_plane, f"pod-{number}")
    total = await release_everywhere(idle_plane.client, namespace="default")
    assert (total.pods, total.released) == (501, 501)
    assert idle_plane.client.statistics().requests["list"] == 2


async def test_pod_that_cannot_be_freed_is_named_and_stops_no_other(idle_plane):
    await _filled(idle_plane)
    idle_plane.arm("status", method="PATCH", path="/pods/ours", code=403, message="a webhook says no")
    total = await release_everywhere(idle_plane.client, namespace="default")
    assert (total.released, total.failed) == (2, 1)
    assert total.failures[0].startswith("default/ours: ")
    assert "a webhook says no" in total.failures[0]


async def test_gang_without_namespace_is_refused(idle_plane):
    with pytest.raises(ValueError, match="a namespace is needed"):
        await release_everywhere(idle_plane.client, gang="train")


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


async def test_pods_that_are_gone_or_replaced_count_as_released(idle_plane):
    for number in range(200):
        _pod(idle_plane, f"pod-{number}")
    pods = await _views(idle_plane)
    for name in ("pod-7", "pod-150"):
        idle_plane.registry.patch(PODS, name, "default", {"metadata": {"finalizers": None}}, PatchKind.MERGE)
        idle_plane.registry.delete(PODS, name, "default")
    _pod(idle_plane, "pod-150")
    errors = {}
    await release(idle_plane.client, pods, lambda pod, error: errors.update({pod.metadata.name: error}))
    assert errors == dict.fromkeys((f"pod-{number}" for number in range(200)), None)
    assert _held(idle_plane) == ["pod-150"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=name, marks=() if name in {"busy", "cut off after it was done"} else pytest.mark.slow)
        for name, fault in STORMS.items()
    ],
)
async def test_of_many_pods_none_stays_held_by_the_faults_of_a_server(idle_plane, fault):
    for number in range(300):
        _pod(idle_plane, f"pod-{number}")
    idle_plane.arm(method="PATCH", skip=100, times=3, **fault)
    idle_plane.arm(method="PATCH", skip=60, times=3, **fault)
    first = await release_everywhere(idle_plane.client, namespace="default")
    again = await release_everywhere(idle_plane.client, namespace="default")
    assert _held(idle_plane) == []
    assert first.released + first.failed == 300
    assert again.failed == 0
    assert len(idle_plane.faults.history) == 6


# -- The pods of a deleted gang are released, also if the Job controller creates pods meanwhile or a process
#    dies ------------------------------------------------------------------------------------------------------------

CLAIM = "this-try"


def claimed_gang(plane: VirtualControlPlane, workers: int, **spec: object) -> GangRef:
    ref = plane.submit(workers=workers, **spec)
    mark = {"metadata": {"annotations": claimed(CLAIM)}}
    plane.registry.patch(JOBS, ref.name, NAMESPACE, mark, PatchKind.MERGE)
    return ref


async def running_gang(plane: VirtualControlPlane) -> GangRef:
    ref = claimed_gang(plane, 4)
    await plane.until(lambda: plane.running_ranks() == 4)
    return ref


ENDINGS: dict[str, Callable[[GangService, GangRef], Awaitable[object]]] = {
    "a kill": lambda gangs, ref: kill(gangs.client, ref, CLAIM),
    "a deletion by hand": lambda gangs, ref: gangs.delete(ref),
    "a discard": lambda gangs, ref: discard(gangs.client, ref, CLAIM),
}


@pytest.mark.parametrize(
    ("ending", "created"),
    [("a kill", 0), pytest.param("a kill", 1, marks=pytest.mark.slow), ("a deletion by hand", 40), ("a discard", 40)],
)
async def test_end_while_pods_are_created_leaves_no_pod(ending, created):
    async with VirtualControlPlane.running(nodes=5, cpu="64") as plane:
        ref = claimed_gang(plane, 300)
        await plane.until(lambda: len(plane.pods()) >= created)

        await ENDINGS[ending](GangService(plane.client), ref)

        await plane.until(lambda: not plane.pods() and plane.job() is None, within_s=60)


async def test_end_of_running_gang_does_not_wait_for_its_pods(plane):
    ref = await running_gang(plane)
    before = plane.clock.now()

    await kill(plane.client, ref, CLAIM)

    assert (plane.held(), (plane.clock.now() - before).total_seconds() < QUIET_S) == ([], True)


async def test_job_stays_until_its_pods_are_released(plane):
    """The process that deletes the Job dies before it has released a pod."""
    ref = await running_gang(plane)
    await begin_kill(plane.client, ref, CLAIM)
    await plane.until(lambda: plane.running_ranks() == 0)
    job = plane.job()
    assert (job is not None and "deletionTimestamp" in job["metadata"], len(plane.held())) == (True, 4)

    await kill(plane.client, ref, CLAIM)

    await plane.until(lambda: plane.job() is None and not plane.pods(), within_s=60)


async def test_release_that_fails_is_repeated(plane):
    ref = await running_gang(plane)
    plane.arm("status", code=500, method="PATCH", times=60)

    await kill(plane.client, ref, CLAIM)

    await plane.until(lambda: not plane.pods(), within_s=60)


async def test_drain_that_does_not_succeed_is_reported(plane, caplog):
    ref = await running_gang(plane)
    deletion = await delete_gang(plane.client, ref)
    plane.arm("status", code=403, method="PATCH", times=None)

    assert not await drain_pods(plane.client, ref, deletion.deleted)

    assert "gangjobs.airflow/harvest" in caplog.text


async def test_gang_that_never_ran_is_deleted_at_once(plane):
    ref = claimed_gang(plane, 4, suspend=True)
    before = plane.clock.now()

    await kill(plane.client, ref, CLAIM)

    assert (plane.job(), (plane.clock.now() - before).total_seconds() < 1) == (None, True)


async def test_pods_of_a_job_that_is_gone_are_released_by_a_kill(plane):
    """A user deletes the Job in the background, and ends the task before its trigger sees the deletion."""
    ref = await running_gang(plane)
    plane.delete_job(propagation="Background")

    await kill(plane.client, ref, CLAIM)

    await plane.until(lambda: not plane.pods(), within_s=60)
