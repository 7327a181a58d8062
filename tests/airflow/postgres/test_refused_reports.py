"""Airflow's API server does not store the success of a task. The next try returns the results of the same gang."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.airflow.postgres.held_runs import RANKS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun
    from tests.airflow.postgres.server import Postgres

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3 * AIRFLOW_TIMEOUT_S)]

REFUSE = """
CREATE FUNCTION refuse_success() RETURNS trigger AS $$ BEGIN
    RAISE EXCEPTION 'the test refuses this success';
END $$ LANGUAGE plpgsql;
CREATE TRIGGER refuse_success BEFORE UPDATE ON task_instance FOR EACH ROW
    WHEN (NEW.state = 'success' AND NEW.try_number = 1 AND NEW.run_id = '{run_id}') EXECUTE FUNCTION refuse_success();
"""
ACCEPT = "DROP TRIGGER refuse_success ON task_instance; DROP FUNCTION refuse_success();"


@contextmanager
def refused(postgres: Postgres, held: HeldRun) -> Iterator[None]:
    """Let the database refuse the success of the first try of this run, so that the API server returns an error."""
    with closing(postgres.connect("airflow")) as connection:
        connection.autocommit = True
        connection.cursor().execute(REFUSE.format(run_id=held.run.run_id))
        try:
            yield
        finally:
            connection.cursor().execute(ACCEPT)


def test_gang_is_delivered_by_the_next_try_if_airflow_does_not_store_the_success(
    deployment: AirflowDeployment, postgres: Postgres
) -> None:
    held = deployment.plan()
    with refused(postgres, held):
        held.start()
        held.open()
        assert held.run.wait(3 * AIRFLOW_TIMEOUT_S) == "success"

    assert held.task["try_number"] == 2
    assert "is kept for the next try" in held.log("attempt=1.log")
    assert held.run.xcom("gang") == [{"rank": rank, "number": "0"} for rank in range(RANKS)]
    held.wait_until_gone()
    history = deployment.cluster_history
    assert (len(history.jobs_created(held.key())), history.deliveries(held.key())) == (1, 1)
    history.check()
