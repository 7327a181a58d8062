"""The operator, its trigger and its results, by `dag.test()` in real Airflow, on real control planes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.airflow.airflow_home import AirflowHome
from tests.cluster.releases import RELEASES
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

pytestmark = pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    return AirflowHome.make(tmp_path_factory.mktemp("airflow") / "home")


def test_dag_author_gets_results_and_reasons(home: AirflowHome, tenant: Tenant) -> None:
    extra = {"kube_config_path": str(tenant.kubeconfig), "namespace": tenant.namespace}
    connection = {"conn_type": "kubernetes", "extra": extra}
    home.environment["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = json.dumps(connection)

    reports = home.test_dags("three_ranks", "failing_rank", "functions", "failing_function")

    good, bad = reports["three_ranks"], reports["failing_rank"]
    assert good.state == "success", good.log
    assert good.value("gang") == [{"rank": rank, "square": rank * rank} for rank in range(3)]
    assert f"gang scheduling by Workload API {RELEASES[tenant.plane.release].dialect}" in good.log
    assert "[rank 0] rank 0 of 3" in good.log
    assert bad.state == "failed"
    assert "exited with code 3" in bad.log
    assert reports["functions"].state == "success", reports["functions"].log
    assert reports["functions"].value("joined") == "x0 x1 y0 y1"
    assert ": ValueError: no rows in shard 1" in reports["failing_function"].log
    assert tenant.forbidden_requests() == []
