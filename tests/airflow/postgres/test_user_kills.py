"""A user ends a deferred task by Airflow's API: what becomes of its gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.submission.jobs import JobState, state_of
from tests.airflow.postgres.held import RANKS
from tests.airflow.waiting import wait_for
from tests.patience import AIRFLOW_PATIENCE_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held import Stage

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_PATIENCE_S)]


def test_gang_of_a_task_marked_failed_or_successful_is_deleted(stage: Stage) -> None:
    runs = {state: stage.start() for state in ("failed", "success")}
    for held in runs.values():
        held.wait_until_followed()

    for state, held in runs.items():
        held.run.set_task_state("gang", state)

    for state, held in runs.items():
        held.wait_until_gone()
        assert len(stage.witness.jobs_created(held.key())) == 1
        assert stage.witness.deliveries(held.key()) == 0
        assert held.task["state"] == state


def test_cleared_task_ends_with_one_gang(stage: Stage) -> None:
    # Airflow does not say which comes first: the end of the old trigger, which deletes the gang, or the next try,
    # which adopts it if it is still there.
    held = stage.start()
    held.wait_until_followed()

    held.run.clear("gang")
    wait_for("the next try", lambda: held.task["try_number"] == 2 and held.task["state"] == "deferred")
    wait_for("its ranks", lambda: held.ranks("Running") == RANKS)

    held.open()
    assert held.run.wait() == "success"
    held.wait_until_gone()
    assert stage.witness.live_at_once(held.key()) == 1
    assert stage.witness.deliveries(held.key()) == 1


def test_gang_outlives_its_task_if_no_triggerer_was_there_to_be_told(stage: Stage) -> None:
    # Airflow drops the trigger with the task's state, and nothing of ours is called, then or later.
    for triggerer in stage.triggerers:
        triggerer.kill()
    held = stage.start()
    held.run.wait_for_task("gang", "deferred")
    wait_for("running ranks", lambda: held.ranks("Running") == RANKS)

    held.run.set_task_state("gang", "failed")
    stage.airflow.revive()
    stage.let_another_pass()

    assert [state_of(job) for job in stage.witness.jobs(held.key())] == [JobState.LIVE]
    held.run.clear("gang")
    held.open()
    held.succeeded_exactly_once(tries=2)
