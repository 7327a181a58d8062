"""A running Airflow with gangs to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.airflow.ui.users import PASSWORDS

if TYPE_CHECKING:
    from tests.airflow.api import Api, DagRun
    from tests.airflow.home import Home


@dataclass(frozen=True)
class Scene:
    """A running Airflow, and a run of each DAG that is asked for."""

    home: Home = field(repr=False)
    api: Api
    runs: dict[str, DagRun] = field(default_factory=dict)

    def run(self, dag_id: str) -> DagRun:
        if dag_id not in self.runs:
            self.runs[dag_id] = self.api.trigger(dag_id)
        return self.runs[dag_id]

    def gang(self, dag_id: str) -> dict[str, Any]:
        """The XCom by which the DAG's task tells its gang."""
        found: dict[str, Any] = self.run(dag_id).xcom("gang", "gang")
        return found

    def token(self, user: str) -> str:
        """That of a session of a user."""
        body = {"username": user, "password": PASSWORDS[user]}
        return str(self.api.call("POST", "/auth/token", body)["access_token"])
