"""The operator, its trigger and its results, by `dag.test()` in real Airflow, on real control planes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.airflow_home import AirflowHome
from tests.cluster.releases import RELEASES
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

FULLY_TESTED_RELEASE = "1.37"
pytestmark = pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    return AirflowHome.make(tmp_path_factory.mktemp("airflow") / "home")


def test_dag_author_gets_results_and_reasons(home: AirflowHome, tenant: Tenant) -> None:
    """The other releases run one DAG. How a gang fails on them, other tests show without Airflow."""
    home.add_cluster("kubernetes_default", tenant.kubeconfig, namespace=tenant.namespace)
    more = ("failing_rank", "functions", "failing_function") if tenant.plane.release == FULLY_TESTED_RELEASE else ()

    reports = home.test_dags("three_ranks", *more)

    good = reports["three_ranks"]
    assert good.state == "success", good.log
    assert good.value("gang") == [{"rank": rank, "square": rank * rank} for rank in range(3)]
    assert f"gang scheduling by Workload API {RELEASES[tenant.plane.release].dialect}" in good.log
    assert "[rank 0] rank 0 of 3" in good.log
    if more:
        assert reports["failing_rank"].state == "failed"
        assert "exited with code 3" in reports["failing_rank"].log
        assert reports["functions"].state == "success", reports["functions"].log
        assert reports["functions"].value("joined") == "x0 x1 y0 y1"
        assert ": ValueError: no rows in shard 1" in reports["failing_function"].log
    assert tenant.forbidden_requests() == []
