"""One deadline bounds a submission with all of its retries."""

from __future__ import annotations

import pytest

from airflow_provider_gangjobs.cluster.http.transport import RETRY_FOR_S
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.steps.step import WEBHOOK_WAIT_S
from airflow_provider_gangjobs.submission.submission import SUBMISSION_DEADLINE_S
from gangjobs_sandbox.api import Fault, FaultKind
from tests.provider.submission_cluster import GANG_OF_4, KEY, SubmissionCluster, running_cluster


async def fail_to_submit(cluster: SubmissionCluster, **options: float) -> float:
    """Return the seconds until the submission fails with a retryable error."""
    began = cluster.time.now
    with pytest.raises(SubmissionFailed) as failed:
        await GangService(cluster.client).submit(GANG_OF_4, key=KEY, claim="ti-1", **options)
    assert failed.value.retryable
    return cluster.time.now - began


@pytest.mark.parametrize("retry_after_s", [None, 7, 30], ids="Retry-After {}".format)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_endless_throttling_fails_a_submission_at_its_deadline(method, retry_after_s):
    async with running_cluster() as cluster:
        cluster.faults.add(Fault(FaultKind.STATUS, code=429, method=method, retry_after_s=retry_after_s, times=None))
        # The submission does not begin a pause that would end after the deadline. A pause is at most 30 s here.
        assert SUBMISSION_DEADLINE_S - 30 <= await fail_to_submit(cluster) <= SUBMISSION_DEADLINE_S


async def test_throttled_first_list_fails_a_submission_when_the_client_gives_up():
    async with running_cluster() as cluster:
        cluster.faults.add(Fault(FaultKind.STATUS, code=429, method="GET", times=None))
        assert await fail_to_submit(cluster) <= RETRY_FOR_S


async def test_caller_may_set_a_shorter_deadline():
    async with running_cluster() as cluster:
        cluster.faults.add(Fault(FaultKind.STATUS, code=429, method="POST", times=None))
        assert await fail_to_submit(cluster, deadline_s=20) <= 20


async def test_submission_continues_when_throttling_ends_before_the_deadline():
    async with running_cluster() as cluster:
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


async def test_webhook_that_stays_away_fails_a_submission_before_its_deadline():
    async with running_cluster() as cluster:
        cluster.faults.add(Fault(FaultKind.STATUS, code=500, message=WEBHOOK, method="POST", path="jobs", times=None))
        assert WEBHOOK_WAIT_S <= await fail_to_submit(cluster) <= SUBMISSION_DEADLINE_S


async def test_read_that_needs_a_webhook_is_repeated_and_says_so_once(caplog):
    message = "conversion webhook for kueue.x-k8s.io/v1beta1, Kind=LocalQueue failed: connection refused"
    async with running_cluster() as cluster:
        cluster.faults.add(Fault(FaultKind.STATUS, code=500, message=message, method="GET", path="jobs", times=4))
        cluster.check_one_live_gang(await cluster.submit())
    assert caplog.text.count("The request is repeated for at most 60 s") == 1
