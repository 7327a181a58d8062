"""A follower under faults: a transient fault delays the event, and a lasting fault ends in an event that names it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.jobs.requests import REFUSED_FOR_S
from airflow_provider_gangjobs.tracking.follow import STALE_S, follow
from tests.provider.follower import Follower
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.observation import Observation

TRANSIENT = {
    "every pod patch fails once": {"kind": "status", "method": "PATCH", "path": "/pods/", "times": 3, "code": 500},
    "pod patches are applied, and fail": {
        "kind": "status-after",
        "method": "PATCH",
        "path": "/pods/",
        "times": 3,
        "code": 500,
    },
    "pod patches are throttled": {
        "kind": "status",
        "method": "PATCH",
        "path": "/pods/",
        "times": 5,
        "code": 429,
        "retry_after_s": 3,
    },
    "answers to pod patches are lost": {"kind": "drop-after", "method": "PATCH", "path": "/pods/", "times": 3},
    "pod patches conflict with other writers": {
        "kind": "status",
        "method": "PATCH",
        "path": "/pods/",
        "times": 3,
        "code": 409,
    },
    "ledger patches conflict with other writers": {
        "kind": "status",
        "method": "PATCH",
        "path": "/configmaps/",
        "times": 2,
        "code": 409,
    },
    "events are forbidden": {"kind": "status", "method": "GET", "path": "/events", "times": None, "code": 403},
    "the ledger cannot be written at first": {
        "kind": "status",
        "method": "POST",
        "path": "/configmaps",
        "times": 2,
        "code": 503,
    },
    "the ledger is written, and the response is lost": {
        "kind": "drop-after",
        "method": "POST",
        "path": "/configmaps",
        "times": 1,
    },
    "the ledger is forbidden for a while": {
        "kind": "status",
        "method": "POST",
        "path": "/configmaps",
        "times": 4,
        "code": 403,
    },
    "the ledger cannot be read at first": {
        "kind": "status",
        "method": "GET",
        "path": "/configmaps",
        "times": 3,
        "code": 500,
    },
    "the last look at the Job fails": {
        "kind": "status",
        "method": "GET",
        "path": "/jobs/train",
        "times": 4,
        "code": 500,
    },
    "the last look is forbidden for a while": {
        "kind": "status",
        "method": "GET",
        "path": "/jobs/train",
        "times": 3,
        "code": 403,
    },
    "watches break": {"kind": "drop-after", "method": "GET", "query": "watch=", "times": 6, "chunks": 1},
    "watches expire": {"kind": "status", "method": "GET", "query": "watch=", "times": 4, "code": 410},
    "watches are forbidden": {"kind": "status", "method": "GET", "query": "watch=", "times": None, "code": 403},
    "lists fail": {"kind": "status", "method": "GET", "path": "/(pods|jobs)$", "times": 6, "code": 500},
    "podgroups are forbidden": {"kind": "status", "method": "GET", "path": "/podgroups", "times": None, "code": 403},
    "nothing is known of the cluster": {
        "kind": "status",
        "method": "GET",
        "path": "/apis/scheduling",
        "times": None,
        "code": 500,
    },
    "the server is away": {"kind": "status", "times": None, "code": 503},
}


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
@in_virtual_time
async def test_transient_fault_only_delays_the_event(plane, fault):
    plane.arm(**fault)
    following = Follower(plane, plane.submit(workers=3))
    await plane.until(lambda: plane.running_ranks() == 3)
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


@in_virtual_time
async def test_outcomes_that_cannot_be_stored_keep_their_pods(plane):
    plane.arm("status", method="POST", path="/configmaps", times=None, code=403, message="no configmaps for you")
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish_all()
    event = await following.event(within_s=300)
    assert event.status is Status.SUCCEEDED
    assert len(event.notes) == 1
    assert "2 pods are still held, because their outcome could not be stored" in event.notes[0]
    assert "no configmaps for you" in event.notes[0]
    assert "gangjobs release" in event.notes[0]
    assert len(plane.held()) == 2


@in_virtual_time
async def test_pods_that_cannot_be_patched_are_reported(plane):
    plane.arm("status", method="PATCH", path="/pods/", times=None, code=403)
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish_all()
    event = await following.event(within_s=300)
    assert "2 pods are still held" in event.notes[0]
    assert len(plane.ledger()) == 2


LASTING = {
    "credentials": {"kind": "status", "times": None, "code": 401},
    "jobs": {"kind": "status", "method": "GET", "path": "/jobs", "times": None, "code": 403},
    "pods": {"kind": "status", "method": "GET", "path": "/pods", "times": None, "code": 403},
}


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
@in_virtual_time
async def test_lasting_refusal_ends_in_an_event(plane, fault):
    plane.arm(**fault)
    event = await Follower(plane, plane.submit()).event(within_s=REFUSED_FOR_S + 200)
    assert event.status is Status.ERROR
    assert event.reason in {"Unauthorized", "Forbidden"}
    assert "permissions" in event.remedy
    assert elapsed() >= REFUSED_FOR_S
    assert plane.job()["spec"].get("suspend") in {None, False}


@in_virtual_time
async def test_ledger_that_cannot_be_read_does_not_hide_the_verdict(plane):
    plane.arm("status", path="/configmaps", times=None, code=403)
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish("train", 0, exit_code=1)
    event = await following.event(within_s=300)
    assert event.status is Status.FAILED
    assert event.message.startswith("BackoffLimitExceeded")
    assert len(plane.held()) == 2


@in_virtual_time
async def test_permission_taken_away_ends_in_an_event(plane):
    following = Follower(plane, plane.submit(workers=2))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.arm("status", method="GET", times=None, code=403)
    event = await following.event(within_s=2 * STALE_S + REFUSED_FOR_S + 400)
    assert (event.status, event.phase, event.reason) == (Status.ERROR, Phase.RUNNING, "Forbidden")


@in_virtual_time
async def test_connection_that_cannot_be_used_ends_in_an_event(plane):
    broken = ClusterConfig.from_extras("broken", {"kube_config": {"clusters": []}})
    reports: list[Observation] = []
    event = await follow(broken, plane.submit(), report=reports.append, now=plane.clock.now)
    assert (event.status, event.reason, reports) == (Status.ERROR, "InvalidConnection", [])
    await informers().aclose()


@in_virtual_time
async def test_retry_after_of_a_day_delays_the_event_by_minutes(plane):
    ref = plane.submit(workers=1)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 1)
    plane.arm("status", code=503, retry_after_s=86400, times=3)
    plane.finish_all()
    event = await following.event(within_s=900)
    assert event.status is Status.SUCCEEDED
