"""One DAG file runs unchanged on every cluster, with the same results and the same messages.

`docs/samples/one-dag.txt` shows what these tests see. `GANGJOBS_WRITE_DOCS=1` writes it instead.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.airflow.airflow_home import AirflowHome
from tests.queues.one_dag.clusters import CLUSTERS, running
from tests.queues.one_dag.transcript import DAG_ID, DAGS, documented, excerpt, section, write
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

ERROR = re.compile(r"^    \w+: (Gang \S+) was .*$")
"""The error says how long the gang was queued or assembling, and the reason of the scheduler."""
REASON = re.compile(r"(?<= was )(queued|assembling) for longer than .*$", re.MULTILINE)
"""A scheduler has several reasons, and the error has the one of the pod that the scheduler has looked at last."""
pytestmark = pytest.mark.timeout(3 * AIRFLOW_TIMEOUT_S)


@pytest.mark.airflow
@pytest.mark.parametrize("name", CLUSTERS)
def test_the_dag_runs_on_each_cluster_as_documented(name: str, tmp_path: Path) -> None:
    home = AirflowHome.make(tmp_path / "home", dags=DAGS)
    (tmp_path / "plane").mkdir()
    with running(name, tmp_path / "plane") as cluster:
        namespace = cluster.tenant.namespace
        home.add_cluster("kubernetes_default", cluster.tenant.kubeconfig, namespace=namespace, **cluster.extras)
        result = home.test_dags(DAG_ID)[DAG_ID]
        assert cluster.tenant.forbidden_requests() == []
    found = section(name, cluster, excerpt(cluster, result))
    if os.environ.get("GANGJOBS_WRITE_DOCS"):
        write(name, found)
    assert REASON.sub("", found) == REASON.sub("", documented(name) or "")
    assert (result.value("fits"), result.value("total")) == ([0, 1, 4], 5)


def test_the_sections_differ_only_in_the_scheduler_and_in_its_reason() -> None:
    def told(name: str) -> list[str]:
        lines = (documented(name) or "").split("\n\n", 2)[2].splitlines()
        return [ERROR.sub(r"    error: \1", line.partition("gang scheduling by")[0]) for line in lines]

    assert [name for name in CLUSTERS if told(name) != told("native")] == []
