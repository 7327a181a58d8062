"""What the event tells of a gang after its Job is gone."""

from __future__ import annotations

import json

from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status, build_event, history_of
from airflow_provider_gangjobs.gang.render.job_manifest import render_job
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from tests.unit.builders import REF, at

ATTEMPT = build_attempt(TaskKey("dag", "run", "train"), Claim("c"), namespace="ns", number=0)
BEGAN = {Phase.SUBMITTED: at(0), Phase.ASSEMBLING: at(30), Phase.RUNNING: at(40), Phase.FINISHING: at(50)}


def job_of(**parameters):
    return read_job(render_job(GangSpec(image="i", **parameters), ATTEMPT, PlacementDecision(Placement.OFF)))


def test_event_has_times_and_size_of_the_gang():
    job = job_of(workers=4, resources={"cpu": "1500m", "memory": "2Gi"})
    event = build_event(REF, Status.SUCCEEDED, Phase.SUCCEEDED, **history_of(job, BEGAN, ended=at(55)))

    assert event.times == {"submitted": at(0), "admitted": at(30), "running": at(40), "ended": at(55)}
    assert (event.placement, event.queue, event.requests) == ("off", "", {"cpu": "6", "memory": "8Gi"})
    assert GangEvent.from_payload(json.loads(json.dumps(event.to_payload()))) == event


def test_times_that_are_not_known_are_left_out():
    assert history_of(None, {Phase.SUBMITTED: at(0)}, ended=None) == {"times": {"submitted": at(0)}}


def test_requests_of_all_roles_are_added():
    roles = {
        "leader": {"workers": 1, "resources": {"cpu": "2"}},
        "worker": {"workers": 3, "resources": {"cpu": "500m"}},
    }
    assert job_of(roles=roles).requests == {"cpu": "3500m"}


def test_job_of_an_earlier_release_says_nothing_about_requests():
    assert read_job({"metadata": {"annotations": {"gangjobs.airflow/requests": "no JSON"}}}).requests == {}
    assert read_job({"metadata": {}}).requests == {}
