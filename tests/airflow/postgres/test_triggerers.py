"""Two triggerers: whichever of them ends, however, each gang is followed by one of them to its end, and told once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.airflow.postgres.held import PATIENCE_S
from tests.airflow.waiting import wait_for

if TYPE_CHECKING:
    from tests.airflow.postgres.held import Stage

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]


def test_gang_runs_through_the_whole_stack(stage: Stage) -> None:
    held = stage.start()
    held.wait_until_followed()

    held.open()

    held.succeeded_exactly_once()


def test_other_triggerer_takes_the_gang_of_a_killed_one_over(stage: Stage) -> None:
    held = stage.start()
    holder = held.wait_until_followed()

    holder.kill()
    held.wait_until_taken_over(holder)

    held.open()
    held.succeeded_exactly_once()


def test_gang_that_ends_while_no_triggerer_lives_is_told_by_a_new_one(stage: Stage) -> None:
    held = stage.start()
    held.wait_until_followed()

    for triggerer in stage.triggerers:
        triggerer.kill()
    held.open()
    wait_for("the end of all ranks", lambda: held.ended_ranks() == 2, PATIENCE_S)
    stage.triggerers[0].start()

    held.succeeded_exactly_once()


def test_triggerer_that_is_asked_to_stop_leaves_its_gangs_alone(stage: Stage) -> None:
    held = stage.start()
    holder = held.wait_until_followed()

    holder.terminate()
    held.wait_until_taken_over(holder)

    held.open()
    held.succeeded_exactly_once()


def test_triggerer_that_was_out_for_a_while_leaves_the_gangs_alone_that_it_lost(stage: Stage) -> None:
    # It still runs its trigger when it comes back, and is told to cancel it as if a user had killed the task:
    # airflow#73454.
    held = stage.start()
    holder = held.wait_until_followed()

    holder.signal(signal.SIGSTOP)
    try:
        held.wait_until_taken_over(holder)
    finally:
        holder.signal(signal.SIGCONT)
    spared = "another triggerer waits for gang"
    wait_for("the call of on_kill", lambda: spared in held.trigger_log, PATIENCE_S)

    held.open()
    held.succeeded_exactly_once()
