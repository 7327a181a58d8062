"""In an Airflow of several teams, pages and REST interface show a user nothing of another team."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    tuple(map(int, version("apache-airflow").split(".")[:2])) < (3, 2), reason="Airflow 3.2 is the first with teams"
)


@pytest.mark.slow
def test_team_sees_its_own_and_what_belongs_to_no_team(tmp_path: Path) -> None:
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__GANGJOBS__REST_WRITE_CONNECTIONS": "red_conn/*, blue_conn/*, nobody_conn/*",
    }
    program = [sys.executable, "-m", "tests.plugins.teams_program"]
    done = subprocess.run(
        program, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=AIRFLOW_TIMEOUT_S
    )
    found = json.loads(done.stdout.splitlines()[-1])

    for team, other in (("red", "blue"), ("blue", "red")):
        connections = [f"{team}_conn", "nobody_conn"]
        assert found[team]["dags"] == sorted([f"{team}-dag", "nobody-dag"])
        assert [found[team][what] for what in ("connections", "read", "written")] == [connections] * 3
        # The tab, the log of a rank, and the REST interface. The task instances do not exist.
        assert found[team]["statuses"] == {
            f"{team}-dag": [404] * 3,
            "nobody-dag": [404] * 3,
            f"{other}-dag": [403] * 3,
        }
