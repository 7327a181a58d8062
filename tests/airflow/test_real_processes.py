"""Gangs under a real scheduler, triggerer, dag-processor and API server."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.resources import JOBS, PODS
from gangjobs_sandbox.thread import SandboxThread, running
from tests.airflow.airflow_home import HERE
from tests.airflow.disruptions import lose_a_node_of
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

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


def of_dag(dag_id: str, obj: Mapping[str, Any]) -> bool:
    """Return whether an object of the cluster belongs to a gang of a DAG. The tests of other files leave gangs, too."""
    name: str = obj["metadata"]["name"]
    return name.startswith(f"{dag_id.replace('_', '-')}-gang-")


def jobs(cluster: SandboxThread, dag_id: str) -> list[str]:
    """Return the names of the Jobs of a DAG."""
    found = cluster.call(lambda it: it.registry.list(JOBS))
    return [job["metadata"]["name"] for job in found if of_dag(dag_id, job)]


def running_pods(cluster: SandboxThread, dag_id: str) -> int:
    """Return how many pods of a DAG run."""
    pods = cluster.call(lambda it: it.registry.list(PODS, label_selector=LABEL_GANG))
    return sum(pod["status"]["phase"] == "Running" for pod in pods if of_dag(dag_id, pod))


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
    lose_a_node_of(shaky, "node_lost", ranks=3)

    assert run.wait() == "success"
    assert run.task("gang")["try_number"] == 1
    assert run.xcom("gang") == {"rank": 0, "square": 0}
    assert run.xcom("gang", "gang")["name"].endswith("-1")
    # The triggerer deletes the Job that succeeded after the task has ended.
    wait_for("the deletion", lambda: len(jobs(shaky, "node_lost")) == 1)
    (lost,) = jobs(shaky, "node_lost")
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


def test_late_submission_asks_airflow_once_and_goes_on(api: Api, connected: AirflowHome) -> None:
    run = api.trigger("late")

    assert run.wait() == "success"
    assert run.task("gang")["try_number"] == 1
    assert connected.worker_log("late").count("Airflow says whether the try runs: True") == 1


def test_cleared_task_runs_with_the_edited_parameters(api: Api, connected: AirflowHome) -> None:
    # With `on_kill="delete"`, either the trigger or the next try ends the gang first. With "keep", the next try does.
    runs = {dag_id: api.trigger(dag_id) for dag_id in ("edited", "edited_kept")}
    for dag_id, run in runs.items():
        run.wait_for_task("gang", "deferred")
        wait_for("the trigger's report", lambda: "running: 2/2 ranks" in connected.trigger_log(dag_id))  # noqa: B023
    file = connected.path / "dags" / "edited.py"
    file.write_text(file.read_text().replace('COMMAND = "sleep 3000"', "COMMAND = 'echo 7 > $GANG_RESULT_PATH'"))

    for run in runs.values():
        run.clear("gang")

    assert {dag_id: run.wait() for dag_id, run in runs.items()} == dict.fromkeys(runs, "success")
    assert [(run.xcom("gang"), run.task("gang")["try_number"]) for run in runs.values()] == [(7, 2), (7, 2)]
    assert "was submitted with other parameters (command). The gang is deleted" in connected.worker_log("edited_kept")


def test_retry_continues_a_gang_whose_parameters_differ_at_each_try(api: Api, connected: AirflowHome) -> None:
    run = api.trigger("differs_at_each_try")

    assert run.wait() == "success"
    assert (run.xcom("gang"), run.task("gang")["try_number"]) == (1, 2)
    log = connected.worker_log("differs_at_each_try")
    assert "was submitted with other parameters (env). The task continues with this gang" in log


def test_worker_follows_a_gang_whose_connection_only_workers_have(api: Api, connected: AirflowHome) -> None:
    run = api.trigger("own_connection")

    assert run.wait() == "success"
    assert run.xcom("gang") == 5
    log = connected.worker_log("own_connection")
    assert "has no connection 'only_workers', although a worker has it" in log
    assert log.count("This worker follows the gang") == 1


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
    assert lines_of_rank_0(streamed) + lines_of_rank_0(copied) == list(range(10_000)), copied[-3000:]
    assert "end of the log, which was read before the pod was removed" in streamed


def lines_of_rank_0(log: str) -> list[int]:
    """Return the numbers of the lines of `LONG_LOG` that a log contains."""
    return [int(number) for number in re.findall(r"\[rank 0\] line (\d+)", log)]


def test_sensor_whose_parameters_select_no_gang_says_so_in_the_last_line_of_its_log(
    api: Api, connected: AirflowHome
) -> None:
    assert api.trigger("sensors").wait() == "failed"
    assert "the text of a dict. Give the XCom itself" in last_message(connected.worker_log("sensors", "text"))


def test_reason_of_a_failed_gang_is_the_last_line_of_the_log_and_stands_there_once(
    api: Api, connected: AirflowHome
) -> None:
    assert api.trigger("failing_rank").wait() == "failed"

    log = connected.worker_log("failing_rank", "gang")
    message = last_message(log)
    assert message.startswith("Gang default/failing-rank-gang")
    assert "exited with code 3" in message
    assert log.count("exited with code 3") == 1


def last_message(log: str) -> str:
    """Return the message of the exception that ends a log, which has no frames. Airflow's marks of groups follow."""
    *_, last = [entry for entry in map(json.loads, log.splitlines()) if not str(entry["event"]).startswith("::")]
    (error,) = last["error_detail"]
    assert error["frames"] == []
    return str(error["exc_value"])


def test_killing_a_deferred_task_deletes_its_gang(api: Api, connected: AirflowHome, cluster: SandboxThread) -> None:
    run = api.trigger("endless")
    run.wait_for_task("gang", "deferred")
    # A kill has no effect before a triggerer has started the trigger.
    wait_for("the trigger's report", lambda: "running: 3/3 ranks" in connected.trigger_log("endless"))

    run.set_task_state("gang", "failed")

    wait_for("deletion of the gang", lambda: not jobs(cluster, "endless") and not running_pods(cluster, "endless"))


def test_killing_a_task_that_waits_in_its_worker_deletes_its_gang(api: Api, cluster: SandboxThread) -> None:
    run = api.trigger("endless_in_worker")
    wait_for("three running ranks", lambda: running_pods(cluster, "endless_in_worker") == 3)

    run.set_task_state("gang", "failed")

    wait_for(
        "deletion of the gang",
        lambda: not jobs(cluster, "endless_in_worker") and not running_pods(cluster, "endless_in_worker"),
    )
