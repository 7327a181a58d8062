"""Whether the harness runs Airflow at all, so that other failures here are the provider's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Home

pytestmark = pytest.mark.airflow


def test_plain_dag_runs_in_one_process(home: Home) -> None:
    done = home.test_dag("plain")

    assert (done["state"], done["tasks"]["answer"]["value"]) == ("success", 42)


def test_plain_dag_runs_in_real_processes(home: Home) -> None:
    with home.processes() as api:
        run = api.trigger("plain")

        assert (run.wait(), run.xcom("answer")) == ("success", 42)
