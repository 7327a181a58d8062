"""Labels by which people find the gangs of a task, as those of KubernetesPodOperator."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.cncf.kubernetes.cli import kubernetes_command
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import CoreV1Api
from kubernetes.config import new_client_from_config
from kubernetes.watch import Watch
from msgspec.structs import replace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.names import problem_with_label_value, to_label_value
from airflow_provider_gangjobs.kube.well_known import TASK_ENV, TASK_LABELS
from airflow_provider_gangjobs.submission.submit import submit
from gangjobs_sandbox.resources import JOBS, PODS
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.provider.role_gangs import LEADER_AND_WORKERS
from tests.submission_requests import task_request
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread

RUN = "manual__2026-01-01T00:00:00+00:00"
IDS = st.text(st.sampled_from("aZ09-_.~:+ é"), min_size=1, max_size=80)


@given(IDS)
def test_values_are_those_of_the_pod_operator_and_valid(text):
    value = to_label_value(text)
    assert value == make_safe_label_value(text).lstrip("-")
    assert problem_with_label_value(value) is None


@pytest.mark.parametrize("map_index", [-1, 3])
def test_labels_are_those_of_the_pod_operator(map_index):
    key = TaskKey("my.dag", RUN, "group.train", map_index)
    ti = SimpleNamespace(dag_id=key.dag_id, task_id=key.task_id, map_index=map_index, try_number=2)
    theirs = KubernetesPodOperator._get_ti_pod_labels({"ti": ti, "run_id": RUN, "dag": None})

    assert key.labels(2) == {name: value for name, value in theirs.items() if name != "kubernetes_pod_operator"}


def task_labels(thing: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in thing["metadata"]["labels"].items() if name in TASK_LABELS}


def test_job_and_pods_have_the_labels_of_the_try_that_created_them(task):
    it = task("exit 0", on_finish="keep")
    it.execute()

    (job,) = it.jobs
    expected = {"dag_id": "d", "task_id": "train", "run_id": it.run_id, "try_number": "1"}
    assert task_labels(job) == expected
    assert task_labels(job["spec"]["template"]) == expected
    assert "airflow_version" not in job["spec"]["template"]["metadata"]["labels"]


def test_try_that_adopts_the_gang_does_not_change_the_labels(task):
    it = task("sleep 300", deferrable=True)
    it.defer()
    (before,) = it.jobs
    it.defer()

    (job,) = it.jobs
    assert read_job(job).claim.id != read_job(before).claim
    assert task_labels(job) == task_labels(before)
    assert task_labels(job)["try_number"] == "1"


def test_labels_of_the_user_are_kept(task):
    it = task(
        "exit 0", on_finish="keep", labels={"dag_id": "mine"}, pod_overrides={"metadata": {"labels": {"run_id": "x"}}}
    )
    it.execute()

    (job,) = it.jobs
    assert task_labels(job) == {"dag_id": "mine", "task_id": "train", "run_id": it.run_id, "try_number": "1"}
    assert task_labels(job["spec"]["template"])["run_id"] == "x"


def test_team_switches_the_labels_off(task, monkeypatch):
    monkeypatch.setenv("AIRFLOW__GANGJOBS__TASK_LABELS", "False")
    it = task("exit 0", on_finish="keep")
    it.execute()

    (job,) = it.jobs
    assert task_labels(job) == task_labels(job["spec"]["template"]) == {}


def wait_for_success(api: CoreV1Api, names: set[str]) -> None:
    left = set(names)
    for event in Watch().stream(api.list_namespaced_pod, "default", timeout_seconds=round(TIMEOUT_S)):
        if event["object"].status.phase == "Succeeded":
            left.discard(event["object"].metadata.name)
        if not left:
            return
    raise AssertionError(f"{left} did not succeed")


def test_airflow_does_not_clean_up_the_pods_of_gangs(task, embedded: SandboxThread, monkeypatch):
    it = task("exit 0", on_finish="keep")
    it.execute()
    labels = {"dag_id": "d", "task_id": "t", "run_id": "r", "try_number": "1", "airflow_version": "3"}
    others = {"theirs": labels, "like-a-gang": task_labels(it.jobs[0])}
    containers = [{"name": "main", "image": "i", "command": ["true"]}]
    for name, marks in others.items():
        body = {
            "metadata": {"name": name, "labels": marks},
            "spec": {"containers": containers, "restartPolicy": "Never"},
        }
        embedded.call(lambda cluster, body=body: cluster.registry.create(PODS, body, "default"))
    api = CoreV1Api(new_client_from_config(str(embedded.kubeconfig_path)))
    wait_for_success(api, set(others))
    monkeypatch.setattr(kubernetes_command, "get_kube_client", lambda: api)

    arguments = SimpleNamespace(namespace="default", verbose=True, min_pending_minutes=0, min_completed_minutes=0)
    inspect.unwrap(kubernetes_command.cleanup_pods)(arguments)

    left = {pod.metadata.name for pod in api.list_namespaced_pod("default").items}
    assert "theirs" not in left
    assert {"like-a-gang"} | {pod["metadata"]["name"] for pod in it.pods} <= left
    api.delete_namespaced_pod("like-a-gang", "default")


def task_env(job: dict[str, Any]) -> dict[str, str]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item["value"] for item in container["env"] if item["name"] in TASK_ENV}


SPAN = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_remote=False, trace_flags=TraceFlags(1))


def test_ranks_continue_the_trace_of_the_task_if_tracing_is_on(task, monkeypatch):
    with use_span(NonRecordingSpan(SPAN)):
        silent = task('test -z "$TRACEPARENT"')
        silent.execute()
        monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")
        it = task('test "$TRACEPARENT" = 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', on_finish="keep")
        it.execute()
        own = task('test "$TRACEPARENT" = mine', env={"TRACEPARENT": "mine"})
        own.execute()
    (job,) = it.jobs
    assert task_env(job).keys() == {"TRACEPARENT"}


def test_ranks_get_the_run_of_the_task_if_openlineage_is_enabled(task, monkeypatch):
    """The stand-ins have the two functions of the OpenLineage provider that are called."""
    is_disabled = SimpleNamespace(is_disabled=lambda: False)
    macros = SimpleNamespace(lineage_parent_id=lambda ti: f"team/{ti.dag_id}.{ti.task_id}/0198c0de")
    package = "airflow.providers.openlineage"
    modules = {"": ModuleType("openlineage"), ".conf": is_disabled, ".plugins": ModuleType("plugins")}
    for name, module in {**modules, ".plugins.macros": macros}.items():
        monkeypatch.setitem(sys.modules, f"{package}{name}", module)

    task('test "$OPENLINEAGE_PARENT_ID" = team/d.train/0198c0de').execute()
    is_disabled.is_disabled = lambda: True
    task('test -z "$OPENLINEAGE_PARENT_ID"').execute()


def test_try_that_adopts_a_gang_keeps_its_trace(task, monkeypatch):
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")
    it = task("sleep 300", deferrable=True)
    with use_span(NonRecordingSpan(SPAN)):
        it.defer()
    (before,) = it.jobs
    it.defer()
    (job,) = it.jobs
    assert task_env(job) == task_env(before) != {}


async def test_try_that_completes_a_half_submitted_gang_keeps_the_labels_and_variables_of_the_first_try(cluster):
    key = TaskKey("etl", "run", "train")
    claims = (Claim(f"ti-{n}", labels=key.labels(n), env={"TRACEPARENT": f"{n}"}) for n in (1, 2))
    first, second = (replace(task_request(key, ""), claim=claim) for claim in claims)
    with pytest.raises(ProcessDied):
        await submit(
            CrashingClient(cluster.client, Crash(2, applied=True)),
            LEADER_AND_WORKERS,
            first,
            discovered=cluster.discovered,
        )
    await submit(cluster.client, LEADER_AND_WORKERS, second, discovered=cluster.discovered)

    jobs = cluster.objects(JOBS)
    assert len(jobs) == 2
    assert {task_labels(one)["try_number"] for job in jobs for one in (job, job["spec"]["template"])} == {"1"}
    assert {task_env(job)["TRACEPARENT"] for job in jobs} == {"1"}
