"""A follower against a whole control plane: phases in order, one event, and no pod that is held."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import Conflict
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_job, stop_patch
from airflow_provider_gangjobs.jobs.requests import list_pods
from airflow_provider_gangjobs.kube import resources
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.tracking import gang_watch
from airflow_provider_gangjobs.tracking.harvest import final_harvest
from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes
from airflow_provider_gangjobs.tracking.harvest.harvester import OUTCOMES_KEPT_MAX, harvest_totals
from airflow_provider_gangjobs.tracking.harvest.ledger import decode
from airflow_provider_gangjobs.tracking.wait_evidence import EVENTS_EVERY_S, QUEUE_EVENTS_AFTER_S
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS, PODS
from tests.crashes import CrashingClient
from tests.guarantees.harvest import check_harvest, counted_once
from tests.guarantees.history import is_held
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef

pytestmark = in_virtual_time


# -- A follower against a whole control plane: phases in order, one event, and no held pod at the end ----------------


async def test_gang_that_succeeds_has_one_event(plane):
    following = await Follower.of_running_gang(plane, workers=3)
    await asyncio.sleep(5)
    plane.finish_all(message='{"acc": 0.9}')
    event = await following.event()
    assert event.status is Status.SUCCEEDED
    assert event.completed_indexes == "0-2"
    assert [rank.rank for rank in event.ranks] == [0, 1, 2]
    assert Phase.RUNNING in following.phases
    assert following.phases[-1] is Phase.SUCCEEDED
    assert plane.held() == []
    assert [found.result for found in await read_outcomes(plane.client, following.ref)] == [{"acc": 0.9}] * 3


async def test_large_gang_is_reported_like_a_small_one(plane, monkeypatch):
    monkeypatch.setattr(gang_watch, "REINDEXED_MAX", 2)
    monkeypatch.setattr(gang_watch, "BATCH_PODS", 2)
    workers = 7
    following = await Follower.of_running_gang(plane, workers=workers)
    await asyncio.sleep(5)
    for rank in range(workers):
        plane.finish("train", rank)
    event = await following.event()
    assert (event.status, event.completed_indexes) == (Status.SUCCEEDED, f"0-{workers - 1}")
    lines = [report.line for report in following.reports]
    assert f"running: {workers}/{workers} ranks" in lines
    assert event.counts["succeeded"] == len(await read_outcomes(plane.client, following.ref)) == workers
    assert plane.held() == []


async def test_all_failed_ranks_of_a_large_gang_are_counted(plane):
    workers = 3 * OUTCOMES_KEPT_MAX
    plane.node("node-1", cpu=str(workers))
    following = await Follower.of_running_gang(plane, workers=workers)
    plane.finish("train", 2, exit_code=3)
    event = await following.event()
    assert event.message.endswith(f"; {workers - 1} other ranks ended after it"), event.message


async def test_failed_rank_is_reported_as_the_cause(plane):
    following = await Follower.of_running_gang(plane, workers=4)
    await asyncio.sleep(5)
    plane.finish("train", 2, exit_code=3, message="boom")
    event = await following.event()
    assert (event.status, event.category, event.reason) == (Status.FAILED, "ApplicationFailed", "AppFailed")
    assert event.message == "rank 2 exited with code 3 on node-0; 3 other ranks ended after it"
    assert [(event.ranks[0].rank, event.ranks[0].message)] == [(2, "boom")]
    found = await read_outcomes(plane.client, following.ref)
    assert [one.outcome for one in found] == [
        OutcomeKind.DELETED,
        OutcomeKind.DELETED,
        OutcomeKind.FAILED,
        OutcomeKind.DELETED,
    ]
    assert plane.held() == []


async def test_pods_are_released_while_the_gang_still_runs(plane):
    following = await Follower.of_running_gang(plane, workers=2)
    plane.finish("train", 0)
    await plane.until(lambda: not is_held(plane.pod("train", 0)), within_s=2)
    assert is_held(plane.pod("train", 1))
    await following.kill()


async def test_wait_until_running_returns_when_all_ranks_run(plane):
    event = await Follower(plane, plane.submit(workers=3), until="running").event()
    assert (event.status, event.phase) == (Status.RUNNING, Phase.RUNNING)
    assert event.counts["started"] == 3
    assert plane.running_ranks() == 3


async def test_gang_that_ended_before_it_was_followed_is_reported_from_the_ledger(plane):
    first = await Follower.of_running_gang(plane, workers=2)
    plane.finish("train", 1, exit_code=7)
    first_event = await first.event()
    for pod in plane.pods():
        plane.registry.delete("pods", pod["metadata"]["name"], "default", grace_period_s=0)
    await plane.until(lambda: not plane.pods())
    again = await Follower(plane, first.ref, until="running").event()
    assert again.to_payload()["ranks"] == first_event.to_payload()["ranks"]
    assert (again.status, again.message) == (Status.FAILED, first_event.message)


async def test_two_followers_return_the_same_event(plane):
    ref = plane.submit(workers=4)
    both = [Follower(plane, ref), Follower(plane, ref)]
    await plane.until(lambda: plane.running_ranks() == 4)
    plane.finish("train", 3, exit_code=1)
    events = [await one.event() for one in both]
    assert events[0].to_payload() == events[1].to_payload()
    assert len(await read_outcomes(plane.client, ref)) == 4


async def test_cancelled_follower_leaves_no_task_and_no_watch(plane):
    following = await Follower.of_running_gang(plane)
    before = {task.get_name() for task in asyncio.all_tasks()}
    await following.kill()
    assert following.task.cancelled()
    after = {task.get_name() for task in asyncio.all_tasks()}
    assert not any("follow" in name or "gang_watch" in name for name in after)
    assert before > after


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


async def test_each_phase_that_lasts_longer_than_a_moment_is_reported_once(plane):
    following = await Follower.of_running_gang(plane, workers=6)
    plane.finish_all()
    await following.event()
    reported = [(report.phase, report.reason.category) for report in following.reports]
    assert len(reported) == len(set(reported))
    assert following.phases == sorted(following.phases, key=list(Phase).index)
    moments = {Category.CONTROLLER_SILENT, Category.SUBMISSION_INCOMPLETE, Category.SCHEDULER_SILENT}
    assert not moments & {category for _, category in reported}


async def test_phase_that_lasts_is_reported():
    async with VirtualControlPlane.running(jobs=False) as plane:
        following = Follower(plane, plane.submit(suspend=True))
        await asyncio.sleep(10)
        assert [report.reason.category for report in following.reports] == [Category.SUBMISSION_INCOMPLETE]
        await following.kill()


async def test_closed_informers_are_replaced(plane):
    following = await Follower.of_running_gang(plane, workers=2)
    await asyncio.sleep(5)
    await informers().aclose()
    plane.finish_all()
    assert (await following.event()).status is Status.SUCCEEDED
    assert len(following.phases) == len(set(following.phases))


PROPAGATIONS = ["Background", "Foreground", "Orphan"]


@pytest.mark.parametrize("propagation", PROPAGATIONS)
async def test_deleted_job_is_reported_and_holds_no_pod(plane, propagation):
    following = await Follower.of_running_gang(plane, workers=3)
    await asyncio.sleep(1)
    plane.delete_job(propagation=propagation)
    event = await following.event()
    assert (event.status, event.phase, event.reason) == (Status.DELETED, Phase.RUNNING, "JobDeleted")
    assert event.category == "JobDeleted"
    assert len(event.ranks) == 3
    assert plane.held() == []


async def test_orphaned_pods_that_run_on_are_given_up(plane):
    following = await Follower.of_running_gang(plane, workers=2)
    plane.delete_job(propagation="Orphan")
    event = await following.event(within_s=120)
    assert {rank.outcome for rank in event.ranks} == {OutcomeKind.UNKNOWN}
    assert event.notes == ("2 pods had not ended when the gang was over. Their outcome is unknown.",)
    assert plane.running_ranks() == 2
    assert plane.held() == []


async def test_job_deleted_while_nobody_followed_is_reported(plane):
    ref = await plane.run_gang(workers=2)
    plane.delete_job()
    await plane.until(lambda: plane.job() is None)
    event = await Follower(plane, ref).event()
    assert event.status is Status.DELETED
    assert plane.held() == []


async def test_other_job_of_the_same_name_is_reported_as_a_replacement(plane):
    following = await Follower.of_running_gang(plane, workers=2, gang=False)
    plane.delete_job()
    await plane.until(lambda: plane.job() is None)
    other = plane.submit(workers=1, gang=False)
    event = await following.event()
    assert event.status in {Status.REPLACED, Status.DELETED}
    await plane.until(lambda: plane.running_ranks() == 1)
    assert [is_held(pod) for pod in plane.pods()] == [True]
    again = await Follower(plane, following.ref).event()
    assert (again.status, again.reason) == (Status.REPLACED, "JobReplaced")
    assert other.uid in again.message
    assert [is_held(pod) for pod in plane.pods()] == [True]


async def test_job_that_its_ttl_removes_has_succeeded(plane):
    following = await Follower.of_running_gang(plane, workers=2, ttlSecondsAfterFinished=0)
    plane.finish_all()
    event = await following.event()
    assert (event.status, event.completed_indexes) == (Status.SUCCEEDED, "0,1")
    assert plane.held() == []


async def test_rank_that_failed_before_its_node_was_drained_is_no_disruption(plane):
    """No triggerer ran meanwhile, so the finalizer has held the pod."""
    ref = await plane.run_gang(workers=2)
    plane.finish("train", 1, exit_code=3)
    await asyncio.sleep(60)
    plane.registry.evict(plane.pod("train", 1)["metadata"]["name"], "default")
    conditions = plane.pod("train", 1)["status"]["conditions"]
    assert "EvictionByEvictionAPI" in {one.get("reason") for one in conditions}
    event = await Follower(plane, ref).event()
    assert (event.status, event.reason) == (Status.FAILED, "AppFailed")


async def test_pod_deleted_by_a_person_is_reported_as_deleted(plane):
    following = await Follower.of_running_gang(plane, workers=3)
    await asyncio.sleep(5)
    plane.registry.delete("pods", plane.pod("train", 1)["metadata"]["name"], "default")
    event = await following.event()
    assert (event.status, event.category, event.reason) == (Status.FAILED, "PodDeleted", "PodDeleted")
    assert event.ranks[0].rank == 1


async def test_end_is_noticed_at_once(plane):
    following = await Follower.of_running_gang(plane, workers=2)
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


# -- The end of a gang: which requests a follower sends before it returns the event, and what it verifies ------------


class RecordingFollower(Follower):
    """A task that follows a gang, and the requests that it has sent since the last call of `forget`."""

    def __init__(self, plane: VirtualControlPlane, ref: GangRef, **options: Any) -> None:
        self.client = CrashingClient(plane.client)
        super().__init__(plane, ref, client=self.client, **options)

    def forget(self) -> None:
        self.client.requests.clear()

    def count_of(self, request: str) -> int:
        return self.client.requests.count(request)


def uids(plane: VirtualControlPlane) -> set[str]:
    return {pod["metadata"]["uid"] for pod in plane.pods()}


async def test_observed_success_is_not_asked_about(plane):
    follower = await RecordingFollower.of_running_gang(plane, workers=3)
    await asyncio.sleep(5)
    follower.forget()
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert (follower.count_of("GET jobs"), follower.count_of("LIST pods")) == (0, 0)
    check_harvest(plane.history, uids(plane))


async def test_pods_of_a_failed_gang_are_listed(plane):
    follower = await RecordingFollower.of_running_gang(plane, workers=3)
    follower.forget()
    there = uids(plane)
    plane.finish("train", 1, exit_code=3)
    assert (await follower.event()).status is Status.FAILED
    assert follower.count_of("LIST pods") >= 1
    check_harvest(plane.history, there)


async def test_pods_of_a_gang_that_a_queue_had_suspended_are_listed(plane):
    follower = await RecordingFollower.of_running_gang(plane, workers=2)
    first = uids(plane)
    await plane.suspend_and_resume()
    follower.forget()
    second = uids(plane)
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert follower.count_of("LIST pods") >= 1
    check_harvest(plane.history, first | second)


async def test_pod_that_was_created_while_the_watch_was_lost_is_found_next_to_a_complete_gang(plane):
    """A controller that has lost its state may create a further pod of a Job that has succeeded."""
    follower = await RecordingFollower.of_running_gang(plane, workers=2)
    await asyncio.sleep(5)
    plane.arm("status", method="GET", path="/pods$", query="watch=", times=None, code=410)
    plane.arm("drop-after", method="GET", path="/pods$", query="watch=", times=1, chunks=1)
    twin = plane.pod("train", 0)
    meta = {key: twin["metadata"][key] for key in ("labels", "annotations", "ownerReferences", "finalizers")}
    await asyncio.sleep(400)  # the watch has ended, and the next is refused: the list is read again
    twin = plane.registry.create(PODS, {"metadata": {**meta, "name": "twin"}, "spec": {**twin["spec"]}}, NAMESPACE)
    plane._end(twin, 0, "")
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert plane.held() == []
    assert twin["metadata"]["uid"] in plane.ledger()


def treat_every_gang_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_harvest, "LISTED_AT_ONCE_MAX", 1)
    monkeypatch.setattr(final_harvest, "LAG_PER_POD_S", 5.0)


async def test_pods_are_processed_at_most_as_often_as_they_change(plane):
    """If each change of a pod processed all pods, the end of a large gang would take quadratic time."""
    follower = await RecordingFollower.of_running_gang(plane, workers=12)
    plane.delete_job(propagation="Orphan")
    for rank in range(12):
        await asyncio.sleep(1)
        plane.finish("train", rank)
    assert (await follower.event()).status is Status.DELETED
    assert 12 <= harvest_totals().views <= len(plane.history.of(PODS))
    assert plane.held() == []


@pytest.mark.parametrize("held", [True, False])
async def test_large_gang_is_not_listed_for_a_watch_that_is_seconds_behind(plane, held: bool, monkeypatch):
    treat_every_gang_as_large(monkeypatch)
    ref = await plane.run_gang(workers=3)
    if not held:
        for pod in plane.held():
            patch = {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}
            plane.registry.patch(PODS, pod["metadata"]["name"], NAMESPACE, patch, PatchKind.MERGE)
    plane.arm("delay", method="GET", path="/pods$", query="watch=", delay_s=8.0)
    follower = RecordingFollower(plane, ref)
    await asyncio.sleep(2)
    plane.finish_all()
    assert (await follower.event()).status is Status.SUCCEEDED
    assert follower.count_of("LIST pods") == 0
    assert elapsed() > 8
    counted_once(plane.history, uids(plane))
    assert plane.held() == []


@pytest.mark.parametrize("large", [True, False])
async def test_pods_of_a_watch_that_died_silently_are_recorded_as_they_ended(plane, large: bool, monkeypatch):
    if large:
        treat_every_gang_as_large(monkeypatch)
    ref = await plane.run_gang(workers=3)
    plane.arm("half-open", method="GET", path="/pods$", query="watch=")
    follower = RecordingFollower(plane, ref)
    await asyncio.sleep(2)
    began = elapsed()
    plane.finish_all()
    event = await follower.event()
    assert (event.status, event.notes) == (Status.SUCCEEDED, ())
    assert elapsed() - began < (120 if large else 10), "the event waited until the watch was known to be dead"
    assert {decode(uid, text).outcome for uid, text in plane.ledger().items()} == {OutcomeKind.SUCCEEDED}
    check_harvest(plane.history, uids(plane))


# -- Watches that lag: the answer of the server decides, and not the last view of the watch --------------------------


def _fail_watches(plane: VirtualControlPlane, plural: str) -> None:
    """Let all further watches of these objects fail, and lists be rare."""
    plane.arm("status", method="GET", path=f"/{plural}$", query="watch=", times=None, code=500)


async def test_pods_that_were_never_seen_are_harvested_at_the_end(plane):
    _fail_watches(plane, "pods")
    ref = plane.submit(workers=3, suspend=True)
    following = Follower(plane, ref)
    await asyncio.sleep(0.2)
    plane.registry.patch(JOBS, ref.name, ref.namespace, {"spec": {"suspend": False}}, PatchKind.MERGE)
    await plane.until(lambda: plane.running_ranks() == 3)
    plane.finish_all()
    event = await following.event()
    assert (event.status, len(event.ranks)) == (Status.SUCCEEDED, 3)
    assert Phase.RUNNING not in following.phases
    assert plane.held() == []


async def test_job_that_was_not_seen_yet_is_not_gone(plane):
    _fail_watches(plane, "jobs")
    first = await Follower.of_running_gang(plane, "first", workers=1)
    following = await Follower.of_running_gang(plane, workers=2)
    await asyncio.sleep(3)
    assert not following.task.done()
    plane.finish_all()
    assert (await following.event()).status is Status.SUCCEEDED
    await first.kill()


async def test_running_gang_is_not_stopped_because_of_an_old_view(plane):
    _fail_watches(plane, "pods")
    following = await Follower.of_running_gang(plane, workers=3, deadlines=Deadlines(assemble_s=5))
    await asyncio.sleep(30)
    assert plane.job()["spec"].get("suspend") in {None, False}
    plane.finish_all()
    assert (await following.event()).status is Status.SUCCEEDED


async def test_stop_that_conflicts_with_another_writer_raises():
    async with VirtualControlPlane.running(jobs=False) as plane:
        ref = plane.submit()
        plane.faults.add(Fault(FaultKind.STATUS, code=409, method="PATCH", times=1))
        patch = stop_patch(stopped_by_user("too long"), read_job(plane.job()))
        with pytest.raises(Conflict):
            await patch_uid(plane.client, resources.JOBS, ref.name, ref.namespace, ref.uid, patch)


# -- A list of the pods of a gang returns the known view of each pod that has not changed, and shares equal
#    values ----------------------------------------------------------------------------------------------------------


async def test_pod_that_has_not_changed_keeps_its_view(gang) -> None:
    for rank in range(3):
        gang.pod(rank, phase="Running")
    before = {pod.metadata.uid: pod for pod in await list_pods(gang.plane.client, gang.ref)}
    patch = {"metadata": {"annotations": {"changed": "yes"}}}
    gang.plane.registry.patch(PODS, "train-1", NAMESPACE, patch, PatchKind.MERGE)
    gang.pod(3, phase="Running")
    after = {pod.metadata.name: pod for pod in await list_pods(gang.plane.client, gang.ref, before)}
    assert after["train-0"] is before[after["train-0"].metadata.uid]
    known = before[after["train-1"].metadata.uid]
    assert after["train-1"].metadata.resource_version != known.metadata.resource_version
    assert after["train-3"].metadata.uid not in before


async def test_listed_pods_share_equal_values(gang) -> None:
    for rank in range(2):
        gang.pod(rank)
    one, other = await list_pods(gang.plane.client, gang.ref)
    assert one.spec is other.spec
    assert one.metadata.labels is other.metadata.labels
