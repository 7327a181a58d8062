"""A Job whose record cannot be read is told as what it is: nobody follows, deletes, stops, or replaces it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.ending.deliver import deliver
from airflow_provider_gangjobs.ending.submissions import delete_submission
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.record import EDITED
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_RECORD
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.annotations import recorded
from tests.provider.submission_cluster import KEY
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef
    from tests.provider.submission_cluster import SubmissionCluster

EDITED_RECORD = recorded()[ANNOTATION_RECORD].replace("{}", '{"queue":"q"}')
EDIT = {"metadata": {"annotations": {ANNOTATION_RECORD: EDITED_RECORD}}}


@in_virtual_time
async def test_follower_of_an_edited_record_says_that_the_state_is_unknown(plane: VirtualControlPlane) -> None:
    ref = plane.submit()
    await plane.until(lambda: len(plane.pods()) == 4)
    plane.registry.patch(JOBS, ref.name, NAMESPACE, EDIT, PatchKind.MERGE)
    event = await Follower(plane, ref).event()
    assert (event.status, event.category, event.message) == (Status.ERROR, Category.UNKNOWN, EDITED)
    assert "kubectl" in event.remedy
    assert len(plane.pods()) == 4


@in_virtual_time
async def test_gang_whose_name_a_job_without_a_record_has_now_was_replaced(plane: VirtualControlPlane) -> None:
    """The record of another Job says nothing about the gang, whose pods are harvested and released."""
    ref = await plane.run_gang(workers=2, gang=False)
    plane.delete_job()
    await plane.until(lambda: plane.job() is None)
    other = plane.submit(workers=1, gang=False, annotations={ANNOTATION_RECORD: EDITED_RECORD})
    event = await Follower(plane, ref).event()
    assert (event.status, event.other_uid, len(event.ranks)) == (Status.REPLACED, other.uid, 2)
    assert {owner["uid"] for pod in plane.held() for owner in pod["metadata"]["ownerReferences"]} <= {other.uid}


ENDINGS: dict[str, Callable[[Any, GangRef], Awaitable[object]]] = {
    "a deletion": lambda api, ref: GangService(api).delete(ref, deleted_by="ana"),
    "a stop": lambda api, ref: GangService(api).stop(ref, reason="enough"),
    "the deletion of its submission": lambda api, ref: delete_submission(
        api, KEY.submission_id(0), namespace=ref.namespace, timeout_s=1.0
    ),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
async def test_ending_of_an_edited_gang_is_refused(cluster: SubmissionCluster, ending: Any) -> None:
    ref = (await cluster.submit()).ref
    edit(cluster, ref)
    before = cluster.jobs()

    with pytest.raises(SubmissionFailed, match=r"changed after it was written.*kubectl"):
        await ending(cluster.client, ref)

    assert [as_written(job) for job in cluster.jobs()] == [as_written(job) for job in before]


def as_written(job: dict[str, Any]) -> object:
    return job["metadata"]["uid"], job["metadata"]["annotations"], job["spec"]


async def test_delivery_does_not_delete_an_edited_gang(cluster: SubmissionCluster) -> None:
    ref = (await cluster.submit(claim="ti-1")).ref
    cluster.finish_job(ref.name)
    edit(cluster, ref)

    await deliver(cluster.client, ref, "ti-1", deletes=True)

    assert [job["metadata"]["uid"] for job in cluster.jobs()] == [ref.uid]


async def test_submission_neither_adopts_nor_replaces_a_live_edited_gang(cluster: SubmissionCluster) -> None:
    ref = (await cluster.submit(claim="ti-1")).ref
    edit(cluster, ref)

    with pytest.raises(SubmissionFailed, match="changed after it was written") as raised:
        await cluster.submit(claim="ti-2")

    assert not raised.value.retryable
    assert [job["metadata"]["uid"] for job in cluster.jobs()] == [ref.uid]


def edit(cluster: SubmissionCluster, ref: GangRef) -> None:
    cluster.bench.registry.patch(JOBS, ref.name, ref.namespace, EDIT, PatchKind.MERGE)
