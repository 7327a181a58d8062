"""All readers of a Job report the same phase: the submission record, the observation, and the page of the UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.state.gang_state import observe
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState, phase_of
from airflow_provider_gangjobs.gang.state.reason import because, stopped_by_deadline
from airflow_provider_gangjobs.gang.view import GangSnapshot, view_gang, view_job
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from tests.unit.builders import REF, JobBuilder, at, job, pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.kube.views import PodView

RANKS = 4


def phases(built: JobBuilder, pods: list[PodView]) -> dict[str, str]:
    """Return the phase by each reader. `pods` must match the Job's counters."""
    gang = built.read()
    return {
        "the Job alone": view_job(gang).phase,
        "the observation": observe(gang, pods, None, REF).phase,
        "a whole gang": view_gang(GangSnapshot(gang, pods, (), is_whole=True), now=at(100)).phase,
        "a large gang": view_gang(GangSnapshot(gang, (), ()), now=at(100)).phase,
    }


def pods_of(built: JobBuilder) -> list[PodView]:
    """Return pods that match the Job's counters. Waiting pods and terminating pods have not started."""
    count = built.obj["status"].get
    running = [pod(f"r{n}").rank(n).on("n").running() for n in range(count("ready", 0))]
    waiting = [pod(f"w{n}").rank(n) for n in range(count("ready", 0), count("active", 0))]
    ending = [pod(f"t{n}").rank(n).deleted(asked=9) for n in range(count("terminating", 0))]
    return [each.view() for each in (*running, *waiting, *ending)]


CONDITIONS = ("Suspended", "SuccessCriteriaMet", "FailureTarget", "Complete", "Failed")
MOMENTS = st.integers(0, 60)


@st.composite
def jobs(draw: Callable[..., Any]) -> JobBuilder:
    """Draw Jobs with any conditions, including combinations that no Job controller writes."""
    built = job(RANKS).spec(suspend=draw(st.booleans()))
    for kind in draw(st.sets(st.sampled_from(CONDITIONS))):
        built._condition(kind, draw(st.booleans()), draw(MOMENTS))
    if draw(st.booleans()):
        built.started(draw(MOMENTS))
    if draw(st.booleans()):
        built.deleted(draw(MOMENTS))
    if draw(st.booleans()):
        built.stopped(draw(st.sampled_from([None, stopped_by_deadline(Phase.RUNNING, because("Running"), "late")])))
    if draw(st.booleans()):
        built.record(fields=draw(st.sampled_from([{"manifest.spec.suspend": "x"}, {"image": "x"}])))
    if draw(st.booleans()):
        built.label(LABEL_KUEUE_QUEUE, "q")
    active = draw(st.integers(0, RANKS))
    counts = {name: draw(st.integers(0, RANKS)) for name in ("succeeded", "failed", "terminating")}
    return built.counts(active=active, ready=draw(st.integers(0, active)), **counts)


@given(jobs())
def test_every_reader_reports_the_same_phase(built: JobBuilder) -> None:
    by_reader = phases(built, pods_of(built))
    assert len(set(by_reader.values())) == 1, by_reader


@given(jobs())
def test_pods_that_wait_for_their_harvest_keep_an_end_open(built: JobBuilder) -> None:
    held = pod("h").rank(0).on("n").succeeded().held().view()
    alone, with_held = phase_of(built.read()), observe(built.read(), [held], None, REF).phase
    if alone in {Phase.SUCCEEDED, Phase.FAILED, Phase.DELETED}:
        assert with_held is Phase.FINISHING


IN_PROGRESS, DELETING, FAILED = SubmissionState.IN_PROGRESS, SubmissionState.DELETING, SubmissionState.FAILED


def stopped(built: JobBuilder) -> JobBuilder:
    return built.stopped()


def kueue(built: JobBuilder) -> JobBuilder:
    return built.label(LABEL_KUEUE_QUEUE, "q")


def kept(built: JobBuilder) -> JobBuilder:
    return built.record(fields={"manifest.spec.suspend": "x"})


