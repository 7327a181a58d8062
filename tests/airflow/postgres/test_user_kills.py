"""A user ends a deferred task by Airflow's API. The tests check the gang of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.airflow.postgres.held_runs import RANKS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held_runs import AirflowDeployment

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


def test_gang_of_a_task_marked_failed_or_successful_is_deleted(deployment: AirflowDeployment) -> None:
    runs = {state: deployment.start() for state in ("failed", "success")}
    for held in runs.values():
        held.wait_until_followed()

    for state, held in runs.items():
        held.run.set_task_state("gang", state)

    for state, held in runs.items():
        held.wait_until_gone()
        assert len(deployment.cluster_history.jobs_created(held.key())) == 1
        assert deployment.cluster_history.deliveries(held.key()) == 0
        assert held.task["state"] == state


def test_cleared_task_ends_with_one_gang(deployment: AirflowDeployment) -> None:
    # The order is not defined: the end of the old trigger deletes the gang, and the next try adopts the gang if it is
    # still there.
    held = deployment.start()
    held.wait_until_followed()

    held.run.clear("gang")
    wait_for("the next try", lambda: held.task["try_number"] == 2 and held.task["state"] == "deferred")
    wait_for("its ranks", lambda: held.ranks("Running") == RANKS)

    held.open()
    assert held.run.wait() == "success"
    held.wait_until_gone()
    assert deployment.cluster_history.live_at_once(held.key()) == 1
    assert deployment.cluster_history.deliveries(held.key()) == 1


def test_gang_whose_task_ended_while_no_triggerer_ran_is_deleted_late_or_adopted(deployment: AirflowDeployment) -> None:
    # A triggerer that comes back either starts the trigger and then cancels it, or deletes the trigger unstarted,
    # and then no triggerer calls `on_kill`. Both happen in its first loop, and the other triggerer may be faster.
    for triggerer in deployment.triggerers:
        triggerer.kill()
    held = deployment.start()
    held.run.wait_for_task("gang", "deferred")
    wait_for("running ranks", lambda: held.ranks("Running") == RANKS)

    held.run.set_task_state("gang", "failed")
    deployment.airflow.revive()
    deployment.let_another_pass()

    held.run.clear("gang")
    wait_for("the next try", lambda: held.task["try_number"] == 2 and held.task["state"] == "deferred")
    held.open()
    assert held.run.wait() == "success"
    held.wait_until_gone()
    assert len(deployment.cluster_history.jobs_created(held.key())) in (1, 2)
    assert deployment.cluster_history.live_at_once(held.key()) == 1
    assert deployment.cluster_history.deliveries(held.key()) == 1
