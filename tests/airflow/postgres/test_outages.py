"""What Airflow stands on goes away for a while: its scheduler, its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.postgres.held import RANKS
from tests.airflow.waiting import wait_for
from tests.patience import AIRFLOW_PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.postgres.held import HeldRun, Stage
    from tests.airflow.postgres.server import Postgres

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_PATIENCE_S)]


@pytest.fixture(scope="module")
def gangs(stage: Stage) -> Iterator[HeldRun]:
    return iter([stage.start() for _ in range(2)])


@pytest.fixture
def held(gangs: Iterator[HeldRun]) -> HeldRun:
    """A gang that runs or is about to; they are started at once, to save time."""
    return next(gangs)


def test_gang_ends_while_the_scheduler_is_dead(stage: Stage, held: HeldRun) -> None:
    held.wait_until_followed()

    stage.scheduler.kill()
    held.open()
    wait_for("the trigger's event", lambda: held.task["state"] != "deferred")
    stage.scheduler.start()

    held.succeeded_exactly_once()


def test_gang_outlives_an_outage_of_the_database(stage: Stage, held: HeldRun, postgres: Postgres) -> None:
    held.wait_until_followed()

    postgres.stop()
    try:
        # All of Airflow but its API server ends when it has no database; whoever runs it starts it again.
        for process in stage.airflow.processes.values():
            if process.name != "api-server":
                wait_for(f"the end of {process.name}", lambda one=process: not one.is_alive)
        assert held.ranks("Running") == RANKS
    finally:
        postgres.start()
    stage.airflow.revive()

    held.open()
    held.succeeded_exactly_once()