TABLE = {
    "complete": (job().complete(9), Phase.SUCCEEDED, SubmissionState.SUCCEEDED),
    "complete, being deleted": (job().complete(9).deleted(20), Phase.SUCCEEDED, DELETING),
    "complete, stopped": (stopped(job().complete(9)), Phase.SUCCEEDED, SubmissionState.SUCCEEDED),
    "failed": (job().failed(9), Phase.FAILED, FAILED),
    "failed, then deleted": (job().failed(9).deleted(20), Phase.FAILED, DELETING),
    "failed because it was deleted": (job().failed(20).deleted(9), Phase.DELETED, DELETING),
    "being deleted": (job().started(3).deleted(9), Phase.DELETED, DELETING),
    "being deleted, about to succeed": (job().decided("SuccessCriteriaMet", 9).deleted(20), Phase.DELETED, DELETING),
    "being deleted, stopped": (stopped(job().started(3).deleted(9)), Phase.DELETED, DELETING),
    "about to succeed": (job().started(3).decided("SuccessCriteriaMet", 9), Phase.FINISHING, IN_PROGRESS),
    "about to fail": (job().started(3).decided("FailureTarget", 9), Phase.FINISHING, IN_PROGRESS),
    "about to succeed, stopped": (stopped(job().decided("SuccessCriteriaMet", 9)), Phase.FINISHING, IN_PROGRESS),
    "stopped, pods run": (stopped(job().suspended(9).counts(active=2)), Phase.FINISHING, FAILED),
    "stopped, pods end": (stopped(job().suspended(9).counts(terminating=2)), Phase.FINISHING, FAILED),
    "stopped": (stopped(job().suspended(9)), Phase.FAILED, FAILED),
    "stopped, not looked at": (stopped(job().submitted_suspended()), Phase.FAILED, FAILED),
    "stopped, and let run by its queue": (stopped(kueue(job().started(9).spec(parallelism=0))), Phase.FAILED, FAILED),
    "suspended": (job().suspended(3), Phase.QUEUED, IN_PROGRESS),
    "suspended, let run, not looked at": (job().suspended(3).spec(suspend=False), Phase.QUEUED, IN_PROGRESS),
    "suspended after it ran": (job().started(3).spec(suspend=True), Phase.QUEUED, IN_PROGRESS),
    "in a queue, not looked at": (kueue(job().submitted_suspended()), Phase.QUEUED, IN_PROGRESS),
    "kept suspended, not looked at": (kept(job().submitted_suspended()), Phase.QUEUED, IN_PROGRESS),
    "suspended, not looked at": (job().submitted_suspended(), Phase.SUBMITTED, IN_PROGRESS),
    "let run, not looked at": (job(), Phase.SUBMITTED, IN_PROGRESS),
    "all ranks run": (job().started(3).counts(active=4, ready=4), Phase.RUNNING, IN_PROGRESS),
    "all ranks have started": (job().started(3).counts(active=2, ready=2, succeeded=2), Phase.RUNNING, IN_PROGRESS),
    "some ranks run": (job().started(3).counts(active=4, ready=3), Phase.ASSEMBLING, IN_PROGRESS),
    "a stream of pods": (job().spec(parallelism=2).started(3).counts(active=2, ready=2), Phase.RUNNING, IN_PROGRESS),
}


@pytest.mark.parametrize(("built", "phase", "state"), TABLE.values(), ids=TABLE)
def test_each_row_of_the_table_holds_for_every_reader(built: JobBuilder, phase: Phase, state: SubmissionState) -> None:
    assert set(phases(built, pods_of(built)).values()) == {phase}
    assert view_job(built.read()).state is state


def test_job_that_is_gone_is_deleted() -> None:
    assert phase_of(None) is Phase.DELETED
    assert observe(None, [], None, REF).phase is Phase.DELETED
    assert observe(job(uid="another").complete(9).read(), [], None, REF).phase is Phase.DELETED
