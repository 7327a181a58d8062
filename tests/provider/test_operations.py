"""Submissions by an id that the client chooses: one gang, which can be polled, listed and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.ending.submissions import delete_submission
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, SubmissionConflict, SubmissionFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube import resources
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELIVERED
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submit import submit as submit_gang
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES, WORKLOADS
from tests.crashes import CrashingClient
from tests.ends import delete_gang, stop_gang
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.submission_cluster import GANG_OF_4, RELEASES, SubmissionCluster, running_cluster
from tests.sandbox.builders import NAMESPACE
from tests.submission_requests import id_request

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.submission.submission import Submission

ID = "nightly / 2026-01-01"
OTHER = GangSpec(image="trainer:2", workers=4)
OURS = (SERVICES, CONFIGMAPS, WORKLOADS, PODGROUPS)


async def submit(
    cluster: SubmissionCluster, spec: GangSpec = GANG_OF_4, submission_id: str = ID, **options: Any
) -> Submission:
    options = {"api": cluster.client, "discovered": cluster.discovered, **options}
    return await submit_gang(options.pop("api"), spec, id_request(submission_id), **options)


async def find(cluster: SubmissionCluster, submission_id: str = ID, *, api: Any = None) -> GangView | None:
    return await GangService(api or cluster.client).submission(submission_id, namespace=NAMESPACE)


async def found(cluster: SubmissionCluster, submission_id: str = ID) -> GangView:
    record = await find(cluster, submission_id)
    assert record is not None
    return record


async def delete(
    cluster: SubmissionCluster, submission_id: str = ID, *, api: Any = None, **options: Any
) -> tuple[GangRef, ...]:
    """Delete a submission. While the deletion waits, nodes stop the deleted pods and the controllers work."""

    def meanwhile(seconds: float) -> None:
        cluster.bench.run(seconds)
        cluster.bench.stop_deleted()

    cluster.time.meanwhile = meanwhile
    return await delete_submission(
        api or cluster.client,
        submission_id,
        namespace=NAMESPACE,
        **{"timeout_s": 120, **options},
    )


@pytest.mark.parametrize("release", RELEASES)
async def test_the_same_id_is_the_same_gang(release):
    async with running_cluster(release) as cluster:
        first, second = await submit(cluster), await submit(cluster)
        assert (second.ref, second.adopted, second.submission_id) == (first.ref, True, ID)
        cluster.check_one_live_gang(second)


async def test_other_parameters_under_one_id_are_refused_and_named(cluster):
    first = await submit(cluster)
    with pytest.raises(SubmissionConflict, match="submitted with other parameters") as caught:
        await submit(cluster, OTHER)
    assert caught.value.fields == ("files", "image")
    assert (caught.value.ours_hash, caught.value.theirs_hash) == (OTHER.hash, GANG_OF_4.hash)
    assert caught.value.uid == first.ref.uid
    cluster.check_one_live_gang(first)


async def test_delivered_success_is_returned_again(cluster):
    first = await submit(cluster)
    cluster.finish_job(first.ref.name)
    delivered = {"metadata": {"annotations": {ANNOTATION_DELIVERED: "2026-01-01T00:00:00+00:00"}}}
    await cluster.client.patch(resources.JOBS, first.ref.name, first.ref.namespace, delivered)
    second = await submit(cluster)
    assert (second.ref, second.state) == (first.ref, SubmissionState.SUCCEEDED)
    with pytest.raises(SubmissionConflict):
        await submit(cluster, OTHER)


async def test_a_failure_is_visible_and_can_be_submitted_again(cluster):
    first = await submit(cluster)
    cluster.finish_job(first.ref.name, ok=False)
    record = await found(cluster)
    assert (record.state, record.phase, record.ref) == (SubmissionState.FAILED, Phase.FAILED, first.ref)
    assert record.code == "BackoffLimitExceeded"
    second = await submit(cluster, OTHER)
    assert (second.attempt, second.submission_id, second.adopted) == (1, ID, False)
    assert (await found(cluster)).ref == second.ref


async def test_permanent_failure_of_a_submission_is_recorded_with_its_error(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="POST", path="podgroups", times=None))
    with pytest.raises(SubmissionFailed):
        await submit(cluster)
    record = await found(cluster)
    assert record.state is SubmissionState.FAILED
    assert record.code == "SubmissionFailed"
    assert "create PodGroup" in record.summary
    cluster.faults.remove()
    again = await submit(cluster)
    assert ([job["metadata"]["uid"] for job in cluster.live_jobs()], again.attempt) == ([again.ref.uid], 1)


async def test_record_takes_one_request_and_has_the_times(cluster):
    assert await find(cluster) is None
    submission = await submit(cluster)
    process = CrashingClient(cluster.client)
    record = await find(cluster, api=process)
    assert len(process.requests) == 1, process.requests
    assert record is not None
    assert (record.submission_id, record.ref, record.state) == (ID, submission.ref, SubmissionState.IN_PROGRESS)
    cluster.finish_job(submission.ref.name)
    record = await found(cluster)
    assert (record.state, record.phase, record.category) == (SubmissionState.SUCCEEDED, Phase.SUCCEEDED, "Succeeded")
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.submitted_at <= record.started_at <= record.ended_at


async def test_stop_is_reported_as_the_cause(cluster):
    submission = await submit(cluster)
    await stop_gang(cluster.client, submission.ref, reason="the operator asked for it")
    record = await found(cluster)
    assert (record.code, record.summary) == ("Stopped", "the operator asked for it")
    assert record.state is SubmissionState.FAILED


async def test_a_tasks_attempt_is_found_by_its_default_id(cluster):
    submission = await cluster.submit()
    assert (await found(cluster, submission.submission_id)).ref == submission.ref
    assert await find(cluster, submission.submission_id[:-1] + "1") is None


@pytest.mark.parametrize("submission_id", ["", " ", "a\nb", "x" * 513, "a" * 26 + "-0"])
async def test_invalid_id_is_refused(cluster, submission_id):
    with pytest.raises(InvalidGangSpec, match="submission_id"):
        await submit(cluster, submission_id=submission_id)
    assert cluster.jobs() == []


async def test_submissions_are_listed_page_by_page():
    async with running_cluster(nodes=8) as cluster:
        ids = {f"op-{number}" for number in range(5)}
        for submission_id in ids:
            await submit(cluster, GangSpec(image="a", labels={"team": "vision"}), submission_id)
        await cluster.submit()
        pages, token = [], None
        while not pages or token:
            process = CrashingClient(cluster.client)
            page = await GangService(process).submissions(
                namespace=NAMESPACE, selector="team=vision", limit=2, continue_token=token
            )
            assert len(process.requests) == 1, process.requests
            pages.append(page.gangs)
            token = page.continue_token
        assert [len(records) for records in pages] == [2, 2, 1]
        assert {record.submission_id for records in pages for record in records} == ids
        everything = await GangService(cluster.client).submissions(namespace=NAMESPACE, limit=100)
        assert len(everything.gangs) == 6


@pytest.mark.parametrize("release_name", RELEASES)
async def test_deletion_of_a_completed_submission_deletes_its_records_and_keeps_the_job(release_name):
    async with running_cluster(release_name) as cluster:
        submission = await submit(cluster)
        cluster.finish_job(submission.ref.name)
        assert await delete(cluster) == (submission.ref,)
        cluster.bench.run(60)
        assert [cluster.objects(resource) for resource in OURS] == [[], [], [], []]
        (job,) = cluster.objects(JOBS)
        assert job["metadata"]["uid"] == submission.ref.uid
        assert await find(cluster) is None


async def test_a_deleted_id_is_free_although_the_job_was_kept(cluster):
    first = await submit(cluster)
    cluster.finish_job(first.ref.name)
    await delete(cluster)
    second = await submit(cluster, OTHER)
    assert (second.attempt, second.adopted) == (1, False)
    assert (await found(cluster)).ref == second.ref


@pytest.mark.parametrize("job", [False, True])
async def test_deletion_of_a_running_submission_ends_its_pods_first(cluster, job):
    submission = await submit(cluster)
    cluster.bench.run()
    assert len(cluster.bench.bound(submission.ref.name)) == 4
    assert await delete(cluster, job=job) == (submission.ref,)
    assert cluster.objects(PODS) == []
    cluster.bench.run(60)
    assert [cluster.objects(resource) for resource in OURS] == [[], [], [], []]
    assert len(cluster.objects(JOBS)) == (not job)


async def test_pods_that_do_not_end_are_reported_and_the_deletion_continues_later(cluster):
    submission = await submit(cluster)
    cluster.bench.run()

    cluster.run_controllers_during_sleep()
    with pytest.raises(SubmissionFailed, match="wait for its pods to be gone") as caught:
        await delete_submission(cluster.client, ID, namespace=NAMESPACE, timeout_s=60)
    assert caught.value.retryable
    assert (await found(cluster)).state is SubmissionState.FAILED
    assert await delete(cluster) == (submission.ref,)


async def test_job_that_is_kept_ends_although_the_deletion_found_it_suspended(cluster):
    submission = await submit(cluster, replace(GANG_OF_4, manifest=SUSPENDED_MANIFEST))
    assert await delete(cluster) == (submission.ref,)
    cluster.bench.run(60)
    (job,) = cluster.objects(JOBS)
    assert read_job(job).failed_condition is not None
    assert cluster.objects(PODS) == []


async def test_deletion_waits_for_the_pods_of_a_gang_that_is_being_deleted(cluster):
    submission = await submit(cluster)
    cluster.bench.run()
    await delete_gang(cluster.client, submission.ref)
    assert await delete(cluster, job=True) == (submission.ref,)
    assert cluster.objects(PODS) == []


async def test_deletion_that_the_server_does_not_answer_is_named_as_a_deletion(cluster):
    await submit(cluster)
    cluster.faults.add(Fault(FaultKind.STATUS, code=503, times=None))
    with pytest.raises(SubmissionFailed) as caught:
        await delete(cluster)
    assert str(caught.value).startswith(f"The deletion of {NAMESPACE}/{ID} failed at: delete the objects of")
    assert str(caught.value).endswith("Repeat the deletion: repeating it is safe.")


async def test_second_deletion_changes_nothing(cluster):
    await submit(cluster)
    await delete(cluster)
    assert await delete(cluster) == ()
    assert await delete(cluster, "never submitted") == ()


async def test_all_attempts_of_an_id_are_deleted_together(cluster):
    first = await submit(cluster)
    cluster.finish_job(first.ref.name, ok=False)
    second = await submit(cluster)
    assert await delete(cluster, job=True) == (second.ref, first.ref)
    cluster.bench.run(60)
    assert cluster.objects(JOBS) == []


async def test_object_of_the_same_name_that_the_gang_does_not_own_is_not_deleted(cluster):
    submission = await submit(cluster)
    cluster.finish_job(submission.ref.name)
    service = cluster.bench.registry.get(SERVICES, submission.ref.name, NAMESPACE)
    cluster.bench.registry.delete(SERVICES, submission.ref.name, NAMESPACE)
    cluster.bench.registry.create(
        SERVICES, {"metadata": {"name": submission.ref.name}, "spec": service["spec"]}, NAMESPACE
    )
    await delete(cluster)
    assert len(cluster.objects(SERVICES)) == 1
