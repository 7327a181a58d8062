"""A user marks or clears a deferred task while its gang is queued, assembling, or running, or while it completes.

All gangs of deferred tasks are started at once.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

PHASES = {"queued": "queued", "assembling": "assembling", "held": "running"}
"""The DAG whose gang stays in this phase, and what its trigger logs then."""
ACTIONS = ("failed", "success", "clear")
CASES = list(product(PHASES, ACTIONS))


@pytest.fixture(scope="module")
def gangs(deployment: AirflowDeployment) -> dict[tuple[str, str], HeldRun]:
    return {(dag_id, action): deployment.start(dag_id) for dag_id, action in CASES}


def wait_until_in_phase(held: HeldRun, dag_id: str) -> None:
    wait_for("the phase", lambda: f"{PHASES[dag_id]}:" in held.trigger_log and held.task["state"] == "deferred")


@pytest.mark.parametrize(("dag_id", "action"), CASES)
def test_gang_ends_with_its_task_in_each_phase(
    deployment: AirflowDeployment, gangs: dict[tuple[str, str], HeldRun], dag_id: str, action: str
) -> None:
    held = gangs[dag_id, action]
    wait_until_in_phase(held, dag_id)
    if action == "clear":
        held.run.clear("gang")
        wait_for("the next try", lambda: held.task["try_number"] == 2 and held.task["state"] == "deferred")
        wait_for("its trigger", lambda: f"{PHASES[dag_id]}:" in held.log("attempt=2.log.trigger.*"))

    held.run.set_task_state("gang", "success" if action == "success" else "failed")

    held.wait_until_gone()
    history = deployment.cluster_history
    assert (history.deliveries(held.key()), history.live_at_once(held.key())) == (0, 1)
    history.check()


def test_task_that_is_cleared_while_a_worker_completes_it_begins_anew(deployment: AirflowDeployment) -> None:
    """Airflow resumes the next try with the event of the first one."""
    held = deployment.start("completes_late")
    held.open()
    wait_for("the completion", lambda: "the worker has the event" in held.log("attempt=1.log"))
    held.run.clear("gang")
    wait_for("the next try", lambda: "the worker has the event" in held.log("attempt=2.log"))

    held.gate.with_name(f"{held.gate.name}.completes").touch()

    assert held.run.wait() == "success"
    assert "this try begins anew" in held.log("attempt=2.log")
    history = deployment.cluster_history
    assert len(history.jobs_created(held.key())) == 2, "the task is not durable"
    wait_for("the deletion of the second gang", lambda: len(history.jobs(held.key())) == 1)
    assert (history.deliveries(held.key()), history.live_at_once(held.key())) == (1, 1)
    history.check()
