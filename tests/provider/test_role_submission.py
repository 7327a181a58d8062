"""A gang with roles is submitted: one Job for each role, one group and one record. A crash leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec.structs import replace as replace_struct

from airflow_provider_gangjobs.ending.submissions import CleanupAction, clean_up_half_submitted
from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec, SubmissionConflict, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG_ROLE, LABEL_INSTALLATION, LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.submission.submit import submit
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES, WORKLOADS
from tests.crashes import Crash, CrashingClient, ProcessDied, crash_points
from tests.provider.role_gangs import LEADER_AND_WORKERS
from tests.provider.submission_cluster import NO_PERMISSION, InterleavingClient, SubmissionCluster, running_cluster
from tests.submission_requests import id_request

ROLES = ("leader", "worker")


def check_one_gang(cluster: SubmissionCluster, submission) -> None:
    """Check that one gang exists with all of its Jobs, that all objects belong to it, and that all pods are placed."""
    cluster.bench.run(30)
    (record,) = cluster.live_jobs()
    uid = record["metadata"]["uid"]
    assert uid == submission.ref.uid
    jobs = cluster.objects(JOBS)
    assert [job["metadata"]["labels"][LABEL_GANG_ROLE] for job in jobs] == list(ROLES)
    assert not any(job["spec"]["suspend"] for job in jobs)
    for resource in (SERVICES, CONFIGMAPS, WORKLOADS, PODGROUPS):
        (owned,) = cluster.objects(resource)
        assert uid in {owner["uid"] for owner in owned["metadata"]["ownerReferences"]}
    pods = cluster.objects(PODS)
    assert len(pods) == len([pod for pod in pods if pod["spec"].get("nodeName")]) == 4


async def test_the_roles_are_jobs_of_one_group():
    async with running_cluster() as cluster:
        submission = await cluster.submit(LEADER_AND_WORKERS)
        check_one_gang(cluster, submission)
        record, other = cluster.objects(JOBS)
        (owner,) = other["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["blockOwnerDeletion"]) == (record["metadata"]["uid"], True)
        (group,) = cluster.objects(PODGROUPS)
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
        (service,) = cluster.objects(SERVICES)
        labels = [pod["metadata"]["labels"] for pod in cluster.objects(PODS)]
        assert all(service["spec"]["selector"].items() <= each.items() for each in labels)


async def all_crashes(*, after_a_crash: bool) -> list[Crash]:
    """Return every crash of a process that submits the gang, or that completes a half-submitted gang."""
    async with running_cluster() as cluster:
        if after_a_crash:
            await die(cluster, Crash(3, applied=True), "ti-1")
        process = CrashingClient(cluster.client)
        await cluster.submit(LEADER_AND_WORKERS, api=process, claim="ti-2")
        return crash_points(process.requests)


async def die(cluster: SubmissionCluster, crash: Crash, claim: str) -> None:
    with pytest.raises(ProcessDied):
        await cluster.submit(LEADER_AND_WORKERS, api=CrashingClient(cluster.client, crash), claim=claim)


@pytest.mark.parametrize("after_a_crash", [False, True], ids=["new", "half-submitted"])
async def test_a_crash_leaves_one_gang_to_the_next_try(after_a_crash):
    for crash in await all_crashes(after_a_crash=after_a_crash):
        async with running_cluster() as cluster:
            if after_a_crash:
                await die(cluster, Crash(3, applied=True), "ti-0")
            await die(cluster, crash, "ti-1")
            cluster.bench.run(3600)
            assert len(cluster.live_jobs()) <= 1, crash
            submission = await cluster.submit(LEADER_AND_WORKERS, claim="ti-last")
            check_one_gang(cluster, submission)
            assert submission.attempt == 0, crash


async def test_roles_that_another_try_creates_name_their_installation():
    key = TaskKey("etl", "run", "train", installation="mine")
    for crash in await all_crashes(after_a_crash=False):
        async with running_cluster() as cluster:
            with pytest.raises(ProcessDied):
                await cluster.submit(LEADER_AND_WORKERS, key=key, api=CrashingClient(cluster.client, crash))
            await cluster.submit(LEADER_AND_WORKERS, key=key, claim="ti-2")
            cluster.bench.run(30)
            labels = [each["metadata"]["labels"] for each in (*cluster.objects(JOBS), *cluster.objects(PODS))]
            assert {each.get(LABEL_INSTALLATION) for each in labels} == {"mine"}, crash


async def test_a_crash_leaves_no_pod_that_runs():
    """The pods of the roles that were started wait for the role that was not."""
    for crash in (await all_crashes(after_a_crash=False))[:-1]:
        async with running_cluster() as cluster:
            await die(cluster, crash, "ti-1")
            cluster.bench.run(600)
            assert not cluster.bench.bound(), crash


async def test_the_cleanup_removes_what_a_crash_left_of_a_task():
    for crash in (await all_crashes(after_a_crash=False))[:-1]:
        async with running_cluster() as cluster:
            await die(cluster, crash, "ti-1")
            cluster.bench.run(60)
            await clean_up_half_submitted(
                cluster.client, namespace=None, older_than=timedelta(), now=cluster.bench.clock.now
            )
            cluster.bench.run(60)
            release_all(cluster)
            assert cluster.objects(JOBS) == cluster.objects(PODGROUPS) == cluster.objects(PODS) == [], crash


def release_all(cluster: SubmissionCluster) -> None:
    """Release the pods, as a sweep does, and let their kubelet stop them."""
    for _ in range(3):
        for pod in cluster.objects(PODS):
            cluster.bench.release(pod, "gangjobs.airflow/harvest")
        cluster.bench.stop_deleted()
        cluster.bench.run(60)


async def test_the_cleanup_completes_the_gang_of_an_id_that_its_client_chose():
    for crash in (await all_crashes(after_a_crash=False))[:-1]:
        async with running_cluster() as cluster:
            process = CrashingClient(cluster.client, crash)
            with pytest.raises(ProcessDied):
                await submit(process, LEADER_AND_WORKERS, id_request("mine"), discovered=cluster.discovered)
            report = await clean_up_half_submitted(
                cluster.client, namespace=None, older_than=timedelta(), now=cluster.bench.clock.now
            )
            cluster.bench.run(60)
            if CleanupAction.REMOVE in report.gangs.values():
                release_all(cluster)
            assert len(cluster.bench.bound()) == (4 if cluster.objects(JOBS) else 0), crash


async def test_half_submitted_gang_of_other_parameters_is_replaced():
    async with running_cluster() as cluster:
        cluster.run_controllers_during_sleep()
        await die(cluster, Crash(4, applied=True), "ti-1")
        roles = {**LEADER_AND_WORKERS.roles, "leader": {"image": "lead:2", "resources": {"cpu": "1"}}}
        submission = await cluster.submit(replace_struct(LEADER_AND_WORKERS, roles=roles), claim="ti-2")
        check_one_gang(cluster, submission)


async def test_other_parameters_of_a_role_are_a_conflict():
    async with running_cluster() as cluster:
        await cluster.submit(LEADER_AND_WORKERS)
        cluster.bench.run(30)
        roles = {**LEADER_AND_WORKERS.roles, "leader": {"image": "lead:2"}}
        with pytest.raises(SubmissionConflict, match="roles"):
            await cluster.submit(replace_struct(LEADER_AND_WORKERS, roles=roles), claim="ti-2")


@pytest.mark.parametrize("at", ["create podgroups", "patch jobs"])
async def test_gang_that_is_stopped_while_it_is_submitted_leaves_no_role_running(at):
    from airflow_provider_gangjobs.ending.kill import stop

    async with running_cluster() as cluster:

        async def stop_it() -> None:
            from airflow_provider_gangjobs.gang.state.stored_gang import read_job

            (job,) = cluster.live_jobs()
            assert await stop(cluster.client, read_job(job).ref, stopped_by_user("stop"))

        with pytest.raises(SubmissionFailed, match="stopped"):
            await cluster.submit(LEADER_AND_WORKERS, api=InterleavingClient(cluster.client, at, stop_it))
        cluster.bench.run(60)
        assert not cluster.bench.bound()
        assert {job["spec"].get("activeDeadlineSeconds") for job in cluster.objects(JOBS)} == {0}


@pytest.mark.parametrize("path", ["podgroups", "jobs$"])
async def test_refused_submission_leaves_nothing(path):
    async with running_cluster() as cluster:
        skip = int(path == "jobs$")  # the Job of the second role is refused
        refused = Fault(
            FaultKind.STATUS, code=403, method="POST", path=path, times=None, skip=skip, message=NO_PERMISSION
        )
        cluster.faults.add(refused)
        with pytest.raises(SubmissionFailed, match="see the documented Role"):
            await cluster.submit(LEADER_AND_WORKERS)
        cluster.bench.run(30)
        assert cluster.objects(JOBS) == []


async def test_required_gang_is_refused_where_the_cluster_has_no_gangs():
    async with running_cluster("none") as cluster:
        with pytest.raises(GangUnsupported):
            await cluster.submit(LEADER_AND_WORKERS)
        assert cluster.objects(JOBS) == []


async def test_preferred_gang_runs_without_a_group_where_the_cluster_has_no_gangs():
    async with running_cluster("none") as cluster:
        submission = await cluster.submit(replace_struct(LEADER_AND_WORKERS, gang="preferred"))
        cluster.bench.run(30)
        assert submission.notes
        assert len(cluster.bench.bound()) == 4


async def test_roles_in_a_queue_are_refused_where_there_is_no_kueue():
    async with running_cluster() as cluster:
        with pytest.raises(
            GangUnsupported, match=r"one JobSet, which only Kueue places; .* does not serve a known version"
        ):
            await cluster.submit(replace_struct(LEADER_AND_WORKERS, queue_name="team"))
        assert cluster.objects(JOBS) == []


async def test_roles_are_refused_where_the_cluster_gives_every_job_to_a_queue():
    async with running_cluster() as cluster:

        class WithQueue:
            """An API server with a webhook that adds a queue to each Job."""

            def __getattr__(self, name):
                return getattr(cluster.client, name)

            async def create(self, resource, body, *args, **kwargs):
                if resource.plural == "jobs":
                    labels = {**body["metadata"]["labels"], LABEL_KUEUE_QUEUE: "default"}
                    body = {**body, "metadata": {**body["metadata"], "labels": labels}}
                return await cluster.client.create(resource, body, *args, **kwargs)

        with pytest.raises(GangUnsupported, match="queue default"):
            await cluster.submit(LEADER_AND_WORKERS, api=WithQueue())
        cluster.bench.run(30)
        assert cluster.objects(JOBS) == []


async def test_spec_with_one_role_is_no_gang_with_roles():
    async with running_cluster() as cluster:
        with pytest.raises(InvalidGangSpec, match="has 1 role"):
            await cluster.submit(GangSpec(roles={"only": {"image": "i"}}))


AT = ("create jobs", "create services", "create configmaps", "create workloads", "create podgroups", "patch jobs")


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("claim", ["ti-1", "ti-2"])
async def test_another_submitter_in_between_makes_no_second_gang(at, claim):
    async with running_cluster() as cluster:
        first = InterleavingClient(cluster.client, at, lambda: cluster.submit(LEADER_AND_WORKERS, claim=claim))
        submission = await cluster.submit(LEADER_AND_WORKERS, api=first)
        assert first.happened
        check_one_gang(cluster, submission)


async def test_adoption_extends_the_time_limit_of_all_roles():
    async with running_cluster() as cluster:
        spec = replace_struct(LEADER_AND_WORKERS, execution_timeout_s=100)
        await cluster.submit(spec)
        before = [job["spec"]["activeDeadlineSeconds"] for job in cluster.objects(JOBS)]
        await cluster.submit(spec, claim="ti-2")
        after = [job["spec"]["activeDeadlineSeconds"] for job in cluster.objects(JOBS)]
    assert (before, after) == ([700] * 2, [1400] * 2)


@pytest.mark.parametrize("loses_answer", [False, True])
async def test_adoption_without_a_time_limit_removes_that_of_all_roles(loses_answer):
    async with running_cluster() as cluster:
        await cluster.submit(replace_struct(LEADER_AND_WORKERS, execution_timeout_s=100))
        if loses_answer:
            cluster.faults.add(Fault(FaultKind.DROP_AFTER, method="PATCH", path="/jobs/"))
        await cluster.submit(LEADER_AND_WORKERS, claim="ti-2")
        after = [job["spec"].get("activeDeadlineSeconds") for job in cluster.objects(JOBS)]
    assert after == [None] * 2


async def test_roles_get_the_time_limit_of_a_claim_whose_answer_was_lost():
    async with running_cluster() as cluster:
        spec = replace_struct(LEADER_AND_WORKERS, execution_timeout_s=100)
        await cluster.submit(spec)
        cluster.faults.add(Fault(FaultKind.DROP_AFTER, method="PATCH", path="/jobs/"))
        await cluster.submit(spec, claim="ti-2")
        assert len(cluster.faults.history) == 1
        after = [job["spec"]["activeDeadlineSeconds"] for job in cluster.objects(JOBS)]
    assert after == [1400] * 2


DEFAULTS = {"queue": ({"queue_name": "team"}, "one JobSet"), "yunikorn": ({"gang_scheduler": "yunikorn"}, "one kind")}


@pytest.mark.parametrize(("defaults", "reason"), DEFAULTS.values(), ids=DEFAULTS)
async def test_defaults_of_a_connection_that_the_cluster_cannot_keep_are_refused(defaults, reason):
    async with running_cluster() as cluster:
        cluster.discovered = replace(cluster.discovered, **defaults)
        with pytest.raises(GangUnsupported, match=reason):
            await cluster.submit(LEADER_AND_WORKERS)
        assert cluster.objects(JOBS) == []
