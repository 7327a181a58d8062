"""The pages of the plugin read Airflow's records on PostgreSQL, too."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.plugins.caches import JOB_DELETED
from tests.airflow.polling import wait_for
from tests.airflow.postgres.held_runs import RANKS
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


def tab(held: HeldRun, map_index: str = "{MAP_INDEX}") -> str:
    """Return the tab of the task of a run; by default as Airflow's UI asks for it if the task is not mapped."""
    names = (held.run.dag_id, held.run.run_id, "gang", map_index)
    address = "/gangjobs/dags/{}/dagRuns/{}/taskInstances/{}/{}".format(*map(urllib.parse.quote, names))
    return held.deployment.airflow.api.read(address)


def page(held: HeldRun) -> str:
    """Return the page "Gangs" with the gangs of a run."""
    return held.deployment.airflow.api.read(f"/gangjobs/gangs?text={held.run.run_id}")


def test_gang_is_on_both_pages_while_it_runs_and_after_its_job_is_gone(deployment: AirflowDeployment) -> None:
    held = deployment.start()
    held.wait_until_followed()
    wait_for("the gang on the page", lambda: f"default/{held.name_of_job}" in page(held))
    wait_for("the gang on the tab", lambda: 'data-phase="running"' in tab(held))

    held.open()
    assert held.run.wait() == "success"
    held.wait_until_gone()

    wait_for("its end on the page", lambda: ">succeeded</span>" in page(held))
    wait_for("its end on the tab", lambda: JOB_DELETED in tab(held))
    assert f"All {RANKS} ranks succeeded." in tab(held)


def test_mapped_task_has_a_list_of_its_map_indexes(deployment: AirflowDeployment) -> None:
    many = deployment.start("many")
    many.open()
    assert many.run.wait() == "success"

    indexes = [ti["map_index"] for ti in many.run.mapped("gang")]
    for address in ("{MAP_INDEX}", "3"):
        found = tab(many, address)
        assert all(f"/mapped/{index}/plugin/gang" in found for index in indexes)
