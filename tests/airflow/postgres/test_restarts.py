"""The programs of a gang are restarted in place, beside triggerers that are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.airflow.postgres.held_runs import RANKS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture
def held(deployment: AirflowDeployment) -> HeldRun:
    return deployment.start("restarted")


def fail(held: HeldRun, *, restart: int) -> None:
    """Let the program of rank 1 fail, and wait until the programs of all ranks have started again."""
    held.gate.with_suffix(f".fails-{restart}").touch()
    notes = [held.gate.with_suffix(f".runs-{restart + 1}-{rank}") for rank in range(RANKS)]
    wait_for("the restart", lambda: all(note.exists() for note in notes))


def ended_once_with(held: HeldRun, restarts: int) -> None:
    """Check that the task has one gang, whose end tells each restart once."""
    held.open()
    held.succeeded_exactly_once()
    end = held.run.xcom("gang", "gang_end")
    told = [(one["number"], one["rank"], one["code"]) for one in end["restarts"]]
    assert told == [(number, 1, 3) for number in range(1, restarts + 1)]
    assert (end["restarts_total"], end["restarts_max"]) == (restarts, 3)


def test_other_triggerer_tells_the_restarts_before_and_after_the_end_of_a_killed_one(held: HeldRun) -> None:
    follower = held.wait_until_followed()
    fail(held, restart=0)

    follower.kill()
    held.wait_until_followed(but_not_by=follower)
    fail(held, restart=1)

    ended_once_with(held, 2)


def test_new_triggerer_tells_the_restart_that_no_triggerer_has_seen(
    deployment: AirflowDeployment, held: HeldRun
) -> None:
    held.wait_until_followed()

    for triggerer in deployment.triggerers:
        triggerer.kill()
    fail(held, restart=0)
    deployment.triggerers[0].start()

    ended_once_with(held, 1)
