"""A list of the pods of a gang returns the known view of each pod that has not changed, and shares equal values."""

from __future__ import annotations

from airflow_provider_gangjobs.jobs.requests import list_pods
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import PODS
from tests.provider.virtual_control_plane import NAMESPACE
from tests.provider.virtual_time import in_virtual_time


@in_virtual_time
async def test_pod_that_has_not_changed_keeps_its_view(gang) -> None:
    plane = gang.plane
    for rank in range(3):
        gang.pod(rank, phase="Running")
    before = {pod.metadata.uid: pod for pod in await list_pods(plane.client, gang.ref)}
    patch = {"metadata": {"annotations": {"changed": "yes"}}}
    plane.registry.patch(PODS, "train-1", NAMESPACE, patch, PatchKind.MERGE)
    gang.pod(3, phase="Running")
    after = {pod.metadata.name: pod for pod in await list_pods(plane.client, gang.ref, before)}
    assert after["train-0"] is before[after["train-0"].metadata.uid]
    known = before[after["train-1"].metadata.uid]
    assert after["train-1"].metadata.resource_version != known.metadata.resource_version
    assert after["train-3"].metadata.uid not in before


@in_virtual_time
async def test_listed_pods_share_equal_values(gang) -> None:
    plane = gang.plane
    for rank in range(2):
        gang.pod(rank)
    one, other = await list_pods(plane.client, gang.ref)
    assert one.spec is other.spec
    assert one.metadata.labels is other.metadata.labels
