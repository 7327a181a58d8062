"""A follower under faults, and its deadlines: what delays an event, what ends in one, and when a gang is stopped."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.reason import because
from airflow_provider_gangjobs.jobs.requests import REFUSED_FOR_S
from airflow_provider_gangjobs.kube.resources import JOBS as JOBS_RESOURCE
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_STOPPED, LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.tracking.follow import STALE_S, FollowOptions, follow
from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes
from gangjobs_sandbox.api.faults import Fault, FaultKind
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS, PODS
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane
from tests.provider.virtual_time import START, elapsed, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider_gangjobs.gang.identity import GangRef

pytestmark = in_virtual_time


# -- Deadlines: the gang is stopped in time, returns its capacity, keeps its outcomes, and the reason is
#    reported --------------------------------------------------------------------------------------------------------

NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu."
REJECTED = "0/1 nodes are available: 1 optimistic rejection in PostFilter."


def failed_reason(plane: VirtualControlPlane) -> str | None:
    job = plane.job()
    assert job is not None
    return next((one["reason"] for one in job["status"].get("conditions", ()) if one["type"] == "Failed"), None)


async def test_gang_that_does_not_fit_times_out_with_the_reason():
    async with VirtualControlPlane.running(nodes=2, cpu="2") as plane:
        ref = plane.submit(workers=8)
        event = await Follower(plane, ref, deadlines=Deadlines(assemble_s=120)).event()
        assert (event.status, event.phase, event.seconds) == (Status.TIMEOUT, Phase.ASSEMBLING, 120)
        assert event.reason == "Deadline.assembling"
        assert (
            "assembling: 8 pods, none placed. Can never fit on the present nodes: 8 ranks with 1 CPU each"
            in event.message
        )
        assert "fewer workers" in event.remedy
        assert (event.counts["created"], event.counts["placed"]) == (8, 0)
        assert elapsed() == pytest.approx(120, abs=4)
        await plane.until(lambda: not plane.pods() and failed_reason(plane) == "DeadlineExceeded")
        assert {one.outcome for one in await read_outcomes(plane.client, ref)} == {OutcomeKind.DELETED}


def refuse(plane: VirtualControlPlane, *messages: str) -> None:
    """Write what a scheduler says about each rank."""
    for rank, message in enumerate(messages):
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        name = plane.pod("train", rank)["metadata"]["name"]
        status = {"status": {"conditions": [condition]}}
        plane.registry.patch(PODS, name, NAMESPACE, status, PatchKind.MERGE, subresource="status")


@pytest.mark.parametrize(
    ("first", "event_message", "evidence"),
    [
        (NO_ROOM, None, "Insufficient cpu on 2 of 2 nodes"),
        (REJECTED, NO_ROOM, "Insufficient cpu on 2 of 2 nodes"),
        (REJECTED, REJECTED, because("NoCauseNamed").text),
    ],
    ids=["named by a pod before", "named by an Event", "never named"],
)
async def test_gang_whose_scheduler_has_overwritten_the_cause_times_out_as_unschedulable(
    first, event_message, evidence
):
    async with VirtualControlPlane.running() as plane:
        ref = plane.submit(workers=2, gang=False, pod={"schedulerName": "scheduler-plugins-scheduler"})
        follower = Follower(plane, ref, deadlines=Deadlines(assemble_s=60))
        await plane.until(lambda: len(plane.pods()) == 2)
        if event_message:
            plane.registry.record_event(plane.pod("train", 1), "Warning", "FailedScheduling", event_message, "plugins")
        refuse(plane, REJECTED, first)
        await asyncio.sleep(20)
        refuse(plane, REJECTED, REJECTED)
        event = await follower.event()
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling")
    assert event.message == f"assembling: 2 pods, none placed. {evidence}"
    assert len(follower.reports) == 1, [report.line for report in follower.reports]


GATE = "kueue.x-k8s.io/topology"


def remove_gates(plane: VirtualControlPlane) -> None:
    """Let the scheduler place the pods, as Kueue does when it has chosen their nodes."""
    for pod in plane.pods():
        plane.registry.patch(
            PODS, pod["metadata"]["name"], NAMESPACE, {"spec": {"schedulingGates": None}}, PatchKind.MERGE
        )


@pytest.mark.parametrize(
    ("gated_s", "reported"),
    [
        (1, ["Insufficient cpu on 1 of 1 nodes"]),
        (20, [f"2 pods have scheduling gates: {GATE}", "Insufficient cpu on 1 of 1 nodes"]),
        (90, [f"2 pods have scheduling gates: {GATE}"]),
    ],
    ids=["removed soon", "removed late", "never removed in time"],
)
async def test_scheduling_gates_of_a_gang_are_reported_if_they_stay_and_hide_no_cause(gated_s, reported):
    async with VirtualControlPlane.running(cpu="1") as plane:
        ref = plane.submit(workers=2, gang=False, pod={"schedulingGates": [{"name": GATE}]})
        follower = Follower(plane, ref, deadlines=Deadlines(assemble_s=60))
        await plane.until(lambda: len(plane.pods()) == 2)
        await asyncio.sleep(gated_s)
        remove_gates(plane)
        event = await follower.event()
    assembling = (report.reason.text for report in follower.reports if report.phase is Phase.ASSEMBLING)
    assert list(dict.fromkeys(assembling)) == reported
    is_gated = reported[-1].endswith(GATE)
    category = Category.SCHEDULING_GATED if is_gated else Category.INSUFFICIENT_RESOURCES
    assert (event.status, event.reason, event.category) == (Status.TIMEOUT, "Deadline.assembling", category)
    assert ("manager of Kueue" in event.remedy) is is_gated


async def test_stopped_gang_gives_its_capacity_back():
    async with VirtualControlPlane.running(cpu="4") as plane:
        first = Follower(plane, plane.submit("first", workers=4), deadlines=Deadlines(run_s=60))
        second = Follower(plane, plane.submit("second", workers=4))
        await plane.until(lambda: plane.running_ranks("first") == 4)
        event = await first.event()
        assert (event.status, event.phase, event.reason) == (Status.TIMEOUT, Phase.RUNNING, "Deadline.running")
        assert (len(event.ranks), event.notes) == (4, ())
        assert plane.held("first") == []
        await plane.until(lambda: plane.running_ranks("second") == 4, within_s=60)
        await second.kill()


async def test_queued_gang_times_out_from_its_creation(plane):
    ref = plane.submit(workers=2, suspend=True)
    plane.registry.patch(
        JOBS, ref.name, NAMESPACE, {"metadata": {"labels": {LABEL_KUEUE_QUEUE: "gpu"}}}, PatchKind.MERGE
    )
    event = await Follower(plane, ref, deadlines=Deadlines(queue_s=600)).event()
    assert (event.status, event.phase) == (Status.TIMEOUT, Phase.QUEUED)
    assert "Kueue queue gpu" in event.message
    assert elapsed() == pytest.approx(600, abs=3)


@pytest.mark.parametrize(
    ("deadlines", "admitted_after_s"),
    [(Deadlines(queue_s=60), 90), (Deadlines(run_s=60), 0)],
    ids=["queued", "running"],
)
async def test_stopped_gang_never_runs_again_although_its_queue_lets_it(plane, deadlines, admitted_after_s):
    """Kueue resumes a Job in its queue, and an admitted Job as soon as the Job is suspended."""
    ref = plane.submit(workers=2, suspend=True)
    label = {"metadata": {"labels": {LABEL_KUEUE_QUEUE: "gpu"}}}
    plane.registry.patch(JOBS, ref.name, NAMESPACE, label, PatchKind.MERGE)
    async with as_kueue(plane, admitted_after_s):
        event = await Follower(plane, ref, deadlines=deadlines).event()
        started = {pod["metadata"]["uid"] for pod in plane.pods()}
        await asyncio.sleep(300)
    assert event.status is Status.TIMEOUT
    assert {pod["metadata"]["uid"] for pod in plane.pods()} <= started
    job = plane.job()
    assert "active" not in job["status"]
    assert [one["reason"] for one in job["status"]["conditions"] if one["type"] == "Failed"] == ["DeadlineExceeded"]
    later = await Follower(plane, ref, deadlines=deadlines).event()
    assert (later.status, later.reason, later.message) == (event.status, event.reason, event.message)


@asynccontextmanager
async def as_kueue(plane: VirtualControlPlane, admitted_after_s: float) -> AsyncIterator[None]:
    """Admit the Job after a time, and then resume the Job whenever it is suspended."""

    async def reconcile() -> None:
        await asyncio.sleep(admitted_after_s)
        while True:
            job = plane.job()
            if job["spec"]["suspend"]:
                resume = {"spec": {"suspend": False}}
                plane.registry.patch(JOBS, job["metadata"]["name"], NAMESPACE, resume, PatchKind.MERGE)
            await asyncio.sleep(0.5)

    task = asyncio.create_task(reconcile())
    try:
        yield
    finally:
        task.cancel()


def submit_started(plane: VirtualControlPlane) -> GangRef:
    """Submit a gang of two, and let its Job start without pods."""
    ref = plane.submit(workers=2)
    status = {"startTime": "2026-01-01T00:00:00Z"}
    plane.registry.patch(JOBS, ref.name, NAMESPACE, {"status": status}, PatchKind.MERGE, subresource="status")
    return ref


def refuse_pods(plane: VirtualControlPlane, cause: str) -> None:
    plane.registry.record_event(plane.job(), "Warning", "FailedCreate", cause, "job-controller")


async def test_refused_pods_are_reported_when_the_deadline_has_passed():
    async with VirtualControlPlane.running(jobs=False) as plane:
        ref = submit_started(plane)
        refuse_pods(plane, "exceeded quota: pods")
        following = Follower(plane, ref, deadlines=Deadlines(assemble_s=60))
        event = await following.event()
        assert event.reason == "Deadline.assembling"
        assert "2 pods could not be created: exceeded quota: pods" in event.message
        assert any("exceeded quota" in report.reason.text for report in following.reports)


async def test_later_cause_of_refused_pods_is_reported():
    async with VirtualControlPlane.running(jobs=False) as plane:
        ref = submit_started(plane)
        refuse_pods(plane, "exceeded quota: pods")
        following = Follower(plane, ref)
        await asyncio.sleep(60)
        refuse_pods(plane, "no such account")
        await asyncio.sleep(600)
        assert following.reports[-1].reason.text == "2 pods could not be created: no such account"
        await following.kill()


@pytest.mark.parametrize("deadlines", [Deadlines(), Deadlines(queue_s=1, assemble_s=30, run_s=500)], ids=str)
async def test_gang_within_its_deadlines_is_left_alone(plane, deadlines):
    following = await Follower.of_running_gang(plane, workers=2, deadlines=deadlines)
    await asyncio.sleep(490)
    plane.finish_all()
    assert (await following.event()).status is Status.SUCCEEDED


async def test_follower_that_died_after_the_stop_is_replaced(plane):
    ref = plane.submit(workers=2)
    deadlines = Deadlines(queue_s=5, run_s=60)
    following = Follower(plane, ref, deadlines=deadlines)
    await plane.until(lambda: ANNOTATION_STOPPED in plane.job()["metadata"].get("annotations", {}))
    await following.kill()
    await plane.until(lambda: plane.held() and all(p["status"]["phase"] == "Failed" for p in plane.pods()))
    await asyncio.sleep(300)
    event = await Follower(plane, ref, deadlines=deadlines).event()
    assert (event.status, event.phase, event.seconds) == (Status.TIMEOUT, Phase.RUNNING, 60)
    assert event.message == "running: 2/2 ranks"
    assert len(event.ranks) == 2
    assert plane.held() == []


async def test_dead_node_does_not_prevent_the_event(plane):
    following = await Follower.of_running_gang(plane, workers=2, deadlines=Deadlines(run_s=60))
    plane.dead_nodes.add("node-0")
    event = await following.event(within_s=300)
    assert event.status is Status.TIMEOUT
    assert {rank.outcome for rank in event.ranks} == {OutcomeKind.UNKNOWN}
    assert "2 pods had not ended" in event.notes[0]
    assert plane.held() == []


async def test_gang_that_ends_just_before_its_deadline_has_ended(plane):
    following = await Follower.of_running_gang(plane, workers=2, deadlines=Deadlines(run_s=60))
    await asyncio.sleep(59.9)
    plane.finish_all()
    event = await following.event()
    assert event.status in {Status.SUCCEEDED, Status.TIMEOUT}
    assert plane.held() == []
    assert len(plane.ledger()) == 2


async def test_gang_deleted_while_it_is_stopped_was_deleted(plane):
    following = Follower(plane, plane.submit(workers=2), deadlines=Deadlines(run_s=60))
    await plane.until(lambda: ANNOTATION_STOPPED in plane.job()["metadata"].get("annotations", {}))
    plane.delete_job()
    assert (await following.event()).status is Status.DELETED
    assert plane.held() == []


async def test_deadline_counts_by_the_clock_of_the_api_server(plane):
    """The clock of the machine is months ahead of that of the server here, and is not used."""
    ref = plane.submit(workers=2)
    event = await follow(plane.client, ref, FollowOptions(deadlines=Deadlines(run_s=300)))
    ran_s = (plane.clock.now() - event.since).total_seconds()
    assert (event.status, event.phase, event.seconds) == (Status.TIMEOUT, Phase.RUNNING, 300)
    assert 300 <= ran_s <= 310

    assert plane.held() == []


def stopped_late_s(plane: VirtualControlPlane, run_s: float) -> float:
    """Return the time between the end of `run_s` and now, in seconds."""
    started = plane.pod("train", 0)["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    return (plane.clock.now() - datetime.fromisoformat(started)).total_seconds() - run_s


def is_stopped(plane: VirtualControlPlane) -> bool:
    job = plane.job()
    assert job is not None
    return ANNOTATION_STOPPED in job["metadata"].get("annotations", {})


async def test_responses_to_other_requests_make_a_deadline_precise_while_its_follower_sleeps():
    async with VirtualControlPlane.running(starts_at=START + timedelta(seconds=0.9)) as plane:
        following = Follower(plane, await plane.run_gang(workers=1), deadlines=Deadlines(run_s=60), now=None)
        async with informers().client(plane.config) as client:
            for _ in range(40):
                await client.get(JOBS_RESOURCE, following.ref.name, NAMESPACE)
                await asyncio.sleep(0.77)
        await plane.until(lambda: is_stopped(plane))
        assert 0 <= stopped_late_s(plane, 60) < 0.1
        await following.kill()


async def test_deadline_that_a_correction_of_the_clock_postpones_is_only_late_by_the_correction(plane):
    ref = await plane.run_gang(workers=1)
    plane.arm("delay", method="GET", path="/jobs/train$", delay_s=0.1, times=None)

    def now() -> datetime:
        is_corrected = stopped_late_s(plane, 60) >= 0.1
        return plane.clock.now() - timedelta(seconds=0.3 if is_corrected else 0)

    following = Follower(plane, ref, deadlines=Deadlines(run_s=60), now=now)
    await plane.until(lambda: is_stopped(plane))
    assert 0.3 <= stopped_late_s(plane, 60) < 0.5
    await following.kill()


# -- A follower under faults: a transient fault delays the event, and a lasting fault ends in an event that
#    names it --------------------------------------------------------------------------------------------------------

TRANSIENT = {
    "every pod patch fails once": Fault(FaultKind.STATUS, method="PATCH", path="/pods/", times=3, code=500),
    "pod patches are applied, and fail": Fault(
        FaultKind.STATUS_AFTER, method="PATCH", path="/pods/", times=3, code=500
    ),
    "pod patches are throttled": Fault(
        FaultKind.STATUS, method="PATCH", path="/pods/", times=5, code=429, retry_after_s=3
    ),
    "answers to pod patches are lost": Fault(FaultKind.DROP_AFTER, method="PATCH", path="/pods/", times=3),
    "pod patches conflict with other writers": Fault(
        FaultKind.STATUS, method="PATCH", path="/pods/", times=3, code=409
    ),
    "ledger patches conflict with other writers": Fault(
        FaultKind.STATUS, method="PATCH", path="/configmaps/", times=2, code=409
    ),
    "events are forbidden": Fault(FaultKind.STATUS, method="GET", path="/events", times=None, code=403),
    "the ledger cannot be written at first": Fault(
        FaultKind.STATUS, method="POST", path="/configmaps", times=2, code=503
    ),
    "the ledger is written, and the response is lost": Fault(
        FaultKind.DROP_AFTER, method="POST", path="/configmaps", times=1
    ),
    "the ledger is forbidden for a while": Fault(
        FaultKind.STATUS, method="POST", path="/configmaps", times=4, code=403
    ),
    "the ledger cannot be read at first": Fault(FaultKind.STATUS, method="GET", path="/configmaps", times=3, code=500),
    "the last look at the Job fails": Fault(FaultKind.STATUS, method="GET", path="/jobs/train", times=4, code=500),
    "the last look is forbidden for a while": Fault(
        FaultKind.STATUS, method="GET", path="/jobs/train", times=3, code=403
    ),
    "watches break": Fault(FaultKind.DROP_AFTER, method="GET", query="watch=", times=6, chunks=1),
    "watches expire": Fault(FaultKind.STATUS, method="GET", query="watch=", times=4, code=410),
    "watches are forbidden": Fault(FaultKind.STATUS, method="GET", query="watch=", times=None, code=403),
    "lists fail": Fault(FaultKind.STATUS, method="GET", path="/(pods|jobs)$", times=6, code=500),
    "podgroups are forbidden": Fault(FaultKind.STATUS, method="GET", path="/podgroups", times=None, code=403),
    "nothing is known of the cluster": Fault(FaultKind.STATUS, method="GET", path="/apis$", times=None, code=500),
    "the server is away": Fault(FaultKind.STATUS, times=None, code=503),
}


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
async def test_transient_fault_only_delays_the_event(plane, fault):
    plane.faults.add(fault)
    following = await Follower.of_running_gang(plane, workers=3)
    plane.finish("train", 1, exit_code=4)
    await asyncio.sleep(60)
    plane.faults.remove()
    event = await following.event()
    assert (event.status, event.message) == (
        Status.FAILED,
        "rank 1 exited with code 4 on node-0; 2 other ranks ended after it",
    )
    assert event.notes == ()
    assert len(plane.ledger()) == 3
    assert plane.held() == []


async def test_outcomes_that_cannot_be_stored_keep_their_pods(plane):
    plane.arm("status", method="POST", path="/configmaps", times=None, code=403, message="no configmaps for you")
    following = await Follower.of_running_gang(plane, workers=2)
    plane.finish_all()
    event = await following.event(within_s=300)
    assert event.status is Status.SUCCEEDED
    assert len(event.notes) == 1
    assert "2 pods are still held, because their outcome could not be stored" in event.notes[0]
    assert "no configmaps for you" in event.notes[0]
    assert "gangjobs release" in event.notes[0]
    assert len(plane.held()) == 2


async def test_pods_that_cannot_be_patched_are_reported(plane):
    plane.arm("status", method="PATCH", path="/pods/", times=None, code=403)
    following = await Follower.of_running_gang(plane, workers=2)
    plane.finish_all()
    event = await following.event(within_s=300)
    assert "2 pods are still held" in event.notes[0]
    assert len(plane.ledger()) == 2


LASTING = {
    "credentials": Fault(FaultKind.STATUS, times=None, code=401),
    "jobs": Fault(FaultKind.STATUS, method="GET", path="/jobs", times=None, code=403),
    "pods": Fault(FaultKind.STATUS, method="GET", path="/pods", times=None, code=403),
}


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
async def test_lasting_refusal_ends_in_an_event(plane, fault):
    plane.faults.add(fault)
    event = await Follower(plane, plane.submit()).event(within_s=REFUSED_FOR_S + 200)
    assert event.status is Status.ERROR
    assert event.reason in {"Unauthorized", "Forbidden"}
    assert "permissions" in event.remedy
    assert elapsed() >= REFUSED_FOR_S
    assert plane.job()["spec"].get("suspend") in {None, False}


async def test_ledger_that_cannot_be_read_does_not_hide_the_verdict(plane):
    plane.arm("status", path="/configmaps", times=None, code=403)
    following = await Follower.of_running_gang(plane, workers=2)
    plane.finish("train", 0, exit_code=1)
    event = await following.event(within_s=300)
    assert event.status is Status.FAILED
    assert event.message.startswith("BackoffLimitExceeded")
    assert len(plane.held()) == 2


async def test_permission_taken_away_ends_in_an_event(plane):
    following = await Follower.of_running_gang(plane, workers=2)
    plane.arm("status", method="GET", times=None, code=403)
    event = await following.event(within_s=2 * STALE_S + REFUSED_FOR_S + 400)
    assert (event.status, event.phase, event.reason) == (Status.ERROR, Phase.RUNNING, "Forbidden")


async def test_retry_after_of_a_day_delays_the_event_by_minutes(plane):
    following = await Follower.of_running_gang(plane, workers=1)
    plane.arm("status", code=503, retry_after_s=86400, times=3)
    plane.finish_all()
    event = await following.event(within_s=900)
    assert event.status is Status.SUCCEEDED
