"""A trigger has one event if another process or a user ends the gang in any way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.service import GangService
from tests.provider.follower import Follower
from tests.provider.virtual_control_plane import VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time
from tests.submission_requests import id_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.submission.submission import Submission

LABEL_UID = "batch.kubernetes.io/controller-uid"
KEY = TaskKey("etl", "manual__1", "train")
WITHIN_S = 120.0

ENDS: dict[str, tuple[Callable[[GangService, Submission], Awaitable[object]], set[Status]]] = {
    "stopped": (lambda gangs, gang: gangs.stop(gang.ref, reason="by hand"), {Status.FAILED}),
    "deleted": (lambda gangs, gang: gangs.delete(gang.ref), {Status.DELETED}),
    "its submission deleted": (
        lambda gangs, gang: gangs.delete_submission(gang.submission_id),
        {Status.FAILED, Status.DELETED},
    ),
    "its submission deleted with its Job": (
        lambda gangs, gang: gangs.delete_submission(gang.submission_id, job=True),
        {Status.FAILED, Status.DELETED},
    ),
}


@pytest.mark.parametrize("ran", [True, False], ids=["running", "just submitted"])
@pytest.mark.parametrize(("end", "statuses"), ENDS.values(), ids=ENDS)
@in_virtual_time
async def test_follower_of_a_gang_that_somebody_ends_returns(end: Any, statuses: set[Status], ran: bool):
    async with VirtualControlPlane.running() as plane:
        gangs = GangService(plane.client)
        gang = await gangs.submit(GangSpec(image="i", command=["train"], workers=3), key=KEY, claim="ti-1")
        following = Follower(plane, gang.ref)
        if ran:
            await plane.until(lambda: plane.running_ranks(gang.ref.name) == 3)

        await end(gangs, gang)
        event = await following.event(within_s=WITHIN_S)

        assert event.status in statuses
        await plane.until(lambda: not plane.held(gang.ref.name), within_s=WITHIN_S)


@in_virtual_time
async def test_submission_is_deleted_although_a_deleted_job_of_its_name_has_left_held_pods():
    async with VirtualControlPlane.running() as plane:
        gangs, spec = GangService(plane.client), GangSpec(image="i", command=["train"], workers=2)
        first = await gangs.submit(spec, submission_id="nightly")
        await plane.until(lambda: plane.running_ranks(first.ref.name) == 2)
        plane.delete_job(first.ref.name)
        await asyncio.sleep(60)  # its pods end
        second = await gangs.submit(spec, id_request("nightly"))
        assert second.ref.name == first.ref.name

        await gangs.delete_submission("nightly", job=True)

        assert plane.job(second.ref.name) is None
        assert {pod["metadata"]["labels"][LABEL_UID] for pod in plane.held(first.ref.name)} == {first.ref.uid}
