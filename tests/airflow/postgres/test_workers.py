"""Workers are killed at critical moments: the next try continues with the same gang, and the gang runs once.

The cluster delays a request or a response, so that the test can kill the worker at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

JOBS = r"/namespaces/default/jobs$"


def start_and_kill(deployment: AirflowDeployment, *, supervisor: bool = False) -> HeldRun:
    """Start a gang, and kill its worker after the gang was allowed to run, and before the worker has the response."""
    held = deployment.plan()
    let_run = deployment.faults.hold_after("PATCH", held.path_of_job)
    held.start()
    deployment.faults.wait_for_hit(let_run)
    held.kill_worker(supervisor=supervisor)
    return held


@pytest.fixture(scope="module", autouse=True)
def lost(deployment: AirflowDeployment) -> HeldRun:
    """A gang whose worker was killed with its supervisor. Airflow notices this after a minute."""
    return start_and_kill(deployment, supervisor=True)


@pytest.fixture(scope="module")
def gangs(deployment: AirflowDeployment) -> Iterator[HeldRun]:
    return iter([deployment.start() for _ in range(2)])


def test_worker_killed_after_it_created_the_job(deployment: AirflowDeployment) -> None:
    created = deployment.faults.hold_after("POST", JOBS)
    held = deployment.start()
    deployment.faults.wait_for_hit(created)

    held.kill_worker()

    held.open()
    held.succeeded_exactly_once(tries=2)


def test_worker_killed_between_submission_and_deferral(deployment: AirflowDeployment) -> None:
    held = start_and_kill(deployment)

    held.wait_until_followed()
    held.open()
    held.succeeded_exactly_once(tries=2)


def test_worker_killed_while_it_fetches_the_results(deployment: AirflowDeployment) -> None:
    held = deployment.start("not_streamed")
    held.wait_until_followed()
    fetching = deployment.faults.hold_before("GET", held.path_of_log)
    held.open()
    deployment.faults.wait_for_hit(fetching)

    held.kill_worker()

    held.succeeded_exactly_once(tries=2)


def test_worker_killed_after_airflow_has_stored_the_success(deployment: AirflowDeployment, held: HeldRun) -> None:
    # The gang is deleted only after that, so here the gang stays. It does not run again.
    held.wait_until_followed()
    deleting = deployment.faults.hold_before("DELETE", held.path_of_job)
    held.open()
    deployment.faults.wait_for_hit(deleting)
    assert held.task["state"] == "success"

    held.kill_worker()

    deployment.let_another_pass()
    assert (held.run.state, held.task["try_number"]) == ("success", 1)
    assert [state_of(read_job(job)) for job in deployment.cluster_history.jobs(held.key())] == [
        SubmissionState.SUCCEEDED
    ]


def test_worker_killed_after_it_marked_the_gang_as_delivered(deployment: AirflowDeployment, held: HeldRun) -> None:
    held.wait_until_followed()
    deployment.faults.arm(kind="status", code=503, method="DELETE", path=held.path_of_job)
    marked = deployment.faults.hold_after("PATCH", held.path_of_job)
    held.open()
    deployment.faults.wait_for_hit(marked)

    held.kill_worker()

    deployment.let_another_pass()
    assert (held.run.state, held.task["try_number"]) == ("success", 1)
    assert [state_of(read_job(job)) for job in deployment.cluster_history.jobs(held.key())] == [
        SubmissionState.DELIVERED
    ]


def test_worker_lost_with_its_supervisor(lost: HeldRun) -> None:
    # No process reports the loss to Airflow, which finds that the heartbeats have stopped.
    lost.wait_until_followed()
    lost.open()
    lost.succeeded_exactly_once(tries=2)
