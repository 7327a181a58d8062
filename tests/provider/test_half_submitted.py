"""Half-submitted gangs are completed or removed by one rule, and one deadline bounds a submission."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.http.transport import RETRY_FOR_S
from airflow_provider_gangjobs.ending.release import release_gang
from airflow_provider_gangjobs.ending.submissions import CleanupReport, clean_up_half_submitted
from airflow_provider_gangjobs.exceptions import JobDeleted, SubmissionFailed
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.ownership import SweepAction
from airflow_provider_gangjobs.kube import resources
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.step import WEBHOOK_WAIT_S
from airflow_provider_gangjobs.submission.submission import SUBMISSION_DEADLINE_S
from airflow_provider_gangjobs.submission.submit import submit
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.examples import examples
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.submission_cluster import GANG_OF_4, KEY, RELEASES, SubmissionCluster, running_cluster
from tests.provider.test_submission_crashes import interleaved
from tests.sandbox.builders import NAMESPACE
from tests.submission_requests import id_request

if TYPE_CHECKING:
    from airflow_provider_gangjobs.submission.submission import Submission


# -- Half-submitted gangs are completed or removed by one rule, also if other processes write to them meanwhile ------

HOUR = timedelta(hours=1)
FIRST_ACT = 1  # request 0 lists the Jobs
ALL_BUT_THE_LAST = 5  # list, Job, Service, ConfigMap, Workload, PodGroup
QUEUE_CHECK = 2  # a gang in a queue lists the LocalQueues in each of two versions


async def operation(cluster: SubmissionCluster, api: Any = None, spec: GangSpec = GANG_OF_4) -> Submission:
    return await submit(
        api or cluster.client,
        spec,
        id_request("op"),
        discovered=cluster.discovered,
    )


async def half_submitted(cluster: SubmissionCluster, request: int = FIRST_ACT, *, by_id: bool = False) -> None:
    """Submit a gang in a process that dies after this request."""
    process = CrashingClient(cluster.client, Crash(request, applied=True))
    with pytest.raises(ProcessDied):
        await (operation(cluster, process) if by_id else cluster.submit(api=process))


async def tidied(
    cluster: SubmissionCluster, *, age: timedelta = 2 * HOUR, api: Any = None, **options: Any
) -> CleanupReport:
    """Tidy at a time at which all objects are this old."""
    now = cluster.bench.clock.now() + age
    options = {"older_than": HOUR, **options}
    return await clean_up_half_submitted(api or cluster.client, namespace=NAMESPACE, now=lambda: now, **options)


def actions(result: CleanupReport) -> list[SweepAction]:
    assert result.failures == {}
    return list(result.gangs.values())


async def test_young_half_submitted_gang_is_left_to_its_submitter(cluster):
    await half_submitted(cluster)
    assert actions(await tidied(cluster, age=HOUR / 2)) == []
    assert len(cluster.live_jobs()) == 1


@pytest.mark.parametrize("request_number", range(FIRST_ACT, ALL_BUT_THE_LAST + 1))
async def test_half_submitted_gang_of_a_task_is_removed(cluster, request_number):
    await half_submitted(cluster, request_number)
    assert actions(await tidied(cluster)) == [SweepAction.REMOVE]
    cluster.bench.run(60)
    assert [cluster.objects(resource) for resource in (JOBS, CONFIGMAPS)] == [[], []]
    cluster.check_one_live_gang(await cluster.submit())


async def test_half_submitted_gang_that_tries_have_adopted_is_removed(cluster):
    """A Job whose time limit each try changed would look as if somebody had started and suspended it."""
    spec = replace(GANG_OF_4, execution_timeout_s=100)
    for claim in ("ti-1", "ti-2", "ti-3"):
        with pytest.raises(ProcessDied):
            await cluster.submit(spec, api=CrashingClient(cluster.client, Crash(FIRST_ACT, applied=True)), claim=claim)
    (job,) = cluster.jobs()
    assert (job["spec"]["activeDeadlineSeconds"], job["metadata"]["generation"]) == (700, 1)
    assert actions(await tidied(cluster)) == [SweepAction.REMOVE]


@pytest.mark.parametrize("release", RELEASES)
async def test_complete_gang_of_an_id_is_resumed(release):
    async with running_cluster(release) as cluster:
        await half_submitted(cluster, ALL_BUT_THE_LAST, by_id=True)
        assert actions(await tidied(cluster)) == [SweepAction.COMPLETE]
        submission = await operation(cluster)
        assert submission.adopted
        cluster.check_one_live_gang(submission)


async def test_complete_gang_of_an_id_is_added_to_its_queue(cluster):
    spec = replace(GANG_OF_4, labels={LABEL_KUEUE_QUEUE: "team"})
    process = CrashingClient(cluster.client, Crash(ALL_BUT_THE_LAST + QUEUE_CHECK, applied=True))
    with pytest.raises(ProcessDied):
        await operation(cluster, process, spec)
    assert LABEL_KUEUE_QUEUE not in cluster.jobs()[0]["metadata"]["labels"]
    assert actions(await tidied(cluster)) == [SweepAction.COMPLETE]
    (job,) = cluster.jobs()
    assert (job["metadata"]["labels"][LABEL_KUEUE_QUEUE], job["spec"]["suspend"]) == ("team", True)


@pytest.mark.parametrize("request_number", range(FIRST_ACT, ALL_BUT_THE_LAST))
async def test_incomplete_gang_of_an_id_is_removed(cluster, request_number):
    await half_submitted(cluster, request_number, by_id=True)
    assert actions(await tidied(cluster)) == [SweepAction.REMOVE]
    assert cluster.objects(JOBS) == []


async def test_gang_that_runs_has_ended_or_is_kept_suspended_is_not_changed():
    async with running_cluster(nodes=4) as cluster:
        ended = await cluster.submit()
        cluster.finish_job(ended.ref.name)
        await operation(cluster, spec=GangSpec(image="a", manifest=SUSPENDED_MANIFEST, labels={"a": "b"}))
        running = await cluster.submit(GangSpec(image="b"), claim="ti-2")
        cluster.bench.run()
        assert actions(await tidied(cluster)) == []
        assert len(cluster.jobs()) == 2 + (running.ref != ended.ref)


async def test_gang_that_a_user_has_suspended_while_it_ran_is_not_changed():
    async with running_cluster(nodes=4) as cluster:
        ref = (await cluster.submit()).ref
        cluster.bench.run()
        await cluster.client.patch(resources.JOBS, ref.name, ref.namespace, {"spec": {"suspend": True}})
        cluster.bench.run()
        cluster.bench.stop_deleted()
        await release_gang(cluster.client, ref)  # as the follower of the gang does
        cluster.bench.run()
        assert actions(await tidied(cluster)) == []
        assert [job["spec"]["suspend"] for job in cluster.jobs()] == [True]


async def test_dry_run_reports_the_same_actions_and_changes_nothing(cluster):
    await half_submitted(cluster)
    assert actions(await tidied(cluster, dry_run=True)) == [SweepAction.REMOVE]
    assert len(cluster.live_jobs()) == 1
    assert actions(await tidied(cluster)) == [SweepAction.REMOVE]


async def test_second_cleanup_changes_nothing(cluster):
    await half_submitted(cluster)
    await tidied(cluster)
    assert actions(await tidied(cluster)) == []


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("request_number", [1, 2])
async def test_cleanup_that_crashes_is_completed_by_the_next_one(cluster, request_number, applied):
    """The removal reads the Jobs, and then marks and deletes one. The process dies at one of the two writes."""
    await half_submitted(cluster)
    process = CrashingClient(cluster.client)
    await tidied(cluster, api=process, dry_run=True)
    crash = Crash(len(process.requests) - 1 + request_number, applied)
    with pytest.raises(ProcessDied):
        await tidied(cluster, api=CrashingClient(cluster.client, crash))
    await tidied(cluster)
    assert cluster.jobs() == []


async def test_refusal_is_reported_and_stops_nothing_else(cluster):
    await half_submitted(cluster)
    await half_submitted(cluster, by_id=True)
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="PATCH", message="no such right"))
    result = await tidied(cluster)
    assert ["no such right" in failure for failure in result.failures.values()] == [True]
    assert list(result.gangs.values()) == [SweepAction.REMOVE]


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(st.integers(0, 1), max_size=24), by_id=st.booleans(), request=st.integers(1, 5))
async def test_a_submitter_that_comes_back_meanwhile_ends_with_one_gang(turns, by_id, request):
    """A cleanup never deletes a gang that runs, in any order of the requests of the cleanup and the submission."""
    async with running_cluster() as cluster:
        await half_submitted(cluster, request, by_id=by_id)
        submit = operation if by_id else lambda cluster, api: cluster.submit(api=api, claim="ti-2")
        submission, result = await interleaved(
            cluster.client, iter(turns), lambda api: submit(cluster, api), lambda api: tidied(cluster, api=api)
        )
        assert isinstance(result, CleanupReport), result
        if isinstance(submission, JobDeleted):  # the cleanup was faster, so the submitter may try again
            assert submission.retryable
            submission = await submit(cluster, cluster.client)
        cluster.check_one_live_gang(submission)


@pytest.mark.parametrize(("age", "left"), [(HOUR / 2, 1), (2 * HOUR, 0)], ids=["young", "old"])
async def test_age_is_judged_by_the_clock_of_the_api_server(cluster, age: timedelta, left: int):
    await half_submitted(cluster)
    cluster.bench.run(age.total_seconds())
    await GangService(cluster.client).tidy(namespace=NAMESPACE, older_than=HOUR)
    assert len(cluster.jobs()) == left


# -- One deadline bounds a submission with all of its retries --------------------------------------------------------


async def fail_to_submit(cluster: SubmissionCluster, **options: float) -> float:
    """Return the seconds until the submission fails with a retryable error."""
    began = cluster.time.now
    with pytest.raises(SubmissionFailed) as failed:
        await GangService(cluster.client).submit(GANG_OF_4, key=KEY, claim="ti-1", **options)
    assert failed.value.retryable
    return cluster.time.now - began


@pytest.mark.parametrize("retry_after_s", [None, 7, 30], ids="Retry-After {}".format)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_endless_throttling_fails_a_submission_at_its_deadline(cluster, method, retry_after_s):
    cluster.faults.add(Fault(FaultKind.STATUS, code=429, method=method, retry_after_s=retry_after_s, times=None))
    # The submission does not begin a pause that would end after the deadline. A pause is at most 30 s here.
    assert SUBMISSION_DEADLINE_S - 30 <= await fail_to_submit(cluster) <= SUBMISSION_DEADLINE_S


async def test_throttled_first_list_fails_a_submission_when_the_client_gives_up(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=429, method="GET", times=None))
    assert await fail_to_submit(cluster) <= RETRY_FOR_S


async def test_caller_may_set_a_shorter_deadline(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=429, method="POST", times=None))
    assert await fail_to_submit(cluster, deadline_s=20) <= 20


async def test_submission_continues_when_throttling_ends_before_the_deadline(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=429, method="POST", retry_after_s=10, times=9))
    submission = await GangService(cluster.client).submit(GANG_OF_4, key=KEY, claim="ti-1")
    cluster.check_one_live_gang(submission)


WEBHOOK = 'Internal error occurred: failed calling webhook "mjob.kb.io": connection refused'


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_submission_waits_while_the_server_cannot_call_a_webhook(method, caplog):
    async with running_cluster() as cluster:
        cluster.faults.add(Fault(FaultKind.STATUS, code=500, message=WEBHOOK, method=method, path="jobs", times=15))
        began = cluster.time.now
        cluster.check_one_live_gang(await cluster.submit())
        assert 15 < cluster.time.now - began < SUBMISSION_DEADLINE_S
    assert caplog.text.count("waits, because the API server cannot call a webhook") == 1


async def test_webhook_that_stays_away_fails_a_submission_before_its_deadline(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=500, message=WEBHOOK, method="POST", path="jobs", times=None))
    assert WEBHOOK_WAIT_S <= await fail_to_submit(cluster) <= SUBMISSION_DEADLINE_S


async def test_read_that_needs_a_webhook_is_repeated_and_says_so_once(caplog):
    message = "conversion webhook for kueue.x-k8s.io/v1beta1, Kind=LocalQueue failed: connection refused"
    async with running_cluster() as cluster:
        cluster.faults.add(Fault(FaultKind.STATUS, code=500, message=message, method="GET", path="jobs", times=4))
        cluster.check_one_live_gang(await cluster.submit())
    assert caplog.text.count("The request is repeated for at most 60 s") == 1
