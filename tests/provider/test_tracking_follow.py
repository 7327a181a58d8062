"""A follower against a whole control plane: phases in order, one event, and no held pod at the end."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.waiting import WaitCause
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.tracking import gang_watch
from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes
from airflow_provider_gangjobs.tracking.harvest.harvester import OUTCOMES_KEPT_MAX
from airflow_provider_gangjobs.tracking.wait_evidence import EVENTS_EVERY_S, QUEUE_EVENTS_AFTER_S
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.guarantees.history import is_held
from tests.provider.follower import Follower
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane
from tests.provider.virtual_time import elapsed, in_virtual_time


@in_virtual_time
async def test_gang_that_succeeds_has_one_event(plane):
    ref = plane.submit(workers=3)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 3)
    await asyncio.sleep(5)
    plane.finish_all(message='{"acc": 0.9}')
    event = await following.event()
    assert event.status is Status.SUCCEEDED
    assert event.completed_indexes == "0-2"
    assert [rank.rank for rank in event.ranks] == [0, 1, 2]
    assert Phase.RUNNING in following.phases
    assert following.phases[-1] is Phase.SUCCEEDED
    assert plane.held() == []
    assert [found.result for found in await read_outcomes(plane.client, ref)] == [{"acc": 0.9}] * 3


@in_virtual_time
async def test_large_gang_is_reported_like_a_small_one(plane, monkeypatch):
    monkeypatch.setattr(gang_watch, "REINDEXED_MAX", 2)
    monkeypatch.setattr(gang_watch, "BATCH_PODS", 2)
    workers = 7
    ref = plane.submit(workers=workers)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == workers)
    await asyncio.sleep(5)
    for rank in range(workers):
        plane.finish("train", rank)
    event = await following.event()
    assert (event.status, event.completed_indexes) == (Status.SUCCEEDED, f"0-{workers - 1}")
    lines = [report.line for report in following.reports]
    assert f"running: {workers}/{workers} ranks" in lines
    assert event.counts["succeeded"] == len(await read_outcomes(plane.client, ref)) == workers
    assert plane.held() == []


@in_virtual_time
async def test_all_failed_ranks_of_a_large_gang_are_counted(plane):
    workers = 3 * OUTCOMES_KEPT_MAX
    plane.node("node-1", cpu=str(workers))
    following = Follower(plane, plane.submit(workers=workers))
    await plane.until(lambda: plane.running_ranks() == workers)
    plane.finish("train", 2, exit_code=3)
    event = await following.event()
    assert event.message.endswith(f"; {workers - 1} other ranks ended after it"), event.message


@in_virtual_time
async def test_failed_rank_is_reported_as_the_cause(plane):
    ref = plane.submit(workers=4)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 4)
    await asyncio.sleep(5)
    plane.finish("train", 2, exit_code=3, message="boom")
    event = await following.event()
    assert (event.status, event.category, event.reason) == (Status.FAILED, "ApplicationFailed", "AppFailed")
    assert event.message == "rank 2 exited with code 3 on node-0; 3 other ranks ended after it"
    assert [(event.ranks[0].rank, event.ranks[0].message)] == [(2, "boom")]
    found = await read_outcomes(plane.client, ref)
    assert [one.outcome for one in found] == [
        OutcomeKind.DELETED,
        OutcomeKind.DELETED,
        OutcomeKind.FAILED,
        OutcomeKind.DELETED,
    ]
    assert plane.held() == []


@in_virtual_time
async def test_pods_are_released_while_the_gang_still_runs(plane):
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish("train", 0)
    await plane.until(lambda: not is_held(plane.pod("train", 0)), within_s=2)
    assert is_held(plane.pod("train", 1))
    await following.kill()


@in_virtual_time
async def test_wait_until_running_returns_when_all_ranks_run(plane):
    event = await Follower(plane, plane.submit(workers=3), until="running").event()
    assert (event.status, event.phase) == (Status.RUNNING, Phase.RUNNING)
    assert event.counts["started"] == 3
    assert plane.running_ranks() == 3


@in_virtual_time
async def test_gang_that_ended_before_it_was_followed_is_reported_from_the_ledger(plane):
    ref = plane.submit(workers=2)
    first = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish("train", 1, exit_code=7)
    first_event = await first.event()
    for pod in plane.pods():
        plane.registry.delete("pods", pod["metadata"]["name"], "default", grace_period_s=0)
    await plane.until(lambda: not plane.pods())
    again = await Follower(plane, ref, until="running").event()
    assert again.to_payload()["ranks"] == first_event.to_payload()["ranks"]
    assert (again.status, again.message) == (Status.FAILED, first_event.message)


@in_virtual_time
async def test_follower_that_dies_is_replaced_without_loss(plane):
    ref = plane.submit(workers=3)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 3)
    plane.finish("train", 0)
    await following.kill()
    plane.finish("train", 1)
    following = Follower(plane, ref)
    await plane.until(lambda: len(plane.ledger()) == 2)
    plane.finish("train", 2)
    event = await following.event()
    assert (event.status, len(event.ranks)) == (Status.SUCCEEDED, 3)
    assert plane.held() == []


@in_virtual_time
async def test_two_followers_return_the_same_event(plane):
    ref = plane.submit(workers=4)
    both = [Follower(plane, ref), Follower(plane, ref)]
    await plane.until(lambda: plane.running_ranks() == 4)
    plane.finish("train", 3, exit_code=1)
    events = [await one.event() for one in both]
    assert events[0].to_payload() == events[1].to_payload()
    assert len(await read_outcomes(plane.client, ref)) == 4


@in_virtual_time
async def test_cancelled_follower_leaves_no_task_and_no_watch(plane):
    following = Follower(plane, plane.submit())
    await plane.until(lambda: plane.running_ranks() == 4)
    before = {task.get_name() for task in asyncio.all_tasks()}
    await following.kill()
    assert following.task.cancelled()
    after = {task.get_name() for task in asyncio.all_tasks()}
    assert not any("follow" in name or "gang_watch" in name for name in after)
    assert before > after


@in_virtual_time
async def test_waiting_gangs_share_their_watches():
    async with VirtualControlPlane.running(cpu="1000") as plane:
        followings = [Follower(plane, plane.submit(f"gang-{n}", workers=2)) for n in range(10)]
        await plane.until(lambda: all(plane.running_ranks(f"gang-{n}") == 2 for n in range(10)))
        await asyncio.sleep(60)
        statistics = informers().statistics()
        assert len(statistics) == 3
        assert all(one.lists == 1 for one in statistics.values())
        for one in followings:
            await one.kill()


@in_virtual_time
async def test_each_phase_is_reported_once(plane):
    following = Follower(plane, plane.submit(workers=6))
    await plane.until(lambda: plane.running_ranks() == 6)
    plane.finish_all()
    await following.event()
    reported = [(report.phase, report.wait.cause) for report in following.reports]
    assert len(reported) == len(set(reported))
    assert following.phases == sorted(following.phases, key=list(Phase).index)


@in_virtual_time
async def test_phase_that_lasts_a_moment_is_not_reported(plane):
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish_all()
    await following.event()
    causes = {report.wait.cause for report in following.reports}
    assert not causes & {WaitCause.CONTROLLER, WaitCause.SUBMISSION, WaitCause.PODS_MISSING, WaitCause.SCHEDULER}


@in_virtual_time
async def test_phase_that_lasts_is_reported():
    async with VirtualControlPlane.running(jobs=False) as plane:
        following = Follower(plane, plane.submit(suspend=True))
        await asyncio.sleep(10)
        assert [report.wait.cause for report in following.reports] == [WaitCause.SUBMISSION]
        await following.kill()


@in_virtual_time
async def test_closed_informers_are_replaced(plane):
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    await asyncio.sleep(5)
    await informers().aclose()
    plane.finish_all()
    assert (await following.event()).status is Status.SUCCEEDED
    assert len(following.phases) == len(set(following.phases))


PROPAGATIONS = ["Background", "Foreground", "Orphan"]


@pytest.mark.parametrize("propagation", PROPAGATIONS)
@in_virtual_time
async def test_deleted_job_is_reported_and_holds_no_pod(plane, propagation):
    ref = plane.submit(workers=3)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 3)
    await asyncio.sleep(1)
    plane.delete_job(propagation=propagation)
    event = await following.event()
    assert (event.status, event.phase, event.reason) == (Status.DELETED, Phase.RUNNING, "JobDeleted")
    assert event.category == "JobDeleted"
    assert len(event.ranks) == 3
    assert plane.held() == []


@in_virtual_time
async def test_orphaned_pods_that_run_on_are_given_up(plane):
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.delete_job(propagation="Orphan")
    event = await following.event(within_s=120)
    assert {rank.outcome for rank in event.ranks} == {OutcomeKind.UNKNOWN}
    assert event.notes == ("2 pods had not ended when the gang was over. Their outcome is unknown.",)
    assert plane.running_ranks() == 2
    assert plane.held() == []


@in_virtual_time
async def test_job_deleted_while_nobody_followed_is_reported(plane):
    ref = plane.submit(workers=2)
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.delete_job()
    await plane.until(lambda: plane.job() is None)
    event = await Follower(plane, ref).event()
    assert event.status is Status.DELETED
    assert plane.held() == []


@in_virtual_time
async def test_other_job_of_the_same_name_is_reported_as_a_replacement(plane):
    ref = plane.submit(workers=2, gang=False)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.delete_job()
    await plane.until(lambda: plane.job() is None)
    other = plane.submit(workers=1, gang=False)
    event = await following.event()
    assert event.status in {Status.REPLACED, Status.DELETED}
    await plane.until(lambda: plane.running_ranks() == 1)
    assert [is_held(pod) for pod in plane.pods()] == [True]
    again = await Follower(plane, ref).event()
    assert (again.status, again.reason) == (Status.REPLACED, "JobReplaced")
    assert other.uid in again.message
    assert [is_held(pod) for pod in plane.pods()] == [True]


@in_virtual_time
async def test_job_that_its_ttl_removes_has_succeeded(plane):
    following = Follower(plane, plane.submit(workers=2, ttlSecondsAfterFinished=0))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish_all()
    event = await following.event()
    assert (event.status, event.completed_indexes) == (Status.SUCCEEDED, "0,1")
    assert plane.held() == []


@in_virtual_time
async def test_pod_deleted_by_a_person_is_reported_as_deleted(plane):
    following = Follower(plane, plane.submit(workers=3))
    await plane.until(lambda: plane.running_ranks() == 3)
    await asyncio.sleep(5)
    plane.registry.delete("pods", plane.pod("train", 1)["metadata"]["name"], "default")
    event = await following.event()
    assert (event.status, event.category, event.reason) == (Status.FAILED, "PodDeleted", "PodDeleted")
    assert event.ranks[0].rank == 1


@in_virtual_time
async def test_end_is_noticed_at_once(plane):
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    await asyncio.sleep(100)
    plane.finish_all()
    await plane.until(lambda: any(c["type"] == "Complete" for c in plane.job()["status"].get("conditions", ())))
    completed = elapsed()
    await following.event()
    assert elapsed() - completed < 1


def say_as_kueue(plane: VirtualControlPlane, reason: str, message: str, *, kind: str = "Warning") -> None:
    """Record an Event of the Workload that Kueue would have made for the gang."""
    metadata = {"name": "job-train-1a2b3", "namespace": NAMESPACE, "uid": "workload"}
    workload = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata}
    plane.registry.record_event(workload, kind, reason, message, "kueue-admission")


@in_virtual_time
async def test_events_say_why_a_gang_is_queued_where_workloads_of_kueue_cannot_be_read(plane):
    """The reasons are those of the feature gate UnadmittedWorkloadsObservability."""
    ref = plane.submit(workers=2, suspend=True)
    labels = {"metadata": {"labels": {LABEL_KUEUE_QUEUE: "team"}}}
    plane.registry.patch(JOBS, ref.name, NAMESPACE, labels, PatchKind.MERGE)
    say_as_kueue(plane, "WaitingForQuota", "insufficient unused quota for cpu in flavor f, 2 more needed")
    following = Follower(plane, ref)
    await asyncio.sleep(QUEUE_EVENTS_AFTER_S + 1)
    assert len(following.reports) == 2
    say_as_kueue(plane, "QuotaReserved", "Quota reserved in ClusterQueue c", kind="Normal")
    say_as_kueue(plane, "TopologyPlacementFailed", 'topology "t" allows to fit only 1 out of 2 pod(s)')
    await asyncio.sleep(EVENTS_EVERY_S)
    assert [report.line for report in following.reports] == [
        "queued: Waits for admission by Kueue queue team",
        (
            "queued: Kueue queue team does not admit the gang yet: insufficient unused quota for cpu in flavor f, 2 "
            "more needed"
        ),
        'queued: Kueue queue team does not admit the gang yet: topology "t" allows to fit only 1 out of 2 pod(s)',
    ]
    await following.kill()
