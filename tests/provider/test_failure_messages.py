"""The complete message of an error, from the observations of a follower."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.completion import error_from_event
from airflow_provider_gangjobs.exceptions import (
    GangJobError,
    ImagePullFailed,
    JobDeleted,
    JobReplaced,
    Unschedulable,
)
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import EVENTS, PODS
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef

pytestmark = in_virtual_time

PULL = 'failed to pull and unpack image "docker.io/library/trainer:1": not found'


def raised(event: GangEvent) -> GangJobError:
    """Return the error that a task raises when it is resumed with the event."""
    return error_from_event(GangEvent.from_payload(event.to_payload()))


def wait_for_image(plane: VirtualControlPlane, *ranks: int) -> None:
    """Set the status of pods whose image cannot be pulled."""
    state = {"waiting": {"reason": "ErrImagePull", "message": PULL}}
    status = {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    for rank in ranks:
        name = plane.pod("train", rank)["metadata"]["name"]
        plane.registry.patch(
            PODS, name, NAMESPACE, {"status": {"containerStatuses": [status]}}, PatchKind.MERGE, subresource="status"
        )


def set_ready_to_start(plane: VirtualControlPlane, rank: int, *, to: str) -> None:
    name = plane.pod("train", rank)["metadata"]["name"]
    status = {"status": {"conditions": [{"type": "PodReadyToStartContainers", "status": to}]}}
    plane.registry.patch(PODS, name, NAMESPACE, status, PatchKind.MERGE, subresource="status")


async def stopped_over_image(plane: VirtualControlPlane) -> tuple[GangRef, GangEvent]:
    ref = plane.submit(workers=2)
    following = Follower(plane, ref, deadlines=Deadlines(assemble_s=60))
    await plane.until(lambda: [pod["spec"].get("nodeName") for pod in plane.pods()] == ["node-0"] * 2)
    wait_for_image(plane, 0, 1)
    await plane.until(lambda: plane.job()["spec"].get("activeDeadlineSeconds") == 0)
    plane.plays_nodes = True
    return ref, await following.event()


async def stopped_at_start(plane: VirtualControlPlane, pod: dict[str, Any]) -> GangEvent:
    """Return the event of a gang whose pods have these fields, after its assemble_timeout has passed."""
    following = Follower(plane, plane.submit(workers=2, pod=pod), deadlines=Deadlines(assemble_s=60))
    await plane.until(lambda: plane.job()["spec"].get("activeDeadlineSeconds") == 0)
    return await following.event()


async def test_service_account_that_does_not_exist_is_named(plane):
    event = await stopped_at_start(plane, {"serviceAccountName": "robot"})
    assert plane.pods() == []
    assert raised(event).category == "PodsRefused"
    assert 'error looking up service account default/robot: serviceaccount "robot" not found' in event.message


@pytest.mark.parametrize(
    ("may_look", "evidence"),
    [(True, "PersistentVolumeClaim data-1 does"), (False, '0/1 nodes are available: persistentvolumeclaim "data-1"')],
    ids=["looked up", "in the words of the scheduler"],
)
async def test_claim_that_does_not_exist_is_named(plane, may_look, evidence):
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data-1"}}
    if not may_look:
        plane.arm("status", method="POST", path="/selfsubjectaccessreviews$", times=None, code=403)
    event = await stopped_at_start(plane, {"volumes": [claim]})
    assert raised(event).category == "VolumeUnavailable"
    assert evidence in event.message


async def test_storage_class_that_does_not_exist_is_named(plane):
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data-1"}}
    about = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data-1", "namespace": NAMESPACE}
    body = {
        "metadata": {"name": "data-1.1"},
        "involvedObject": about,
        "reason": "ProvisioningFailed",
        "message": 'storageclass.storage.k8s.io "nosuch" not found',
        "type": "Warning",
    }
    plane.arm("status", method="POST", path="/selfsubjectaccessreviews$", times=None, code=403)
    plane.registry.create(EVENTS, body, NAMESPACE)
    event = await stopped_at_start(plane, {"volumes": [claim]})
    assert isinstance(raised(event), Unschedulable)
    assert raised(event).category == "VolumeUnavailable"
    assert body["message"] in event.message


def fail_on_node(plane: VirtualControlPlane, reason: str, *messages: str) -> None:
    """Record the Events of a node that cannot prepare rank 1."""
    for message in messages:
        plane.registry.record_event(plane.pod("train", 1), "Warning", reason, message, "kubelet")


MOUNT = 'MountVolume.SetUp failed for volume "s" : {}'
LATER = "Unable to attach or mount volumes: unmounted volumes=[s], unattached volumes=[], failed to process volumes=[]"
IN_USE = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) train-old'
NO_NETWORK = 'Failed to create pod sandbox: rpc error: code = Unknown desc = plugin type="bridge" failed (add)'


@pytest.mark.parametrize(
    ("reason", "messages", "category"),
    [
        ("FailedMount", [MOUNT.format('configmap "forgotten" not found')], "VolumeUnavailable"),
        ("FailedMount", [MOUNT.format('secret "tls" not found'), LATER], "VolumeUnavailable"),
        ("FailedMount", [MOUNT.format("hostPath type check failed: /d is not a directory")], "VolumeUnavailable"),
        ("FailedAttachVolume", [IN_USE], "VolumeUnavailable"),
        ("FailedCreatePodSandBox", [NO_NETWORK], "PodSandboxFailed"),
    ],
    ids=["missing ConfigMap", "missing Secret, and what follows", "hostPath", "volume in use", "network"],
)
async def test_what_a_node_cannot_prepare_is_reported_and_is_the_reason_of_the_timeout(reason, messages, category):
    async with VirtualControlPlane.running(plays_nodes=False) as plane:
        following = Follower(plane, plane.submit(workers=2), deadlines=Deadlines(assemble_s=300))
        await plane.until(lambda: [pod["spec"].get("nodeName") for pod in plane.pods()] == ["node-0"] * 2)
        set_ready_to_start(plane, 1, to="False")
        fail_on_node(plane, reason, *messages)
        await asyncio.sleep(40)
        said = following.reports[-1].line
        assert messages[0] in said
        await plane.until(lambda: plane.job()["spec"].get("activeDeadlineSeconds") == 0)
        plane.plays_nodes = True
        event = await following.event()
        assert raised(event).category == category
        assert said in event.message


async def test_volume_that_can_be_mounted_later_is_no_reason_any_more():
    async with VirtualControlPlane.running(plays_nodes=False) as plane:
        following = Follower(plane, plane.submit(workers=2), deadlines=Deadlines(assemble_s=300))
        await plane.until(lambda: [pod["spec"].get("nodeName") for pod in plane.pods()] == ["node-0"] * 2)
        set_ready_to_start(plane, 1, to="False")
        fail_on_node(plane, "FailedMount", MOUNT.format('secret "tls" not found'))
        await asyncio.sleep(40)
        set_ready_to_start(plane, 1, to="True")
        await asyncio.sleep(70)
        assert following.reports[-1].line.endswith("nodes pull images and create containers")
        await following.kill()


async def test_image_that_cannot_be_pulled_is_named():
    async with VirtualControlPlane.running(plays_nodes=False) as plane:
        _, event = await stopped_over_image(plane)
        error = raised(event)
        assert isinstance(error, ImagePullFailed)
        assert (error.image, error.category) == ("trainer:1", "ImagePullFailed")
        assert PULL in str(error)


async def test_image_is_named_by_a_follower_that_finds_the_gang_stopped():
    async with VirtualControlPlane.running(plays_nodes=False) as plane:
        ref, event = await stopped_over_image(plane)
        await plane.until(lambda: not plane.pods())
        again = await Follower(plane, ref, deadlines=Deadlines(assemble_s=60)).event()
        assert str(raised(again)) == str(raised(event))
        assert (again.image, again.category) == ("trainer:1", event.category)


async def test_deadline_that_a_follower_does_not_know_is_not_reported_as_zero():
    async with VirtualControlPlane.running(nodes=0) as plane:
        ref = plane.submit(workers=2)
        await Follower(plane, ref, deadlines=Deadlines(assemble_s=60)).event()
        again = await Follower(plane, ref).event()
        assert str(raised(again)).startswith("Gang default/train was assembling for longer than its deadline allows. ")


async def test_replaced_job_and_the_one_in_its_place_are_named(plane):
    ref = plane.submit(workers=1, gang=False)
    plane.delete_job()
    await plane.until(lambda: plane.job() is None)
    other = plane.submit(workers=1, gang=False)
    error = raised(await Follower(plane, ref).event())
    assert isinstance(error, JobReplaced)
    assert (error.uid, error.other_uid) == (ref.uid, other.uid)


async def test_message_of_a_deleted_job_contains_its_remedy_once(plane):
    following = Follower(plane, ref := plane.submit(workers=1))
    await plane.until(lambda: plane.running_ranks() == 1)
    plane.delete_job()
    error = raised(await following.event())
    assert isinstance(error, JobDeleted)
    assert str(error).startswith("Job default/train was deleted while the gang was ")
    assert str(error).count("Find out who deleted the Job: a user, a TTL, or a clean-up of the namespace.") == 1
    assert str(error).count("Find out") == 1
    assert ref.name in error.last_seen
