"""A gang that has succeeded ends its task in a triggerer, also if triggerers are killed or stopped, with no worker."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.polling import wait_for
from tests.airflow.postgres.held_runs import RANKS, ran_once
from tests.airflow.postgres.test_refused_reports import refused
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun
    from tests.airflow.postgres.server import Postgres

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3 * AIRFLOW_TIMEOUT_S)]

DAG_ID = "ends_in_triggerer"
ENDS_HERE = "Its task ends in the triggerer, without a worker"
RESULTS = [{"rank": rank, "number": "0"} for rank in range(RANKS)]


@pytest.fixture(scope="module")
def gangs(deployment: AirflowDeployment) -> Iterator[HeldRun]:
    return iter([deployment.start(DAG_ID) for _ in range(4)])


def ended_without_worker(held: HeldRun) -> None:
    """Check that the task had one gang and one delivery, and that no worker has completed it."""
    assert held.run.wait() == "success"
    assert held.task["try_number"] == 1
    held.wait_until_gone()
    ran_once(held.deployment.cluster_history, held.key())
    assert held.run.xcom("gang") == RESULTS
    assert ENDS_HERE in held.trigger_log, held.trigger_log
    assert "[rank 0] (end of the log" in held.trigger_log, held.trigger_log
    assert "[rank 0]" not in held.log("attempt=1.log"), held.trigger_log


def xcoms(postgres: Postgres, held: HeldRun) -> dict[str, tuple[Any, ...]]:
    """Return the rows of the task in the table of XComs, by key."""
    with closing(postgres.connect("airflow")) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT key, value::text, task_id, map_index FROM xcom WHERE dag_id = %s AND run_id = %s",
            (held.run.dag_id, held.run.run_id),
        )
        return {key: row for key, *row in cursor.fetchall()}


@pytest.mark.representative
def test_xcoms_of_an_end_in_the_triggerer_are_those_of_a_worker(
    deployment: AirflowDeployment, postgres: Postgres, held: HeldRun
) -> None:
    other = deployment.start("held")
    for each in (held, other):
        each.wait_until_followed()
        each.open()
    other.succeeded_exactly_once()

    ended_without_worker(held)

    here, there = xcoms(postgres, held), xcoms(postgres, other)
    assert here.keys() == there.keys() == {"gang", "gang_end", "return_value"}
    assert here["return_value"] == there["return_value"]
    of_end = [run.run.xcom("gang", "gang_end") for run in (held, other)]
    # How far the log was streamed when the gang ended depends on the moment.
    assert of_end[0].keys() - {"streamed", "whole_logs"} == of_end[1].keys() - {"streamed", "whole_logs"}
    assert of_end[0]["status"] == "succeeded"


def test_other_triggerer_ends_the_task_of_a_killed_triggerer(held: HeldRun) -> None:
    follower = held.wait_until_followed()

    follower.kill()
    held.open()

    ended_without_worker(held)


def test_triggerer_that_was_stopped_changes_nothing_of_an_end_in_another_one(held: HeldRun) -> None:
    follower = held.wait_until_followed()

    follower.signal(signal.SIGSTOP)
    try:
        held.open()
        ended_without_worker(held)
        before = held.run.xcom("gang", "gang_end")
    finally:
        follower.signal(signal.SIGCONT)
    held.deployment.let_another_pass()

    assert held.run.xcom("gang", "gang_end") == before
    ended_without_worker(held)


def test_gang_is_not_delivered_before_airflow_has_stored_the_success(
    deployment: AirflowDeployment, postgres: Postgres, held: HeldRun
) -> None:
    """A database that refuses the success ends the triggerers. Those that start later end the task."""
    held.wait_until_followed()
    with refused(postgres, held):
        held.open()
        wait_for("the end in a triggerer", lambda: ENDS_HERE in held.trigger_log)
        wait_for("the end of the triggerers", lambda: not all(each.is_alive for each in deployment.triggerers))
        assert held.task["state"] == "deferred"
        assert deployment.cluster_history.deliveries(held.key()) == 0
    deployment.airflow.revive()

    ended_without_worker(held)
