"""What PostgreSQL cannot store ends the task of the gang that has written it, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.container_programs.gangjobs_result import DEPTH_MAX, INT_MAX, INT_MIN, find_problem
from airflow_provider_gangjobs.kube.text import to_printable_value
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held_runs import AirflowDeployment
    from tests.airflow.postgres.server import Postgres

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3 * AIRFLOW_TIMEOUT_S)]

EVERY_CHARACTER = "".join(map(chr, range(0x110000)))


@pytest.mark.representative
def test_nul_ends_only_the_task_of_its_gang(deployment: AirflowDeployment) -> None:
    triggerers = [process.pid for process in deployment.triggerers]
    victim = deployment.start()
    victim.wait_until_followed()

    output, exception, result = map(deployment.start, ("nul_in_output", "nul_in_exception", "nul_in_result"))

    assert [one.run.wait() for one in (output, exception, result)] == ["failed"] * 3
    assert r"cannot open >\x00< file" in output.run.xcom("gang", "gang_end")["ranks"][0]["message"]
    assert r"ValueError: cannot parse >\\x00<" in exception.log("attempt=1.log")  # a line is JSON
    assert result.task["try_number"] == 1
    assert "Rank 0 of gang" in result.log("attempt=1.log")
    assert "result has the character U+0000" in result.log("attempt=1.log")
    assert [process.pid for process in deployment.triggerers if process.is_alive] == triggerers
    victim.open()
    victim.succeeded_exactly_once()


def test_database_stores_every_character_that_is_printable(postgres: Postgres) -> None:
    value = to_printable_value({EVERY_CHARACTER: [EVERY_CHARACTER]})

    assert stored(postgres, value) == value


def test_database_stores_every_result_without_a_problem(postgres: Postgres) -> None:
    characters = "".join(character for character in EVERY_CHARACTER if not find_problem(character))
    deep: list[object] = []
    for _ in range(DEPTH_MAX - 2):
        deep = [deep]
    value = [INT_MIN, INT_MAX, 5e-324, {characters: characters}, deep]
    assert not find_problem(value)

    assert stored(postgres, value) == value


def stored(postgres: Postgres, value: object) -> object:
    """Return a value as a column of the type JSONB has it."""
    ((text,),) = postgres.rows("postgres", "SELECT (%s::jsonb)::text", json.dumps(value))
    return json.loads(text)
