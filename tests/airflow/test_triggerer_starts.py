"""Gangs that a real triggerer starts for tasks that a real scheduler has deferred."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from gangjobs_sandbox.resources import JOBS
from tests.airflow.polling import wait_for
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.airflow_home import AirflowHome
    from tests.airflow.api import DagRun
    from tests.airflow.processes import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]
IN_WORKER = "This worker starts the gang, and not the triggerer"


@pytest.fixture(scope="module")
def airflow(connected: AirflowHome) -> Iterator[Airflow]:
    connected.environment["AIRFLOW_VAR_WORD"] = "variable"
    connected.environment["AIRFLOW_CONN_WORD"] = json.dumps({"conn_type": "generic", "host": "host"})
    with connected.running() as airflow:
        yield airflow


def jobs_of(run: DagRun, cluster: SandboxThread) -> list[dict[str, Any]]:
    jobs = cluster.call(lambda it: it.registry.list(JOBS))
    return [job for job in jobs if (task := read_job(job).record.task) is not None and task.run_id == run.run_id]


def test_gang_is_started_and_followed_without_a_worker(
    airflow: Airflow, connected: AirflowHome, cluster: SandboxThread
) -> None:
    run = airflow.api.trigger("started_plain")

    assert run.wait() == "success"
    assert run.xcom("gang") == "plain"
    (job,) = jobs_of(run, cluster)
    assert run.xcom("gang", "gang")["uid"] == job["metadata"]["uid"]
    assert "Created gang default/started-plain" in connected.trigger_log("started_plain")
    assert "Created gang" not in connected.worker_log("started_plain")


def test_each_instance_of_a_mapped_task_has_its_values(
    airflow: Airflow, connected: AirflowHome, cluster: SandboxThread
) -> None:
    run = airflow.api.trigger("started_mapped")

    assert run.wait() == "success"
    assert [run.xcom("gang", map_index=index) for index in (0, 1)] == ["a", f"b {run.run_id}"]
    assert len(jobs_of(run, cluster)) == 2
    assert "Created gang" not in connected.worker_log("started_mapped")


def test_tasks_start_and_end_without_a_worker(airflow: Airflow, connected: AirflowHome) -> None:
    run = airflow.api.trigger("started_and_ended")

    assert run.wait() == "success"
    assert [run.xcom("gang", map_index=index) for index in (0, 1)] == ["a", "b"]
    assert run.xcom("gang", "gang_end", map_index=1)["status"] == "succeeded"
    assert connected.worker_log("started_and_ended") == ""
    assert "Its task ends in the triggerer, without a worker" in connected.trigger_log("started_and_ended")


def test_command_that_tests_a_task_starts_its_gang(
    airflow: Airflow, connected: AirflowHome, cluster: SandboxThread
) -> None:
    airflow.api.trigger("started_plain").wait()  # the DAG is parsed

    output = connected.run_forked("airflow", "tasks", "test", "started_plain", "gang", "2026-01-02")

    assert "Created gang" in output
    assert "end task task_id=gang" in output
    assert "Traceback" not in output


def test_templates_are_rendered_in_the_triggerer(airflow: Airflow, connected: AirflowHome) -> None:
    run = airflow.api.trigger("started_rendered")

    assert run.wait() == "success"
    words = "param 2026-01-02 xcom variable host"
    assert run.xcom("gang") == [f"{words} 0", f"{words} 1"]
    assert "Created gang" in connected.trigger_log("started_rendered")


def test_template_that_fails_fails_the_task_as_in_a_worker(
    airflow: Airflow, connected: AirflowHome, cluster: SandboxThread
) -> None:
    run = airflow.api.trigger("started_failing_template")

    assert run.wait() == "failed"
    assert "'nothing' is undefined" in connected.worker_log("started_failing_template")
    assert not jobs_of(run, cluster)


def test_log_says_why_a_worker_starts_a_gang(airflow: Airflow, connected: AirflowHome) -> None:
    run = airflow.api.trigger("started_in_worker")
    run.wait_for_task("started", "success")

    assert f"{IN_WORKER}: a template uses ti.hostname" in connected.worker_log("started_in_worker", "started")


def test_gang_of_a_triggerer_that_was_killed_is_adopted_and_its_spec_is_that_of_a_worker(
    airflow: Airflow, cluster: SandboxThread
) -> None:
    """After a clear, the worker of the next try replaces the gang by one of the same spec."""
    run = airflow.api.trigger("started_endless")
    wait_for("the gang", lambda: jobs_of(run, cluster))
    (job,) = jobs_of(run, cluster)

    airflow.processes["triggerer-0"].kill()
    airflow.revive()
    run.wait_for_task("gang", "deferred")
    assert [found["metadata"]["uid"] for found in jobs_of(run, cluster)] == [job["metadata"]["uid"]]

    run.clear("gang")
    wait_for("the next try", lambda: claims(run, cluster) - claims_of(job))
    hashes = {read_job(found).record.spec_hash for found in jobs_of(run, cluster)}
    run.set_task_state("gang", "failed")

    assert hashes == {read_job(job).record.spec_hash}


def claims(run: DagRun, cluster: SandboxThread) -> set[str]:
    return {claim for job in jobs_of(run, cluster) for claim in claims_of(job)}


def claims_of(job: dict[str, Any]) -> set[str]:
    return {read_job(job).claim.id}
