"""A trigger yields exactly one event in every case, and never raises."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_gangjobs.attempt.triggerer.gang_wait import CONNECTION_READ_FOR_S
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.kube.views import parse_indexes
from airflow_provider_gangjobs.triggers.gang_job import GangCompletionTrigger, GangJobTrigger, GangSubmissionTrigger
from tests.provider.virtual_time import elapsed, in_virtual_time

pytestmark = pytest.mark.usefixtures("close_informers")

QUICK = GangSpec(image="i", command=["true"], workers=2, resources={"cpu": "100m"})
SLOW = GangSpec(image="i", command=["sleep", "600"], workers=2, resources={"cpu": "100m"})


def submitted(connection: str, spec: GangSpec) -> GangRef:
    return GangJobHook(connection).submit(spec, key=TaskKey("d", uuid4().hex, "t"), claim="c").ref


async def events_of(kind: Any, connection: str, ref: GangRef, **fields: Any) -> list[GangEvent]:
    known = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    trigger = kind(kubernetes_conn_id=connection, **{**known, **fields})
    return [GangEvent.from_payload(json.loads(json.dumps(event.payload))) async for event in trigger.run()]


async def test_end_of_a_gang_is_one_event(connection: str) -> None:
    (event,) = await events_of(GangJobTrigger, connection, submitted(connection, QUICK))

    assert (event.status, parse_indexes(event.completed_indexes)) == (Status.SUCCEEDED, {0, 1})


async def test_gang_that_has_already_ended_is_an_event_at_once(connection: str) -> None:
    ref = submitted(connection, QUICK)
    await events_of(GangJobTrigger, connection, ref)

    (event,) = await events_of(GangCompletionTrigger, connection, ref)

    assert event.status is Status.SUCCEEDED


async def test_submission_trigger_reports_a_running_gang(connection: str) -> None:
    ref = submitted(connection, SLOW)
    (event,) = await events_of(GangSubmissionTrigger, connection, ref)
    GangJobHook(connection).delete(ref)

    assert (event.status, event.phase) == (Status.RUNNING, Phase.RUNNING)


async def test_execution_timeout_reports_the_last_observation(connection: str) -> None:
    ref = submitted(connection, SLOW)
    await events_of(GangSubmissionTrigger, connection, ref)  # wait until the gang runs

    for seconds in (1, 10, 100):  # on a busy machine the first observation takes longer
        deadline = {"deadline": time.time() + seconds, "execution_timeout_s": 3.0}
        (event,) = await events_of(GangJobTrigger, connection, ref, **deadline)
        assert (event.status, event.reason, event.seconds) == (Status.TIMEOUT, "Deadline.execution", 3.0)
        if event.phase is Phase.RUNNING:
            break
    GangJobHook(connection).delete(ref)

    assert event.phase is Phase.RUNNING


@pytest.mark.parametrize(("claim", "is_stopped"), [("c", True), ("another try", False), ("", False)])
async def test_execution_timeout_stops_the_gang_without_a_worker(connection: str, claim: str, is_stopped: bool) -> None:
    """A worker may be free only after hours. The trigger ends only the gang of its own task instance."""
    ref, hook = submitted(connection, SLOW), GangJobHook(connection)
    await events_of(GangSubmissionTrigger, connection, ref)  # wait until the gang runs

    (event,) = await events_of(GangJobTrigger, connection, ref, claim=claim, deadline=time.time() + 1)
    is_live = await asyncio.to_thread(hook.call, lambda service: service.is_live(ref))

    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.execution")
    assert (is_live, {rank.rank for rank in event.ranks}) == (not is_stopped, {0, 1} if is_stopped else set())
    await asyncio.to_thread(hook.delete, ref)


@in_virtual_time
async def test_connection_that_stays_unknown_is_an_error() -> None:
    (event,) = await events_of(GangJobTrigger, "nowhere", GangRef("n", "j", "u"))

    assert (event.status, event.reason) == (Status.ERROR, "AirflowNotFoundException")
    assert CONNECTION_READ_FOR_S - 60 < elapsed() <= CONNECTION_READ_FOR_S


@in_virtual_time
async def test_connection_that_must_exist_is_not_replaced_by_the_default() -> None:
    """Otherwise the trigger would read another cluster, and find no Job there."""
    (event,) = await events_of(GangJobTrigger, "kubernetes_default", GangRef("n", "j", "u"), must_exist=True)

    assert (event.status, event.reason) == (Status.ERROR, "AirflowNotFoundException")


@in_virtual_time
async def test_secret_of_a_broken_connection_is_not_in_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "kubernetes", "extra": {"kube_config": "{token: s3cr3t", "in_cluster": False}}
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", json.dumps(connection))

    (event,) = await events_of(GangJobTrigger, "broken", GangRef("n", "j", "u"))

    assert event.status is Status.ERROR
    assert "s3cr3t" not in json.dumps(event.to_payload())
