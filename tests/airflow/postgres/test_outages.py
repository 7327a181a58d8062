"""Outages of what Airflow depends on: its scheduler, and its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.airflow.postgres.held_runs import RANKS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun
    from tests.airflow.postgres.server import Postgres

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def gangs(deployment: AirflowDeployment) -> Iterator[HeldRun]:
    return iter([deployment.start() for _ in range(2)])


def test_gang_ends_while_the_scheduler_is_dead(deployment: AirflowDeployment, held: HeldRun) -> None:
    held.wait_until_followed()

    deployment.scheduler.kill()
    held.open()
    wait_for("the trigger's event", lambda: held.task["state"] != "deferred")
    deployment.scheduler.start()

    held.succeeded_exactly_once()


def test_gang_outlives_an_outage_of_the_database(
    deployment: AirflowDeployment, held: HeldRun, postgres: Postgres
) -> None:
    held.wait_until_followed()

    postgres.stop()
    try:
        # All processes of Airflow except the API server end when the database is away. A deployment starts them again.
        for process in deployment.airflow.processes.values():
            if process.name != "api-server":
                wait_for(f"the end of {process.name}", lambda one=process: not one.is_alive)
        assert held.ranks("Running") == RANKS
    finally:
        postgres.start()
    deployment.airflow.revive()

    held.open()
    held.succeeded_exactly_once()
