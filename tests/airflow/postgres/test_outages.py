"""What Airflow stands on goes away for a while: its scheduler, its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.postgres.held import PATIENCE_S
from tests.airflow.waiting import wait_for

if TYPE_CHECKING:
    from tests.airflow.postgres.held import Stage
    from tests.airflow.postgres.server import Postgres

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]


def test_gang_ends_while_the_scheduler_is_dead(stage: Stage) -> None:
    held = stage.start()
    held.wait_until_followed()

    stage.scheduler.kill()
    held.open()
    wait_for("the trigger's event", lambda: held.task["state"] != "deferred", PATIENCE_S)
    stage.scheduler.start()

    held.succeeded_exactly_once()


def test_gang_outlives_an_outage_of_the_database(stage: Stage, postgres: Postgres) -> None:
    held = stage.start()
    held.wait_until_followed()

    postgres.stop()
    try:
        # Airflow's triggerer ends when it has no database; whoever runs it starts it again.
        for triggerer in stage.triggerers:
            wait_for(f"the end of {triggerer.name}", lambda one=triggerer: not one.is_alive, PATIENCE_S)
        assert held.running_ranks() == 2
    finally:
        postgres.start()
    stage.airflow.revive()

    held.open()
    wait_for("the end of the task", lambda: stage.airflow.revive() or held.is_over(), PATIENCE_S)
    held.succeeded_exactly_once()
