"""A task with one pod, as the page on one pod describes it: no gang scheduling, and everything else of a gang."""

from __future__ import annotations

import ast
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import Unschedulable
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from gangjobs_sandbox.resources import PODGROUPS
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from tests.provider.task_runner import Task, TaskMaker

SAMPLE = Path(__file__).resolve().parents[2] / "docs" / "samples" / "one_pod.py"
WRITE = 'printf "{\\"attempt\\": $GANG_ATTEMPT}" > "$GANG_RESULT_PATH"'
FIRST_IS_ENDLESS = f'[ "$GANG_ATTEMPT" != 0 ] || sleep 600; {WRITE}'


def parameters_of_the_page() -> dict[str, Any]:
    """The parameters of the page's task, but for what only a real cluster has: its image, program, and GPU."""
    calls = (node for node in ast.walk(ast.parse(SAMPLE.read_text())) if isinstance(node, ast.Call))
    (call,) = (call for call in calls if ast.unparse(call.func) == "GangJobOperator")
    given = {str(each.arg): eval(ast.unparse(each.value), {"timedelta": timedelta}) for each in call.keywords}
    del given["task_id"], given["image"], given["command"], given["resources"]
    return {"workers": 1, **given}


def pods_of(attempt: int, train: Task) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in train.pods
        if pod["status"]["phase"] == "Running" and pod["metadata"]["labels"][LABEL_GANG].endswith(f"-{attempt}")
    ]


def test_task_of_the_page_returns_the_result_without_a_group(task: TaskMaker) -> None:
    train = task(WRITE, **parameters_of_the_page(), on_finish="keep")

    assert train.execute() == {"attempt": 0}
    (job,) = train.jobs
    assert "schedulingGroup" not in job["spec"]["template"]["spec"]
    gang = f"{LABEL_GANG}={job['metadata']['name']}"
    assert train.cluster.call(lambda it: it.registry.list(PODGROUPS, label_selector=gang)) == []


def test_task_of_the_page_runs_again_after_an_eviction_within_its_try(task: TaskMaker) -> None:
    train = task(FIRST_IS_ENDLESS, **parameters_of_the_page(), deferrable=True)
    first = train.defer()
    (victim,) = wait_for("the pod", lambda: pods_of(0, train))
    train.cluster.call(lambda it: it.registry.evict(victim, "default"))
    with pytest.raises(type(first)) as again:
        train.operator().execute_complete(train.context, run_trigger(first))

    assert train.operator().execute_complete(train.context, run_trigger(again.value)) == {"attempt": 1}
    assert train.tries == 1


def test_pod_that_fits_nowhere_is_told_with_numbers(task: TaskMaker) -> None:
    train = task(WRITE, workers=1, resources={"cpu": "64"}, assemble_timeout=1)

    with pytest.raises(Unschedulable, match="requests 64 CPU, and the largest of 2 nodes has 4"):
        train.execute()
