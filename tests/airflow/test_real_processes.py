"""Gangs under a real scheduler, triggerer, dag-processor and API server."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.resources import JOBS, PODS
from gangjobs_sandbox.thread import SandboxThread, running
from tests.airflow.airflow_home import HERE
from tests.airflow.disruptions import lose_a_node_of
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow.airflow_home import AirflowHome
    from tests.airflow.api import Api

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def shaky(home: AirflowHome) -> Iterator[SandboxThread]:
    """A separate cluster for the test that removes a node."""
    with running(SandboxConfig(nodes=2)) as sandbox:
        home.add_cluster("kubernetes_shaky", sandbox.kubeconfig_path)
        yield sandbox


@pytest.fixture(scope="module")
def api(connected: AirflowHome, shaky: SandboxThread) -> Iterator[Api]:
    with connected.running() as airflow:
        yield airflow.api


def jobs(cluster: SandboxThread) -> list[str]:
    return cluster.call(lambda it: [job["metadata"]["name"] for job in it.registry.list(JOBS)])


def running_pods(cluster: SandboxThread) -> int:
    def count(it: object) -> int:
        pods = it.registry.list(PODS, label_selector=LABEL_GANG)  # type: ignore[attr-defined]
        return sum(pod["status"]["phase"] == "Running" for pod in pods)

    return cluster.call(count)


@pytest.mark.representative
def test_gang_runs_deferred_and_returns_its_results(api: Api) -> None:
    run = api.trigger("three_ranks")

    assert run.wait() == "success"
    assert run.xcom("total") == 0 + 1 + 4
    assert run.xcom("gang", "gang")["namespace"] == "default"


def test_functions_get_arguments_and_return_results_by_rank(api: Api) -> None:
    run = api.trigger("functions")

    assert run.wait() == "success"
    assert run.xcom("count") == [{"rank": 0, "names": ["a", "c"]}, {"rank": 1, "names": ["b", "functions"]}]
    assert (run.xcom("total"), run.xcom("length"), run.xcom("joined")) == (4, 2, "x0 x1 y0 y1")


def test_gang_that_lost_a_node_is_run_again_within_the_same_try(api: Api, shaky: SandboxThread) -> None:
    run = api.trigger("node_lost")
    lose_a_node_of(shaky, ranks=3)

    assert run.wait() == "success"
    assert run.task("gang")["try_number"] == 1
    assert run.xcom("gang") == {"rank": 0, "square": 0}
    assert run.xcom("gang", "gang")["name"].endswith("-1")
    (lost,) = jobs(shaky)
    assert lost.endswith("-0")


def test_airflow_says_whether_a_try_runs_and_forgets_the_id_of_the_try_before(api: Api, connected: AirflowHome) -> None:
    run = api.trigger("tries")
    assert run.wait() == "success"
    first, runs = run.xcom("ask")
    assert runs

    run.clear("ask")
    wait_for("the next try", lambda: run.task("ask")["try_number"] == 2 and run.state == "success")
    second, _ = run.xcom("ask")

    printed = connected.run(sys.executable, str(HERE / "ask_as_try.py"), first, second)
    assert json.loads(printed.splitlines()[-1]) == [404, 200]


def test_lines_that_the_triggerer_streams_and_the_rest_are_the_whole_log(api: Api, connected: AirflowHome) -> None:
    run = api.trigger("long_log")
    assert run.wait() == "success"

    streamed = lines_of_rank_0(connected.trigger_log("long_log"))
    copied = lines_of_rank_0(connected.worker_log("long_log"))
    assert streamed
    assert streamed + copied == list(range(20_000))


def test_log_of_rank_0_is_whole_if_the_failure_of_another_rank_deletes_its_pod(
    api: Api, connected: AirflowHome
) -> None:
    run = api.trigger("long_log_of_a_deleted_pod")
    assert run.wait() == "failed"

    streamed = connected.trigger_log("long_log_of_a_deleted_pod")
    copied = connected.worker_log("long_log_of_a_deleted_pod")
    assert lines_of_rank_0(streamed) + lines_of_rank_0(copied) == list(range(20_000)), copied[-3000:]
    assert "end of the log, which was read before the pod was removed" in streamed


def lines_of_rank_0(log: str) -> list[int]:
    """Return the numbers of the lines of `LONG_LOG` that a log contains."""
    return [int(number) for number in re.findall(r"\[rank 0\] line (\d+)", log)]


def test_killing_a_deferred_task_deletes_its_gang(api: Api, connected: AirflowHome, cluster: SandboxThread) -> None:
    run = api.trigger("endless")
    run.wait_for_task("gang", "deferred")
    # A kill has no effect before a triggerer has started the trigger.
    wait_for("the trigger's report", lambda: "running: 3/3 ranks" in connected.trigger_log("endless"))

    run.set_task_state("gang", "failed")

    wait_for("deletion of the gang", lambda: not jobs(cluster) and not running_pods(cluster))


def test_killing_a_task_that_waits_in_its_worker_deletes_its_gang(api: Api, cluster: SandboxThread) -> None:
    run = api.trigger("endless_in_worker")
    wait_for("three running ranks", lambda: running_pods(cluster) == 3)

    run.set_task_state("gang", "failed")

    wait_for("deletion of the gang", lambda: not jobs(cluster) and not running_pods(cluster))
