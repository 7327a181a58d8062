"""Two triggerers, of which one ends in several ways: each gang is followed to its end, and has one event.

All gangs are started at once, so that each gang also goes through the tests before its own.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.airflow.postgres.held_runs import RANKS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def gangs(deployment: AirflowDeployment) -> Iterator[HeldRun]:
    return iter([deployment.start() for _ in range(5)])


def test_gang_runs_through_the_whole_stack(held: HeldRun) -> None:
    held.wait_until_followed()

    held.open()

    held.succeeded_exactly_once()


@pytest.mark.representative
def test_other_triggerer_follows_the_gang_of_a_killed_triggerer(held: HeldRun) -> None:
    follower = held.wait_until_followed()

    follower.kill()
    held.wait_until_followed(but_not_by=follower)

    held.open()
    held.succeeded_exactly_once()


def test_triggerer_that_is_asked_to_stop_leaves_its_gangs_alone(held: HeldRun) -> None:
    follower = held.wait_until_followed()

    follower.terminate()
    held.wait_until_followed(but_not_by=follower)

    held.open()
    held.succeeded_exactly_once()


def test_triggerer_that_was_stopped_for_a_while_leaves_the_gangs_alone_that_it_lost(held: HeldRun) -> None:
    # The triggerer still runs its trigger when it continues. Airflow then cancels the trigger as if a user had killed
    # the task (airflow#73454).
    follower = held.wait_until_followed()

    follower.signal(signal.SIGSTOP)
    try:
        held.wait_until_followed(but_not_by=follower)
    finally:
        follower.signal(signal.SIGCONT)
    # The log of the trigger is closed if the cancellation takes long.
    spared = f"another triggerer waits for gang default/{held.name_of_job}"
    wait_for("the answer to on_kill", lambda: spared in held.trigger_log + follower.output)

    held.open()
    held.succeeded_exactly_once()


def test_gang_that_ends_while_no_triggerer_lives_is_reported_by_a_new_one(
    deployment: AirflowDeployment, held: HeldRun
) -> None:
    held.wait_until_followed()

    for triggerer in deployment.triggerers:
        triggerer.kill()
    held.open()
    wait_for("the end of all ranks", lambda: held.ranks("Succeeded") == RANKS)
    deployment.triggerers[0].start()

    held.succeeded_exactly_once()
