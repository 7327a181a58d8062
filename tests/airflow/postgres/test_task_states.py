"""A triggerer that was stopped wakes up while its task is in one of the states between deferral and end.

Another triggerer has taken the trigger over by then. The scheduler is stopped, too, so the task stays in its state.
"""

from __future__ import annotations

import signal
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun
    from tests.airflow.postgres.server import Postgres
    from tests.airflow.processes import Process

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

STATES = ("scheduled", "queued", "up_for_retry")
LOOKS_FOR_S = 15.0
"""How long the worker that completes the task waits for a log, while the triggerer wakes up."""


@pytest.fixture(scope="module")
def gangs(deployment: AirflowDeployment) -> dict[str, HeldRun]:
    return {"running": deployment.start("not_streamed"), **{state: deployment.start() for state in STATES}}


@contextmanager
def stopped(process: Process) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


def set_state(postgres: Postgres, held: HeldRun, state: str) -> None:
    """Set the state of the task. Airflow then ends the trigger, and starts the task again if the state is scheduled."""
    with closing(postgres.connect("airflow")) as connection:
        connection.autocommit = True
        statement = (
            "UPDATE task_instance SET state = %s, trigger_id = NULL, next_method = NULL, next_kwargs = NULL "
            "WHERE dag_id = %s AND run_id = %s"
        )
        connection.cursor().execute(statement, (state, held.run.dag_id, held.run.run_id))


def wait_until_spared(held: HeldRun, triggerers: Sequence[Process]) -> None:
    """Wait until each triggerer has found that the task was not killed."""
    words = f"gang default/{held.name_of_job} stays, and its task is responsible for it"

    def answers() -> int:
        return (held.trigger_log + "".join(triggerer.output for triggerer in triggerers)).count(words)

    wait_for("the answers to on_kill", lambda: answers() == len(triggerers))


@pytest.mark.parametrize("state", STATES)
def test_triggerer_that_wakes_leaves_the_gang_to_its_task(
    deployment: AirflowDeployment, postgres: Postgres, gangs: dict[str, HeldRun], state: str
) -> None:
    held = gangs[state]
    follower = held.wait_until_followed()
    with stopped(follower):
        other = held.wait_until_followed(but_not_by=follower)
        deployment.scheduler.signal(signal.SIGSTOP)
        set_state(postgres, held, state)
    try:
        wait_until_spared(held, [other, follower])
    finally:
        set_state(postgres, held, "scheduled")
        deployment.scheduler.signal(signal.SIGCONT)
    held.open()

    held.succeeded_exactly_once()
    deployment.cluster_history.check()


def test_triggerer_that_wakes_leaves_the_gang_to_its_worker(
    deployment: AirflowDeployment, gangs: dict[str, HeldRun]
) -> None:
    held = gangs["running"]
    follower = held.wait_until_followed()
    with stopped(follower):
        held.wait_until_followed(but_not_by=follower)
        slow = deployment.faults.arm(kind="delay", delay_s=LOOKS_FOR_S, method="GET", path=held.path_of_log)
        held.open()
        deployment.faults.wait_for_hit(slow)
        assert held.task["state"] == "running"

    held.succeeded_exactly_once()
    deployment.cluster_history.check()
