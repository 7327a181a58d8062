"""The hook in a Python task: every call blocks, opens a connection, and closes the connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from gangjobs_sandbox.resources import JOBS
from tests.manifests import SUSPENDED_MANIFEST

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from gangjobs_sandbox.thread import SandboxThread

SUSPENDED = GangSpec(image="i", command=["true"], workers=2, manifest=SUSPENDED_MANIFEST)
PRINT_RANK = GangSpec(image="i", command=["sh", "-c", "echo I am $RANK"], workers=2, resources={"cpu": "100m"})


@pytest.fixture
def hook(connection: str) -> GangJobHook:
    return GangJobHook(connection)


def submitted(hook: GangJobHook, spec: GangSpec = SUSPENDED) -> GangRef:
    return hook.submit(spec, key=TaskKey("d", uuid4().hex, "t"), claim="c").ref


def job(embedded: SandboxThread, ref: GangRef) -> Any:
    found = embedded.call(lambda it: it.registry.list(JOBS))
    return next((one for one in found if one["metadata"]["uid"] == ref.uid), None)


def test_connection_test_reports_the_version_of_kubernetes(hook: GangJobHook) -> None:
    works, message = hook.test_connection()

    assert works
    assert message.startswith("Kubernetes v1.")


def test_connection_test_reports_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {"conn_type": "kubernetes", "extra": {"kube_config_path": "/nowhere/kubeconfig"}}
    monkeypatch.setenv("AIRFLOW_CONN_ASTRAY", json.dumps(described))
    works, message = GangJobHook("astray").test_connection()

    assert not works
    assert "/nowhere/kubeconfig" in message


def test_capabilities_list_the_workload_api(hook: GangJobHook) -> None:
    assert hook.capabilities().scheduling_versions


def test_invalid_spec_creates_nothing(hook: GangJobHook) -> None:
    with pytest.raises(InvalidGangSpec, match="workers"):
        submitted(hook, GangSpec(image="i", workers=0))


def test_gang_goes_to_the_namespace_of_the_connection(embedded: SandboxThread, monkeypatch: pytest.MonkeyPatch) -> None:
    extras = {"kube_config_path": str(embedded.kubeconfig_path), "namespace": "kube-public"}
    monkeypatch.setenv("AIRFLOW_CONN_PUBLIC", json.dumps({"conn_type": "kubernetes", "extra": extras}))
    ref = submitted(GangJobHook("public"))

    assert ref.namespace == "kube-public"


def test_stopped_gang_is_kept_and_deleted_gang_is_not(hook: GangJobHook, embedded: SandboxThread) -> None:
    ref = submitted(hook)

    assert hook.stop(ref, reason="a test")
    assert job(embedded, ref) is not None
    assert hook.delete(ref)
    assert not hook.delete(ref)
    assert job(embedded, ref) is None


def test_outcomes_and_logs_outlive_the_gang(hook: GangJobHook, connection: str) -> None:
    ref = submitted(hook, PRINT_RANK)
    watch = TriggerArgs(kubernetes_conn_id=connection, namespace=ref.namespace, name=ref.name, uid=ref.uid)
    wait_for_event_in_worker(watch, hook.log, config=hook.config(), limit_s=None)

    assert [(outcome.rank, outcome.outcome) for outcome in hook.outcomes(ref)] == [
        (0, OutcomeKind.SUCCEEDED),
        (1, OutcomeKind.SUCCEEDED),
    ]
    assert [rank_log.text for rank_log in hook.logs(ref, "all")] == ["I am 0\n", "I am 1\n"]


async def test_coroutines_share_one_connection(hook: GangJobHook) -> None:
    async with hook.connect() as gangs:
        found = await gangs.capabilities()
        version = await gangs.client.version()

    assert version["gitVersion"] == found.git_version


def test_official_clients_see_the_same_cluster(hook: GangJobHook) -> None:
    ref = submitted(hook)

    job = hook.batch_v1_client.read_namespaced_job(ref.name, ref.namespace)
    config_maps = hook.core_v1_client.list_namespaced_config_map(ref.namespace)

    assert job.metadata.uid == ref.uid
    assert config_maps.kind == "ConfigMapList"


def test_official_client_of_a_missing_connection_names_the_connection() -> None:
    with pytest.raises(AirflowNotFoundException, match="astray"):
        GangJobHook("astray").get_conn()


async def test_times_that_the_hook_returns_are_pendulum_times_in_utc(connection: str) -> None:
    from pendulum import DateTime

    hook = GangJobHook(connection)
    hook.submit(SUSPENDED, submission_id="pendulum")
    blocking = hook.submission("pendulum")
    async with hook.connect() as service:
        awaited = await service.submission("pendulum")
    hook.delete_submission("pendulum")

    assert {type(record.submitted_at) for record in (blocking, awaited)} == {DateTime}
    assert blocking.submitted_at.timezone_name == "UTC"
