"""Workers killed at the moments that count: the next try goes on with the same gang, and it runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.submission.jobs import JobState, state_of
from tests.airflow.postgres.held import PATIENCE_S, follow_another

if TYPE_CHECKING:
    from tests.airflow.postgres.held import Stage

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

JOBS = r"/namespaces/default/jobs$"
JOB = r"/namespaces/default/jobs/[^/]+$"
LOG = r"/namespaces/default/pods/[^/]+/log$"


def test_worker_killed_after_it_created_the_job(stage: Stage) -> None:
    created = stage.door.hold_after("POST", JOBS)
    held = stage.start()
    stage.door.wait_for_hit(created, PATIENCE_S)

    held.kill_worker()

    held.open()
    held.succeeded_exactly_once(tries=2)


def test_worker_killed_between_submission_and_deferral(stage: Stage) -> None:
    let_run = stage.door.hold_after("PATCH", JOB)
    held = stage.start()
    stage.door.wait_for_hit(let_run, PATIENCE_S)

    held.kill_worker()

    held.wait_until_followed()
    held.open()
    held.succeeded_exactly_once(tries=2)


def test_worker_lost_with_its_supervisor_between_submission_and_deferral(stage: Stage) -> None:
    # Nobody is left to tell Airflow: it notices that the heartbeats have stopped.
    let_run = stage.door.hold_after("PATCH", JOB)
    held = stage.start()
    stage.door.wait_for_hit(let_run, PATIENCE_S)

    held.kill_worker(supervisor=True)

    held.open()
    held.succeeded_exactly_once(tries=2)


def test_worker_killed_while_it_fetches_the_results(stage: Stage) -> None:
    held = stage.start()
    held.wait_until_followed()
    fetching = stage.door.hold_after("GET", LOG)
    held.open()
    stage.door.wait_for_hit(fetching, PATIENCE_S)

    held.kill_worker()

    held.succeeded_exactly_once(tries=2)


def test_worker_killed_when_airflow_has_noted_the_success(stage: Stage) -> None:
    # Only then is the gang marked as delivered and deleted, so now it is kept; it does not run again.
    held = stage.start()
    held.wait_until_followed()
    marking = stage.door.hold_before("PATCH", JOB)
    held.open()
    stage.door.wait_for_hit(marking, PATIENCE_S)
    assert held.task["state"] == "success"

    held.kill_worker()

    assert held.run.wait(PATIENCE_S) == "success"
    follow_another(stage)
    assert (held.task["state"], held.task["try_number"]) == ("success", 1)
    assert [state_of(job) for job in stage.witness.jobs(held.key())] == [JobState.SUCCEEDED]


def test_worker_killed_after_it_marked_the_gang_as_delivered(stage: Stage) -> None:
    held = stage.start()
    held.wait_until_followed()
    marked = stage.door.hold_after("PATCH", JOB)
    held.open()
    stage.door.wait_for_hit(marked, PATIENCE_S)

    held.kill_worker()

    follow_another(stage)
    assert (held.task["state"], held.task["try_number"]) == ("success", 1)
    assert [state_of(job) for job in stage.witness.jobs(held.key())] == [JobState.DELIVERED]
