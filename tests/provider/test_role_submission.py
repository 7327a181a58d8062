"""A gang with roles is submitted and followed to its end: one group, one record, one event, and nothing is left."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.ending.delete import end_live_gangs
from airflow_provider_gangjobs.ending.submissions import CleanupReport, clean_up_half_submitted
from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec, SubmissionConflict, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.outcome.task_result import task_result
from airflow_provider_gangjobs.gang.spec import GangSpec, Results
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.ownership import SweepAction
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, SubmissionState
from airflow_provider_gangjobs.gang.state.stopped import format_stopped, stopped_by_user
from airflow_provider_gangjobs.kube.well_known import LABEL_INSTALLATION
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submit import submit
from airflow_provider_gangjobs.tracking.harvest.collect import collect_outcomes, read_outcomes
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS, PODGROUPS, PODS, SERVICES
from tests.crashes import Crash, CrashingClient, InterceptedClient, ProcessDied
from tests.ends import Killed, kill
from tests.provider.role_gangs import (
    CLAIM,
    LEADER_AND_WORKERS,
    condition_of,
    end,
    end_all,
    jobs_of,
    running,
    submit_roles,
)
from tests.provider.submission_cluster import KEY, InterleavingClient, SubmissionCluster, running_cluster
from tests.provider.test_capabilities import ManagedJobs, labelled
from tests.provider.test_submission_crashes import all_crashes, die
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time
from tests.submission_requests import id_request

pytestmark = in_virtual_time

# -- A gang with roles is submitted: one Job for each role, one group and one record. A crash leaves nothing
#    behind ----------------------------------------------------------------------------------------------------------


async def test_the_roles_are_jobs_of_one_group(cluster):
    submission = await cluster.submit(LEADER_AND_WORKERS)
    cluster.check_one_live_gang(submission)
    record, other = cluster.objects(JOBS)
    (owner,) = other["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["blockOwnerDeletion"]) == (record["metadata"]["uid"], True)
    (group,) = cluster.objects(PODGROUPS)
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    (service,) = cluster.objects(SERVICES)
    labels = [pod["metadata"]["labels"] for pod in cluster.objects(PODS)]
    assert all(service["spec"]["selector"].items() <= each.items() for each in labels)


async def test_roles_that_another_try_creates_name_their_installation():
    key = TaskKey("etl", "run", "train", installation="mine")
    for crash in await all_crashes("1.37", LEADER_AND_WORKERS):
        async with running_cluster() as cluster:
            with pytest.raises(ProcessDied):
                await cluster.submit(LEADER_AND_WORKERS, key=key, api=CrashingClient(cluster.client, crash))
            await cluster.submit(LEADER_AND_WORKERS, key=key, claim="ti-2")
            cluster.bench.run(30)
            labels = [each["metadata"]["labels"] for each in (*cluster.objects(JOBS), *cluster.objects(PODS))]
            assert {each.get(LABEL_INSTALLATION) for each in labels} == {"mine"}, crash


async def test_a_crash_leaves_no_pod_that_runs_and_the_cleanup_removes_what_it_left_of_a_task():
    """The pods of the roles that were started wait for the role that was not."""
    for crash in (await all_crashes("1.37", LEADER_AND_WORKERS))[:-1]:
        async with running_cluster() as cluster:
            await die(cluster, LEADER_AND_WORKERS, crash, "ti-1")
            cluster.bench.run(600)
            assert not cluster.bench.bound(), crash
            await clean_up(cluster)
            release_all(cluster)
            assert cluster.objects(JOBS) == cluster.objects(PODGROUPS) == cluster.objects(PODS) == [], crash


async def clean_up(cluster: SubmissionCluster) -> CleanupReport:
    report = await clean_up_half_submitted(
        cluster.client, namespace=None, older_than=timedelta(), now=cluster.bench.clock.now
    )
    cluster.bench.run(60)
    return report


def release_all(cluster: SubmissionCluster) -> None:
    """Release the pods, as a sweep does, and let their kubelet stop them."""
    for _ in range(3):
        for pod in cluster.objects(PODS):
            cluster.bench.release(pod, "gangjobs.airflow/harvest")
        cluster.bench.stop_deleted()
        cluster.bench.run(60)


async def test_the_cleanup_completes_the_gang_of_an_id_that_its_client_chose():
    for crash in (await all_crashes("1.37", LEADER_AND_WORKERS))[:-1]:
        async with running_cluster() as cluster:
            process = CrashingClient(cluster.client, crash)
            with pytest.raises(ProcessDied):
                await submit(process, LEADER_AND_WORKERS, id_request("mine"), discovered=cluster.discovered)
            report = await clean_up(cluster)
            if SweepAction.REMOVE in report.gangs.values():
                release_all(cluster)
            assert len(cluster.bench.bound()) == (4 if cluster.objects(JOBS) else 0), crash


async def test_half_submitted_gang_of_other_parameters_is_replaced(cluster):
    cluster.run_controllers_during_sleep()
    await die(cluster, LEADER_AND_WORKERS, Crash(4, applied=True), "ti-1")
    roles = {**LEADER_AND_WORKERS.roles, "leader": {"image": "lead:2", "resources": {"cpu": "1"}}}
    submission = await cluster.submit(replace(LEADER_AND_WORKERS, roles=roles), claim="ti-2")
    cluster.check_one_live_gang(submission)


async def test_other_parameters_of_a_role_are_a_conflict(cluster):
    await cluster.submit(LEADER_AND_WORKERS)
    cluster.bench.run(30)
    roles = {**LEADER_AND_WORKERS.roles, "leader": {"image": "lead:2"}}
    with pytest.raises(SubmissionConflict, match="roles"):
        await cluster.submit(replace(LEADER_AND_WORKERS, roles=roles), claim="ti-2")


@pytest.mark.parametrize("at", ["create podgroups", "patch jobs"])
async def test_gang_that_is_stopped_while_it_is_submitted_leaves_no_role_running(cluster, at):
    from tests.ends import stop_gang

    async def stop_it() -> None:
        from airflow_provider_gangjobs.gang.state.stored_gang import read_job

        (job,) = cluster.live_jobs()
        assert await stop_gang(cluster.client, read_job(job).ref, reason="stop")

    with pytest.raises(SubmissionFailed, match="stopped"):
        await cluster.submit(LEADER_AND_WORKERS, api=InterleavingClient(cluster.client, at, stop_it))
    cluster.bench.run(60)
    assert not cluster.bench.bound()
    assert {job["spec"].get("activeDeadlineSeconds") for job in cluster.objects(JOBS)} == {0}


async def test_roles_in_a_queue_are_refused_where_there_is_no_kueue(cluster):
    with pytest.raises(
        GangUnsupported, match=r"one JobSet, which only Kueue places; .* does not serve a known version"
    ):
        await cluster.submit(replace(LEADER_AND_WORKERS, queue_name="team"))
    assert cluster.objects(JOBS) == []


async def test_roles_are_refused_where_the_cluster_gives_every_job_to_a_queue(cluster):
    class WithQueue(ManagedJobs):
        """The client of a cluster that does not say that it serves Kueue."""

        api_groups = InterceptedClient.api_groups

    with pytest.raises(GangUnsupported, match="queue default"):
        await cluster.submit(LEADER_AND_WORKERS, api=WithQueue(cluster.client, labelled))
    cluster.bench.run(30)
    assert cluster.objects(JOBS) == []


async def test_spec_with_one_role_is_no_gang_with_roles(cluster):
    with pytest.raises(InvalidGangSpec, match="has 1 role"):
        await cluster.submit(GangSpec(roles={"only": {"image": "i"}}))


AT = ("create jobs", "create services", "create configmaps", "create workloads", "create podgroups", "patch jobs")


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("claim", ["ti-1", "ti-2"])
async def test_another_submitter_in_between_makes_no_second_gang(cluster, at, claim):
    first = InterleavingClient(cluster.client, at, lambda: cluster.submit(LEADER_AND_WORKERS, claim=claim))
    submission = await cluster.submit(LEADER_AND_WORKERS, api=first)
    assert first.happened
    cluster.check_one_live_gang(submission)


@pytest.mark.parametrize("loses_answer", [False, True])
@pytest.mark.parametrize(("second_s", "expected"), [(100, 1400), (None, None)])
async def test_adoption_sets_the_time_limit_of_all_roles_anew(second_s, expected, loses_answer):
    async with running_cluster() as cluster:
        await cluster.submit(replace(LEADER_AND_WORKERS, execution_timeout_s=100))
        before = [job["spec"]["activeDeadlineSeconds"] for job in cluster.objects(JOBS)]
        if loses_answer:
            cluster.faults.add(Fault(FaultKind.DROP_AFTER, method="PATCH", path="/jobs/"))
        await cluster.submit(replace(LEADER_AND_WORKERS, execution_timeout_s=second_s), claim="ti-2")
        assert len(cluster.faults.history) == loses_answer
        after = [job["spec"].get("activeDeadlineSeconds") for job in cluster.objects(JOBS)]
    assert (before, after) == ([700] * 2, [expected] * 2)


DEFAULTS = {"queue": ({"queue_name": "team"}, "one JobSet"), "yunikorn": ({"gang_scheduler": "yunikorn"}, "one kind")}


@pytest.mark.parametrize(("defaults", "reason"), DEFAULTS.values(), ids=DEFAULTS)
async def test_defaults_of_a_connection_that_the_cluster_cannot_keep_are_refused(cluster, defaults, reason):
    cluster.discovered = replace(cluster.discovered, **defaults)
    with pytest.raises(GangUnsupported, match=reason):
        await cluster.submit(LEADER_AND_WORKERS)
    assert cluster.objects(JOBS) == []


# -- A gang with roles is followed to its end: one verdict, one ledger, one event, and no Job is left behind ---------


def failures(plane: VirtualControlPlane, ref):
    """Return the reason of the failure of each Job; `None` for a Job that has not failed."""
    return {condition_of(job, "Failed") for job in jobs_of(plane, ref).values()}


def end_workers(plane: VirtualControlPlane, ref: GangRef) -> None:
    for rank in range(3):
        end(plane, ref, "worker", rank)


async def followed(plane: VirtualControlPlane) -> tuple[GangRef, Follower]:
    """Return a gang whose four ranks run, and a task that follows the gang."""
    ref = await running(plane)
    return ref, Follower(plane, ref)


async def test_gang_succeeds_when_all_roles_have(plane):
    ref, following = await followed(plane)
    await asyncio.sleep(5)
    end_all(plane, ref)
    event = await following.event()
    assert (event.status, event.completed_indexes, event.notes) == (Status.SUCCEEDED, "0,1-3", ())
    assert [(rank.role, rank.role_rank) for rank in event.ranks] == [
        ("leader", 0),
        ("worker", 0),
        ("worker", 1),
        ("worker", 2),
    ]
    assert (event.counts["ranks"], event.counts["succeeded"], event.counts["held"]) == (4, 4, 0)
    assert plane.held(ref.name) == []
    collected = await collect_outcomes(plane.client, event)
    results = task_result(collected.outcomes, collected.completed, Results.ALL, ref)
    assert results == {"leader": ["leader"], "worker": ["worker"] * 3}


async def test_leader_that_ends_first_does_not_end_the_gang(plane):
    ref, following = await followed(plane)
    end(plane, ref, "leader")
    await asyncio.sleep(60)
    assert condition_of(jobs_of(plane, ref)["leader"], "Complete") is not None
    assert not following.task.done()
    assert await GangService(plane.client).is_live(ref)
    end_workers(plane, ref)
    assert (await following.event()).status is Status.SUCCEEDED


async def test_jobs_stay_until_their_time_to_live_has_passed_after_the_last_role(plane):
    spec = LEADER_AND_WORKERS.__class__(roles=LEADER_AND_WORKERS.roles, ttl_after_finished_s=30)
    ref = await submit_roles(plane, spec)
    await plane.until(lambda: plane.running_ranks(ref.name) == 4)
    following = Follower(plane, ref)
    end(plane, ref, "leader")
    await asyncio.sleep(300)
    assert len(jobs_of(plane, ref)) == 2
    end_workers(plane, ref)
    assert (await following.event()).status is Status.SUCCEEDED
    await plane.until(lambda: not jobs_of(plane, ref), within_s=60)


@pytest.mark.parametrize(("role", "name"), [("worker", "rank 1 of role worker"), ("leader", "rank 0 of role leader")])
async def test_rank_that_fails_ends_all_roles(plane, role, name):
    ref, following = await followed(plane)
    await asyncio.sleep(5)
    end(plane, ref, role, int(role == "worker"), exit_code=3, text="boom")
    event = await following.event()
    assert (event.status, event.reason) == (Status.FAILED, "AppFailed")
    assert event.message == f"{name} exited with code 3 on node-0; 3 other ranks ended after it"
    assert plane.held(ref.name) == []
    outcomes = [one.outcome for one in await read_outcomes(plane.client, ref)]
    assert sorted(outcomes) == [OutcomeKind.DELETED] * 3 + [OutcomeKind.FAILED]
    assert all(condition_of(job, "Failed") for job in jobs_of(plane, ref).values())


async def test_another_follower_ends_the_roles_that_are_left(plane):
    """The first follower dies after one role has failed."""
    ref = await running(plane)
    end(plane, ref, "worker", exit_code=3)
    await asyncio.sleep(60)
    assert condition_of(jobs_of(plane, ref)["leader"], "Failed") is None
    event = await Follower(plane, ref).event()
    assert (event.status, event.reason) == (Status.FAILED, "AppFailed")
    again = await Follower(plane, ref).event()
    assert (again.status, again.message) == (event.status, event.message)


async def test_job_of_a_role_that_somebody_deletes_fails_the_gang(plane):
    ref, following = await followed(plane)
    await asyncio.sleep(5)
    plane.registry.delete(JOBS, f"{ref.name}-worker", NAMESPACE, propagation="Background")
    event = await following.event()
    assert (event.status, event.reason) == (Status.FAILED, "JobOfRoleDeleted")
    assert event.message == "JobOfRoleDeleted: The Job of role worker was deleted"
    assert event.remedy.startswith("Find out who deleted the Job of the role")
    assert plane.held(ref.name) == []
    assert condition_of(jobs_of(plane, ref)["leader"], "Failed")


async def test_gang_that_does_not_fit_together_times_out_and_holds_nothing():
    """Each role alone would fit."""
    async with VirtualControlPlane.running(cpu="3") as plane:
        ref = await submit_roles(plane)
        event = await Follower(plane, ref, deadlines=Deadlines(assemble_s=60)).event()
        assert (event.status, event.phase) == (Status.TIMEOUT, Phase.ASSEMBLING)
        assert (event.counts["created"], event.counts["placed"]) == (4, 0)
        await plane.until(lambda: not plane.pods(ref.name))
        await plane.until(lambda: failures(plane, ref) == {"DeadlineExceeded"}, within_s=60)


async def test_stop_ends_all_roles(plane):
    ref, following = await followed(plane)
    assert await GangService(plane.client).stop(ref, reason="by hand")
    event = await following.event()
    assert (event.status, event.reason, event.message) == (Status.FAILED, "Stopped", "The gang was stopped: by hand")
    assert plane.held(ref.name) == []
    await plane.until(lambda: failures(plane, ref) == {"DeadlineExceeded"}, within_s=60)


async def test_stop_that_only_the_record_has_is_completed_by_the_follower(plane):
    ref = await running(plane)
    note = {"metadata": {"annotations": {"gangjobs.airflow/stopped": format_stopped(stopped_by_user("by hand"))}}}
    plane.registry.patch(JOBS, ref.name, NAMESPACE, {**note, "spec": {"activeDeadlineSeconds": 0}}, PatchKind.MERGE)
    assert (await Follower(plane, ref).event()).reason == "Stopped"
    await plane.until(lambda: failures(plane, ref) == {"DeadlineExceeded"}, within_s=60)


async def test_kill_leaves_a_gang_whose_roles_have_all_ended(plane):
    ref = await running(plane)
    end_all(plane, ref)
    event = await Follower(plane, ref).event()
    assert event.status is Status.SUCCEEDED
    assert await kill(plane.client, ref, CLAIM) is Killed.ENDED
    assert len(jobs_of(plane, ref)) == 2


async def test_deletion_of_the_record_deletes_the_other_roles(plane):
    ref, following = await followed(plane)
    await asyncio.sleep(5)
    plane.delete_job(ref.name)
    assert (await following.event()).status is Status.DELETED
    await plane.until(lambda: not plane.pods(ref.name) and not jobs_of(plane, ref), within_s=120)


async def test_next_try_adopts_a_gang_whose_leader_has_ended(plane):
    ref = await running(plane)
    end(plane, ref, "leader")
    await asyncio.sleep(5)
    assert await submit_roles(plane, claim="ti-2") == ref
    end(plane, ref, "worker", exit_code=1)
    await Follower(plane, ref).event()
    assert await submit_roles(plane, claim="ti-3") != ref


async def test_record_of_a_submission_counts_all_roles(plane):
    from airflow_provider_gangjobs.submission.capabilities import discover_for

    discovered = await discover_for(plane.client, LEADER_AND_WORKERS, namespace=NAMESPACE)
    submission = await submit(plane.client, LEADER_AND_WORKERS, id_request("mine"), discovered=discovered)
    ref = submission.ref
    await plane.until(lambda: plane.running_ranks(ref.name) == 4)
    end(plane, ref, "leader")
    await asyncio.sleep(5)
    record = await GangService(plane.client).submission("mine", namespace=NAMESPACE)
    assert (record.state, record.ranks) == (SubmissionState.IN_PROGRESS, 4)
    end_workers(plane, ref)
    await asyncio.sleep(5)
    record = await GangService(plane.client).submission("mine", namespace=NAMESPACE)
    assert record.phase in (Phase.SUCCEEDED, Phase.FINISHING)


async def test_end_of_live_gangs_ends_all_roles(plane):
    ref = await running(plane)
    ended = []
    await end_live_gangs(
        plane.client,
        KEY,
        CLAIM,
        namespace=ref.namespace,
        stopped=stopped_by_user("the task ended"),
        on_ended=ended.append,
    )
    assert ended == [ref]
    await plane.until(lambda: not plane.pods(ref.name), within_s=120)
