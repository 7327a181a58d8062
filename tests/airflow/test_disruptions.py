"""A gang that was evicted, by `dag.test()`: two deferrals of one try."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.airflow.disruptions import evict_one_of
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.airflow_home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


def test_gang_that_was_evicted_is_submitted_again(connected: AirflowHome, cluster: SandboxThread) -> None:
    drain = threading.Thread(target=evict_one_of, args=(cluster, "evicted"), kwargs={"ranks": 3}, daemon=True)
    drain.start()
    report = connected.test_dags("evicted")["evicted"]
    drain.join()

    assert (report.state, report.value("gang")) == ("success", {"rank": 0, "square": 0})
    assert "was evicted (EvictionByEvictionAPI)" in report.log
    assert report.log.count("Created gang default/") == 2
