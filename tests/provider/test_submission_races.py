"""Two processes submit the same task at once; every order of their requests ends in one gang."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM
from airflow_provider_gangjobs.submission.submission import Submission
from tests.examples import examples
from tests.interleaving import interleaved
from tests.provider.submission_cluster import GANG_OF_4, RELEASES, InterleavingClient, running_cluster

OTHER = GangSpec(image="trainer:2", workers=4)


TURNS = st.lists(st.integers(0, 1), max_size=24)
HARD = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=examples(30), **HARD)
@given(turns=TURNS, release=st.sampled_from(RELEASES))
async def test_two_submitters_end_in_one_gang(turns, release):
    async with running_cluster(release) as cluster:
        first, second = await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(claim="ti-1", api=api),
            lambda api: cluster.submit(claim="ti-2", api=api),
        )
        assert isinstance(first, Submission), first
        assert isinstance(second, Submission), second
        assert first.ref == second.ref
        cluster.check_one_live_gang(second)


@settings(max_examples=examples(20), **HARD)
@given(turns=TURNS)
async def test_two_tries_that_replace_each_other_leave_one_gang_to_the_next_try(turns):
    async with running_cluster() as cluster:
        await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(claim="ti-1", api=api, durable=False),
            lambda api: cluster.submit(claim="ti-2", api=api, durable=False),
        )
        submission = await cluster.submit(claim="ti-3")
        cluster.check_one_live_gang(submission)


@settings(max_examples=examples(20), **HARD)
@given(turns=TURNS)
async def test_two_tries_with_other_parameters_leave_one_gang(turns):
    async with running_cluster() as cluster:
        ends = await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(GANG_OF_4, claim="ti-1", api=api),
            lambda api: cluster.submit(OTHER, claim="ti-2", api=api),
        )
        assert any(isinstance(end, Submission) for end in ends)
        cluster.bench.run()
        assert len(cluster.live_jobs()) == 1


async def test_many_submitters_at_once_end_in_one_gang(cluster):
    submissions = await asyncio.gather(*(cluster.submit(claim=f"ti-{n}") for n in range(8)))
    assert len({submission.ref for submission in submissions}) == 1
    assert [submission.adopted for submission in submissions].count(False) == 1
    cluster.check_one_live_gang(submissions[0])


async def test_try_that_finds_its_job_created_meanwhile_is_responsible_for_it(cluster):
    api = InterleavingClient(cluster.client, "create jobs", lambda: cluster.submit(claim="ti-1"))
    submission = await cluster.submit(claim="ti-2", api=api)
    cluster.check_one_live_gang(submission)
    (job,) = cluster.live_jobs()
    assert job["metadata"]["annotations"][ANNOTATION_CLAIM] == "ti-2"
