"""A gang with roles is followed to its end: one verdict, one ledger, one event, and no Job is left behind."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_gangjobs.ending.kill import KillResult, end_live_gangs
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.outcome.task_result import task_result
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState
from airflow_provider_gangjobs.gang.state.stopped import format_stopped, stopped_by_user
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import find_record
from airflow_provider_gangjobs.submission.submit import submit
from airflow_provider_gangjobs.tracking.harvest.collect import collect_outcomes, read_outcomes
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.kills import kill
from tests.provider.follower import Follower
from tests.provider.role_gangs import (
    CLAIM,
    LEADER_AND_WORKERS,
    condition_of,
    end,
    end_all,
    jobs_of,
    submit_roles,
)
from tests.provider.submission_cluster import KEY
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane
from tests.provider.virtual_time import in_virtual_time
from tests.submission_requests import id_request


async def running(plane: VirtualControlPlane):
    ref = await submit_roles(plane)
    await plane.until(lambda: plane.running_ranks(ref.name) == 4)
    return ref


def failures(plane: VirtualControlPlane, ref):
    """Return the reason of the failure of each Job; `None` for a Job that has not failed."""
    return {condition_of(job, "Failed") for job in jobs_of(plane, ref).values()}


@in_virtual_time
async def test_gang_succeeds_when_all_roles_have(plane):
    ref = await running(plane)
    following = Follower(plane, ref)
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


@in_virtual_time
async def test_leader_that_ends_first_does_not_end_the_gang(plane):
    ref = await running(plane)
    following = Follower(plane, ref)
    end(plane, ref, "leader")
    await asyncio.sleep(60)
    assert condition_of(jobs_of(plane, ref)["leader"], "Complete") is not None
    assert not following.task.done()
    assert await GangService(plane.client).is_live(ref)
    for rank in range(3):
        end(plane, ref, "worker", rank)
    assert (await following.event()).status is Status.SUCCEEDED


@in_virtual_time
async def test_jobs_stay_until_their_time_to_live_has_passed_after_the_last_role(plane):
    spec = LEADER_AND_WORKERS.__class__(roles=LEADER_AND_WORKERS.roles, ttl_after_finished_s=30)
    ref = await submit_roles(plane, spec)
    await plane.until(lambda: plane.running_ranks(ref.name) == 4)
    following = Follower(plane, ref)
    end(plane, ref, "leader")
    await asyncio.sleep(300)
    assert len(jobs_of(plane, ref)) == 2
    for rank in range(3):
        end(plane, ref, "worker", rank)
    assert (await following.event()).status is Status.SUCCEEDED
    await plane.until(lambda: not jobs_of(plane, ref), within_s=60)


@pytest.mark.parametrize(("role", "name"), [("worker", "rank 1 of role worker"), ("leader", "rank 0 of role leader")])
@in_virtual_time
async def test_rank_that_fails_ends_all_roles(plane, role, name):
    ref = await running(plane)
    following = Follower(plane, ref)
    await asyncio.sleep(5)
    end(plane, ref, role, int(role == "worker"), exit_code=3, text="boom")
    event = await following.event()
    assert (event.status, event.reason) == (Status.FAILED, "AppFailed")
    assert event.message == f"{name} exited with code 3 on node-0; 3 other ranks ended after it"
    assert plane.held(ref.name) == []
    outcomes = [one.outcome for one in await read_outcomes(plane.client, ref)]
    assert sorted(outcomes) == [OutcomeKind.DELETED] * 3 + [OutcomeKind.FAILED]
    assert all(condition_of(job, "Failed") for job in jobs_of(plane, ref).values())


@in_virtual_time
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


@in_virtual_time
async def test_job_of_a_role_that_somebody_deletes_fails_the_gang(plane):
    ref = await running(plane)
    following = Follower(plane, ref)
    await asyncio.sleep(5)
    plane.registry.delete(JOBS, f"{ref.name}-worker", NAMESPACE, propagation="Background")
    event = await following.event()
    assert (event.status, event.reason) == (Status.FAILED, "JobOfRoleDeleted")
    assert event.message == "JobOfRoleDeleted: The Job of role worker was deleted"
    assert event.remedy.startswith("Find out who deleted the Job of the role")
    assert plane.held(ref.name) == []
    assert condition_of(jobs_of(plane, ref)["leader"], "Failed")


@in_virtual_time
async def test_gang_that_does_not_fit_together_times_out_and_holds_nothing():
    """Each role alone would fit."""
    async with VirtualControlPlane.running(cpu="3") as plane:
        ref = await submit_roles(plane)
        event = await Follower(plane, ref, deadlines=Deadlines(assemble_s=60)).event()
        assert (event.status, event.phase) == (Status.TIMEOUT, Phase.ASSEMBLING)
        assert (event.counts["created"], event.counts["placed"]) == (4, 0)
        await plane.until(lambda: not plane.pods(ref.name))
        await plane.until(lambda: failures(plane, ref) == {"DeadlineExceeded"}, within_s=60)


@in_virtual_time
async def test_stop_ends_all_roles(plane):
    ref = await running(plane)
    following = Follower(plane, ref)
    assert await GangService(plane.client).stop(ref, reason="by hand")
    event = await following.event()
    assert (event.status, event.reason, event.message) == (Status.FAILED, "Stopped", "The gang was stopped: by hand")
    assert plane.held(ref.name) == []
    await plane.until(lambda: failures(plane, ref) == {"DeadlineExceeded"}, within_s=60)


@in_virtual_time
async def test_stop_that_only_the_record_has_is_completed_by_the_follower(plane):
    ref = await running(plane)
    note = {"metadata": {"annotations": {"gangjobs.airflow/stopped": format_stopped(stopped_by_user("by hand"))}}}
    plane.registry.patch(JOBS, ref.name, NAMESPACE, {**note, "spec": {"activeDeadlineSeconds": 0}}, PatchKind.MERGE)
    assert (await Follower(plane, ref).event()).reason == "Stopped"
    await plane.until(lambda: failures(plane, ref) == {"DeadlineExceeded"}, within_s=60)


@in_virtual_time
async def test_kill_deletes_all_roles_and_releases_their_pods(plane):
    ref = await running(plane)
    assert await kill(plane.client, ref, CLAIM) is KillResult.DELETED
    await plane.until(lambda: not plane.pods(ref.name) and not jobs_of(plane, ref), within_s=120)


@in_virtual_time
async def test_kill_leaves_a_gang_whose_roles_have_all_ended(plane):
    ref = await running(plane)
    end_all(plane, ref)
    event = await Follower(plane, ref).event()
    assert event.status is Status.SUCCEEDED
    assert await kill(plane.client, ref, CLAIM) is KillResult.ENDED
    assert len(jobs_of(plane, ref)) == 2


@in_virtual_time
async def test_deletion_of_the_record_deletes_the_other_roles(plane):
    ref = await running(plane)
    following = Follower(plane, ref)
    await asyncio.sleep(5)
    plane.delete_job(ref.name)
    assert (await following.event()).status is Status.DELETED
    await plane.until(lambda: not plane.pods(ref.name) and not jobs_of(plane, ref), within_s=120)


@in_virtual_time
async def test_next_try_adopts_a_gang_whose_leader_has_ended(plane):
    ref = await running(plane)
    end(plane, ref, "leader")
    await asyncio.sleep(5)
    assert await submit_roles(plane, claim="ti-2") == ref
    end(plane, ref, "worker", exit_code=1)
    await Follower(plane, ref).event()
    assert await submit_roles(plane, claim="ti-3") != ref


@in_virtual_time
async def test_record_of_a_submission_counts_all_roles(plane):
    from airflow_provider_gangjobs.submission.capabilities import discover_for

    discovered = await discover_for(plane.client, LEADER_AND_WORKERS, namespace=NAMESPACE)
    submission = await submit(plane.client, LEADER_AND_WORKERS, id_request("mine"), discovered=discovered)
    ref = submission.ref
    await plane.until(lambda: plane.running_ranks(ref.name) == 4)
    end(plane, ref, "leader")
    await asyncio.sleep(5)
    record = await find_record(plane.client, "mine", namespace=NAMESPACE)
    assert (record.state, record.workers) == (SubmissionState.IN_PROGRESS, 4)
    for rank in range(3):
        end(plane, ref, "worker", rank)
    await asyncio.sleep(5)
    record = await find_record(plane.client, "mine", namespace=NAMESPACE)
    assert record.phase in (Phase.SUCCEEDED, Phase.FINISHING)


@in_virtual_time
async def test_end_of_live_gangs_ends_all_roles(plane):
    ref = await running(plane)
    ended = await end_live_gangs(
        plane.client,
        KEY,
        CLAIM,
        namespace=ref.namespace,
        stopped=stopped_by_user("the task ended"),
        on_ended=lambda ref: None,
    )
    assert ended == [ref]
    await plane.until(lambda: not plane.pods(ref.name), within_s=120)
