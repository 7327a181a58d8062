"""The last list of the pods of a gang: current views, without a second copy of pods that are known already."""

from __future__ import annotations

from airflow_provider_gangjobs.tracking.read.pods import list_pods
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import PODS
from tests.provider.test_harvest import GangWithoutControllers
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time


@in_virtual_time
async def test_view_that_is_still_true_is_given_again() -> None:
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
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
async def test_listed_pods_share_what_is_equal() -> None:
    async with VirtualControlPlane.running(jobs=False, plays_nodes=False) as plane:
        gang = GangWithoutControllers(plane)
        for rank in range(2):
            gang.pod(rank)
        one, other = await list_pods(plane.client, gang.ref)
        assert one.spec is other.spec
        assert one.metadata.labels is other.metadata.labels
