"""A sensor waits for JobSets of the real JobSet controller, and changes nothing in the cluster."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from airflow.sdk import DAG

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowSkipException, TaskDeferred
from airflow_provider_gangjobs.exceptions import JobSetDeleted, JobSetFailed, JobSetUnavailable
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.sensors.job_set import JobSetSensor
from tests.cluster.tenant import Tenant
from tests.provider.task_runner import run_serialized_trigger
from tests.queues.job_set_roles import role
from tests.replies import wait_until
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.queues.jobset.controller import JobSetController
    from tests.queues.kueue.manager import Kueue

ROLE: Final = Path(__file__).resolve().parents[2] / "docs" / "rbac-jobset.yaml"
READS: Final = {
    ("jobset.x-k8s.io", "jobsets", "get"),
    ("jobset.x-k8s.io", "jobsets", "list"),
    ("jobset.x-k8s.io", "jobsets", "watch"),
    ("batch", "jobs", "list"),
    ("", "pods", "list"),
}
ENDLESS: Final = "sleep 600"
EACH_WAY: Final = pytest.mark.parametrize(
    "deferrable", [pytest.param(True, id="deferred"), pytest.param(False, id="poke")]
)


@pytest.fixture
def tenant(job_sets: JobSetController, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace of the test's own, as a ServiceAccount that has exactly the documented rights."""
    with Tenant.created(job_sets.plane, request.node.name) as tenant:
        tenant.grant(yaml.safe_load(ROLE.read_text()))
        yield tenant


