"""A user ends a deferred task by Airflow's API: what becomes of its gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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


def test_gang_whose_task_ended_while_no_triggerer_ran_is_deleted_late_or_adopted(stage: Stage) -> None:
    # A triggerer that comes back takes up the trigger and is told of its end, or drops it before and nobody is told:
    # it begins both in its first loop, and the other triggerer may be ahead of it with the second.
    for triggerer in stage.triggerers:
        triggerer.kill()
    held = stage.start()
    held.run.wait_for_task("gang", "deferred")
    wait_for("running ranks", lambda: held.ranks("Running") == RANKS)

    held.run.set_task_state("gang", "failed")
    stage.airflow.revive()
    stage.let_another_pass()

    held.run.clear("gang")
    wait_for("the next try", lambda: held.task["try_number"] == 2 and held.task["state"] == "deferred")
    held.open()
    assert held.run.wait() == "success"
    held.wait_until_gone()
    assert len(stage.witness.jobs_created(held.key())) in (1, 2)
    assert stage.witness.live_at_once(held.key()) == 1
    assert stage.witness.deliveries(held.key()) == 1
