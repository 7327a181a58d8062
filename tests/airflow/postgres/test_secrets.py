"""Secrets of templates are in no log file and in no row of the database, wherever the task is."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.airflow.postgres.conftest import SECRETS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held_runs import AirflowDeployment
    from tests.airflow.postgres.server import Postgres

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3 * AIRFLOW_TIMEOUT_S)]


def tables_with(secret: str, postgres: Postgres) -> list[str]:
    """Return the tables of Airflow that have a row with this text."""
    with closing(postgres.connect("airflow")) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        found = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT count(*) FROM "{table}" AS t WHERE strpos(t::text, %s) > 0', (secret,))
            if cursor.fetchone() != (0,):
                found.append(table)
        return found


def test_secrets_of_a_deferred_task_are_in_no_log_and_in_no_table(
    deployment: AirflowDeployment, postgres: Postgres
) -> None:
    held = deployment.start("secrets")
    assert held.run.wait(2 * AIRFLOW_TIMEOUT_S) == "failed"
    states = [held.run.task(name)["state"] for name in ("gang", "fails", "refused")]
    assert states == ["success", "failed", "failed"]

    logs = {
        path: path.read_text(errors="replace") for path in deployment.home.path.glob("logs/dag_id=secrets/**/*.log")
    }
    assert "ends in the triggerer, without a worker" in held.trigger_log
    assert held.trigger_log.count("PLAIN=***") == 2, "the log was streamed or copied"
    for secret in SECRETS:
        assert not [path.name for path, text in logs.items() if secret in text]
        assert tables_with(secret, postgres) == []
