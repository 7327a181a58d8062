"""Gangs by `dag.test()`, as a DAG author runs them: deferral, results, failures, and clean-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODS, SERVICES
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.airflow_home import AirflowHome, DagTestResult

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def reports(connected: AirflowHome) -> dict[str, DagTestResult]:
    return connected.test_dags(
        "three_ranks",
        "three_ranks_in_worker",
        "failing_rank",
        "failing_rank_with_policy",
        "functions",
        "failing_function",
        "without_cluster",
    )


def test_deferred_gang_returns_results_of_all_ranks(reports: dict[str, DagTestResult]) -> None:
    report = reports["three_ranks"]

    assert report.state == "success"
    assert report.value("gang") == [{"rank": rank, "square": rank * rank} for rank in range(3)]
    assert report.value("total") == 0 + 1 + 4


def test_gang_waited_for_in_worker_returns_result_of_rank_0(reports: dict[str, DagTestResult]) -> None:
    report = reports["three_ranks_in_worker"]

    assert (report.state, report.value("gang")) == ("success", {"rank": 0, "square": 0})


def test_log_of_rank_0_is_in_the_task_log(reports: dict[str, DagTestResult]) -> None:
    assert "[rank 0] rank 0 of 3" in reports["three_ranks"].log
    assert "[rank 1]" not in reports["three_ranks"].log


def test_submission_and_phases_are_logged_once_each(reports: dict[str, DagTestResult]) -> None:
    log = reports["three_ranks"].log

    assert log.count("(attempt 0): 3 workers, gang scheduling by Workload API v1beta1") == 1
    assert log.count("succeeded: 3 ranks succeeded, 0 failed") == 1


def test_dag_without_a_connection_says_so_in_one_line(reports: dict[str, DagTestResult]) -> None:
    _, error, after, *_ = reports["without_cluster"].log.split("Task failed with exception")[1].splitlines()

    assert "AirflowNotFoundException: The conn_id `kubernetes_nowhere` isn't defined" in error
    assert "::group::Post Execute" in after


def test_failed_rank_fails_the_task_with_the_reason(reports: dict[str, DagTestResult]) -> None:
    report = reports["failing_rank"]

    assert report.state == "failed"
    assert "AppFailed: Gang default/failing-rank-gang" in report.log
    assert "exited with code 3" in report.log
    assert "[rank 1] rank 1 gives up" in report.log


def test_retry_policy_knows_the_error_of_a_gang(reports: dict[str, DagTestResult]) -> None:
    report = reports["failing_rank_with_policy"]

    assert report.state == "failed"
    assert "a retry cannot help" in report.log


def test_function_gets_what_other_tasks_and_templates_give(reports: dict[str, DagTestResult]) -> None:
    report = reports["functions"]

    assert report.state == "success"
    assert report.value("count") == [{"rank": 0, "names": ["a", "c"]}, {"rank": 1, "names": ["b", "functions"]}]
    assert report.value("first") == {"rank": 0, "names": ["a", "c"]}
    assert report.value("total") == 4
    assert report.value("before") == [None, None]


def test_outputs_of_one_rank_are_unrolled(reports: dict[str, DagTestResult]) -> None:
    assert reports["functions"].value("length") == 2


def test_mapped_functions_return_in_order(reports: dict[str, DagTestResult]) -> None:
    assert reports["functions"].value("joined") == "x0 x1 y0 y1"


def test_exception_of_a_rank_is_in_the_error_and_in_the_log(reports: dict[str, DagTestResult]) -> None:
    report = reports["failing_function"]

    assert report.state == "failed"
    assert "AppFailed: Gang default/failing-function-" in report.log
    assert ": ValueError: no rows in shard 1" in report.log
    assert "functions.py" in report.log


def test_nothing_is_left_in_the_cluster(reports: dict[str, DagTestResult], cluster: SandboxThread) -> None:
    kinds = (JOBS, PODS, SERVICES, CONFIGMAPS)
    ours = tuple(dag_id.replace("_", "-") for dag_id in reports)

    def left() -> list[str]:
        names = cluster.call(lambda it: [obj["metadata"]["name"] for kind in kinds for obj in it.registry.list(kind)])
        return [name for name in names if name.startswith(ours)]

    wait_for("garbage collection", lambda: not left())


@pytest.mark.slow
def test_deferred_gangs_keep_to_their_trigger_rules(connected: AirflowHome) -> None:
    report = connected.test_dags("trigger_rules")["trigger_rules"]

    assert {task_id: task["state"] for task_id, task in report.tasks.items()} == {
        "fails": "failed",
        "after_success": "upstream_failed",
        "after_failure": "success",
        "always": "success",
        "skips": "skipped",
        "after_skip": "skipped",
        "unless_failed": "success",
    }
    assert [report.value(task_id) for task_id in ("after_failure", "always", "unless_failed")] == ["ran"] * 3