@pytest.fixture
def run(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a sensor for the JobSet `fit` to its end, and return its value."""
    return runner(tenant, monkeypatch)


def runner(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    extra = {"kube_config_path": str(tenant.kubeconfig), "namespace": tenant.namespace}
    monkeypatch.setenv("AIRFLOW_CONN_JOBSETS", json.dumps({"conn_type": "kubernetes", "extra": extra}))

    def run(**parameters: Any) -> Any:
        known = {"job_set": "fit", "kubernetes_conn_id": "jobsets", "poke_interval": 0.2, "timeout": TIMEOUT_S}
        with DAG("d", schedule=None):
            sensor = JobSetSensor(task_id="wait", **{**known, **parameters})
        context: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="wait", map_index=-1)}
        try:
            return sensor.execute(context)
        except TaskDeferred as left:
            path, kwargs = left.trigger.serialize()
            event = run_serialized_trigger(path, json.loads(json.dumps(kwargs)))
            return sensor.resume_execution(left.method_name, {"event": event}, context)

    return run


@EACH_WAY
def test_job_set_that_completes(
    job_sets: JobSetController, tenant: Tenant, run: Callable[..., Any], deferrable: bool
) -> None:
    roles = [role("leader", "true"), role("worker", "sleep 1", workers=2)]
    uid = job_sets.create(tenant.namespace, "fit", replicatedJobs=roles)["metadata"]["uid"]

    value = run(deferrable=deferrable)

    assert value == {"namespace": tenant.namespace, "name": "fit", "uid": uid, "status": "succeeded"}
    assert tenant.used_permissions() <= READS
    assert tenant.forbidden_requests() == []


@EACH_WAY
def test_job_set_that_fails_says_which_job_and_which_pod(
    job_sets: JobSetController, tenant: Tenant, run: Callable[..., Any], deferrable: bool
) -> None:
    roles = [role("leader", ENDLESS), role("worker", '[ "$JOB_COMPLETION_INDEX" = 0 ] || exit 3', workers=2)]
    job_sets.create(tenant.namespace, "fit", replicatedJobs=roles)

    with pytest.raises(JobSetFailed, match=r"FailedJobs.*Job fit-worker-0 failed first .*od fit-worker-0-1-\w+ exited"):
        run(deferrable=deferrable)
    assert run(deferrable=deferrable, until="ended")["status"] == "failed"
    with pytest.raises(AirflowSkipException):
        run(deferrable=deferrable, soft_fail=True)
    assert tenant.used_permissions() <= READS


@EACH_WAY
def test_job_set_that_restarts_has_not_failed(
    job_sets: JobSetController, tenant: Tenant, run: Callable[..., Any], deferrable: bool
) -> None:
    roles = [role("worker", '[ "$ATTEMPT" = 1 ] || exit 3')]
    job_sets.create(tenant.namespace, "fit", replicatedJobs=roles, failurePolicy={"maxRestarts": 1})

    assert run(deferrable=deferrable)["status"] == "succeeded"


@EACH_WAY
def test_job_set_may_be_created_later(
    job_sets: JobSetController, tenant: Tenant, run: Callable[..., Any], deferrable: bool
) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run, deferrable=deferrable)
        wait_until(lambda: tenant_has_asked(tenant), "the sensor has read the JobSet")
        assert not waiting.done()
        job_sets.create(tenant.namespace, "fit", replicatedJobs=[role("worker", "true")])
        assert waiting.result(TIMEOUT_S)["status"] == "succeeded"


def tenant_has_asked(tenant: Tenant) -> bool:
    return ("jobset.x-k8s.io", "jobsets", "get") in tenant.used_permissions()


@EACH_WAY
def test_job_set_that_is_deleted(
    job_sets: JobSetController, tenant: Tenant, run: Callable[..., Any], deferrable: bool
) -> None:
    job_sets.create(tenant.namespace, "fit", replicatedJobs=[role("worker", ENDLESS)])
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run, deferrable=deferrable)
        wait_until(lambda: tenant_has_asked(tenant), "the sensor has read the JobSet")
        job_sets.delete(tenant.namespace, "fit")
        with pytest.raises(JobSetDeleted, match="was deleted before its end was seen"):
            waiting.result(TIMEOUT_S)


def test_job_set_that_is_deleted_as_soon_as_it_completes_has_succeeded(
    job_sets: JobSetController, tenant: Tenant, run: Callable[..., Any]
) -> None:
    roles = [role("worker", "sleep 2")]
    job_sets.create(tenant.namespace, "fit", replicatedJobs=roles, ttlSecondsAfterFinished=0)

    assert run(deferrable=True)["status"] == "succeeded"


@EACH_WAY
def test_reference_with_a_uid_is_not_waited_for(
    job_sets: JobSetController, tenant: Tenant, run: Callable[..., Any], deferrable: bool
) -> None:
    job_set = {"namespace": tenant.namespace, "name": "fit", "uid": "gone"}
    with pytest.raises(JobSetDeleted):
        run(deferrable=deferrable, job_set=job_set)
    job_sets.create(tenant.namespace, "fit", replicatedJobs=[role("worker", ENDLESS)])
    with pytest.raises(JobSetDeleted, match="replaced by another JobSet"):
        run(deferrable=deferrable, job_set=job_set)


@EACH_WAY
def test_missing_right_is_named(job_sets: JobSetController, monkeypatch: Any, deferrable: bool) -> None:
    with Tenant.created(job_sets.plane, "no rights") as tenant, pytest.raises(JobSetUnavailable) as raised:
        runner(tenant, monkeypatch)(deferrable=deferrable)

    assert raised.value.retryable
    assert "jobsets.jobset.x-k8s.io" in str(raised.value)
    assert "needs get, list and watch on jobsets" in str(raised.value)


@pytest.mark.clusters("bare_job_set_kueue")
def test_job_set_in_a_queue_of_kueue_is_one_workload(
    job_sets: JobSetController, kueue: Kueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tenant.created(job_sets.plane, "in a queue") as tenant:
        tenant.grant(yaml.safe_load(ROLE.read_text()))
        kueue.create_queue(tenant.namespace, cpu="1")
        roles = [role("leader", "true"), role("worker", "sleep 1", workers=2)]
        labels = {LABEL_KUEUE_QUEUE: "team"}
        job_sets.create(tenant.namespace, "fit", labels=labels, replicatedJobs=roles, suspend=True)

        value = runner(tenant, monkeypatch)(deferrable=True)

        assert value["status"] == "succeeded"
        assert [item["count"] for item in pod_sets_of(tenant)] == [1, 2]


def pod_sets_of(tenant: Tenant) -> list[dict[str, Any]]:
    """The pod sets of the only Workload of the namespace."""
    with tenant.plane.client() as admin:
        found = admin.get(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{tenant.namespace}/workloads").json()["items"]
    (workload,) = found
    pod_sets: list[dict[str, Any]] = workload["spec"]["podSets"]
    return pod_sets
