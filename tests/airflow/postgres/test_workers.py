"""Workers killed at the moments that count: the next try goes on with the same gang, and it runs once.

The cluster keeps an answer back, or a request, so that the worker is there to be killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.submission.jobs import JobState, state_of
from tests.patience import AIRFLOW_PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.postgres.held import HeldRun, Stage

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_PATIENCE_S)]

JOBS = r"/namespaces/default/jobs$"


def start_and_kill(stage: Stage, *, supervisor: bool = False) -> HeldRun:
    """A gang whose worker was killed when the cluster had let the gang run, and before the worker knew."""
    held = stage.plan()
    let_run = stage.door.hold_after("PATCH", held.path_of_job)
    held.start()
    stage.door.wait_for_hit(let_run)
    held.kill_worker(supervisor=supervisor)
    return held


@pytest.fixture(scope="module", autouse=True)
def lost(stage: Stage) -> HeldRun:
    """A gang whose worker was lost with all that looked after it; Airflow takes a minute to notice."""
    return start_and_kill(stage, supervisor=True)


@pytest.fixture(scope="module")
def gangs(stage: Stage) -> Iterator[HeldRun]:
    return iter([stage.start() for _ in range(3)])


@pytest.fixture
def held(gangs: Iterator[HeldRun]) -> HeldRun:
    """A gang that runs or is about to; they are started at once, to save time."""
    return next(gangs)


def test_worker_killed_after_it_created_the_job(stage: Stage) -> None:
    created = stage.door.hold_after("POST", JOBS)
    held = stage.start()
    stage.door.wait_for_hit(created)

    held.kill_worker()

    held.open()
    held.succeeded_exactly_once(tries=2)


def test_worker_killed_between_submission_and_deferral(stage: Stage) -> None:
    held = start_and_kill(stage)

    held.wait_until_followed()
    held.open()
    held.succeeded_exactly_once(tries=2)


def test_worker_killed_while_it_fetches_the_results(stage: Stage, held: HeldRun) -> None:
    held.wait_until_followed()
    fetching = stage.door.hold_before("GET", held.path_of_log)
    held.open()
    stage.door.wait_for_hit(fetching)

    held.kill_worker()

    held.succeeded_exactly_once(tries=2)


def test_worker_killed_when_airflow_has_noted_the_success(stage: Stage, held: HeldRun) -> None:
    # Only then is the gang marked as delivered and deleted, so now it is kept; it does not run again.
    held.wait_until_followed()
    marking = stage.door.hold_before("PATCH", held.path_of_job)
    held.open()
    stage.door.wait_for_hit(marking)
    assert held.task["state"] == "success"

    held.kill_worker()

    stage.let_another_pass()
    assert (held.run.state, held.task["try_number"]) == ("success", 1)
    assert [state_of(read_job(job)) for job in stage.witness.jobs(held.key())] == [JobState.SUCCEEDED]


def test_worker_killed_after_it_marked_the_gang_as_delivered(stage: Stage, held: HeldRun) -> None:
    held.wait_until_followed()
    marked = stage.door.hold_after("PATCH", held.path_of_job)
    held.open()
    stage.door.wait_for_hit(marked)

    held.kill_worker()

    stage.let_another_pass()
    assert (held.run.state, held.task["try_number"]) == ("success", 1)
    assert [state_of(read_job(job)) for job in stage.witness.jobs(held.key())] == [JobState.DELIVERED]


def test_worker_lost_with_its_supervisor(lost: HeldRun) -> None:
    # Nobody is left to tell Airflow, which finds that the heartbeats have stopped.
    lost.wait_until_followed()
    lost.open()
    lost.succeeded_exactly_once(tries=2)
