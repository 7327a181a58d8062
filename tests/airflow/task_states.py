"""The history of the states of all tasks, which a trigger of PostgreSQL writes with each change.

A test that polls Airflow's API misses states that last only a moment. The trigger misses no state, and its times are
those of the database.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.airflow.postgres.server import Postgres

Instance = tuple[str, int]
"""The id and the map index of a mapped task instance."""
_LOG = """
CREATE TABLE state_log (
    number bigserial, at double precision, id text, task_id text, map_index int, try_number int, state text
);
CREATE FUNCTION log_state() RETURNS trigger AS $$ BEGIN
    INSERT INTO state_log (at, id, task_id, map_index, try_number, state)
    VALUES (extract(epoch FROM clock_timestamp()), NEW.id::text, NEW.task_id, NEW.map_index,
        NEW.try_number, NEW.state);
    RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER log_state AFTER UPDATE ON task_instance FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.id IS DISTINCT FROM NEW.id) EXECUTE FUNCTION log_state();
"""


@dataclass(frozen=True)
class StateRow:
    """One change of the state of a mapped task instance.

    Attributes:
        at: when the database made the change, as Unix time.
        id: id of the task instance, which is new for each try.
    """

    at: float
    id: str
    instance: Instance
    try_number: int
    state: str | None


@dataclass(frozen=True)
class TaskStates:
    """The states of the tasks in one database of Airflow."""

    postgres: Postgres
    database: str

    def start(self) -> None:
        """Begin to record. The tables of Airflow exist."""
        self._run(_LOG)

    def rows(self) -> list[StateRow]:
        """Return all changes so far, in the order in which the database made them."""
        query = "SELECT at, id, task_id, map_index, try_number, state FROM state_log ORDER BY number"
        return [StateRow(at, uid, (task, index), *rest) for at, uid, task, index, *rest in self._run(query)]

    def now(self) -> list[tuple[Instance, str | None, int | None, int]]:
        """Return of each task instance: which it is, state, process id, and number of the try."""
        rows = self._run("SELECT task_id, map_index, state, pid, try_number FROM task_instance ORDER BY id")
        return [((task, index), *rest) for task, index, *rest in rows]

    def results(self) -> dict[Instance, Any]:
        """Return the values that the task instances returned."""
        rows = self._run("SELECT task_id, map_index, value FROM xcom WHERE key = 'return_value'")
        return {(task, index): json.loads(value) if isinstance(value, str) else value for task, index, value in rows}

    def _run(self, query: str) -> list[Any]:
        with closing(self.postgres.connect(self.database)) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(query)
            return cursor.fetchall() if cursor.description else []
