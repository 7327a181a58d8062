"""The hook in a Python task: every call blocks, opens a connection, and closes the connection."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker
from airflow_provider_gangjobs.exceptions import SubmissionConflict
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from gangjobs_sandbox.resources import JOBS
from tests.manifests import SUSPENDED_MANIFEST

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from gangjobs_sandbox.thread import SandboxThread


# -- The hook in a Python task: every call blocks, opens a connection, and closes the connection ---------------------

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


# -- Calls of the hook with an id that the caller chooses, on the embedded cluster -----------------------------------


@pytest.fixture
def submission_id() -> str:
    return f"op {uuid4().hex}"


def test_an_id_is_submitted_polled_and_deleted(hook: GangJobHook, submission_id: str) -> None:
    assert hook.submission(submission_id) is None
    first = hook.submit(SUSPENDED, submission_id=submission_id)
    assert hook.submit(SUSPENDED, submission_id=submission_id, validate="server").ref == first.ref
    with pytest.raises(SubmissionConflict, match="workers"):
        hook.submit(replace(SUSPENDED, workers=3), submission_id=submission_id)

    record = hook.submission(submission_id)
    assert record is not None
    assert (record.ref, record.state, record.phase) == (first.ref, SubmissionState.IN_PROGRESS, Phase.QUEUED)
    assert first.ref in {one.ref for one in hook.submissions(limit=500).gangs}
    assert hook.delete_submission(submission_id, job=True) == (first.ref,)
    assert hook.delete_submission(submission_id, job=True) == ()


def test_uploaded_files_reach_the_ranks(hook: GangJobHook, connection: str, submission_id: str) -> None:
    content_id = hook.upload({"uploaded": b"\x31", "both": "uploaded"})
    spec = GangSpec(
        image="i",
        command=["sh", "-c", 'cd "$GANG_FILES" && cat uploaded both > "$GANG_RESULT_PATH"'],
        workers=2,
        resources={"cpu": "100m"},
        files={"both": "inline"},
        uploads=[content_id],
    )
    ref = hook.submit(spec, submission_id=submission_id).ref
    watch = TriggerArgs(kubernetes_conn_id=connection, namespace=ref.namespace, name=ref.name, uid=ref.uid)
    wait_for_event_in_worker(watch, hook.log, config=hook.config(), limit_s=None)

    assert [outcome.message for outcome in hook.outcomes(ref)] == ["1inline"] * 2
    assert content_id in {upload.content_id for upload in hook.uploads()}
    assert hook.delete_upload(content_id)
    assert not hook.delete_upload(content_id)


def test_either_an_id_or_a_task_is_given(hook: GangJobHook) -> None:
    with pytest.raises(ValueError, match="either"):
        hook.submit(SUSPENDED)
    with pytest.raises(ValueError, match="either"):
        hook.submit(SUSPENDED, submission_id="a", key=TaskKey("d", "r", "t"))


# -- A worker and a triggerer read the `kubernetes` connection in the same way, and no output contains its
#    secrets ---------------------------------------------------------------------------------------------------------

KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1"}}],
    "users": [{"name": "u", "user": {"token": "s3cr3t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.fixture(params=["worker", "triggerer"])
def reads(request: pytest.FixtureRequest) -> Any:
    """Return the function by which a worker or a triggerer reads a connection."""

    async def read(conn_id: str, **options: Any) -> ClusterConfig:
        hook = GangJobHook(conn_id, **options)
        return await hook.aconfig() if request.param == "triggerer" else hook.config()

    return read


def connect(monkeypatch: pytest.MonkeyPatch, conn_id: str, **extras: Any) -> None:
    described = json.dumps({"conn_type": "kubernetes", "extra": extras})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", described)


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        ({"in_cluster": True}, {"in_cluster": True}),
        ({"kube_config_path": "/etc/kube"}, {"kube_config_path": "/etc/kube"}),
        ({"kube_config": json.dumps(KUBECONFIG)}, {"kube_config": KUBECONFIG}),
        ({"namespace": "team", "cluster_context": "x"}, {"namespace": "team", "context": "x"}),
        ({"disable_verify_ssl": True}, {"verify_ssl": False}),
        ({"disable_tcp_keepalive": True}, {"tcp_keepalive": False}),
        ({"extra__kubernetes__namespace": "team"}, {"namespace": "team"}),
    ],
    ids=lambda value: next(iter(value)),
)
async def test_extras_mean_the_same_in_worker_and_triggerer(
    monkeypatch: pytest.MonkeyPatch, reads: Any, extras: dict[str, Any], expected: dict[str, Any]
) -> None:
    connect(monkeypatch, "gpus", **extras)
    config = await reads("gpus")

    assert {name: getattr(config, name) for name in expected} == expected


async def test_missing_default_connection_is_the_default_cluster(reads: Any) -> None:
    config = await reads("kubernetes_default")
    assert (config.in_cluster, config.kube_config_path, config.kube_config) == (False, None, None)


async def test_missing_default_connection_is_an_error_if_it_must_exist(reads: Any) -> None:
    with pytest.raises(AirflowNotFoundException, match="was there before"):
        await reads("kubernetes_default", must_exist=True)


async def test_any_other_missing_connection_is_an_error(reads: Any) -> None:
    with pytest.raises(AirflowNotFoundException, match="nowhere"):
        await reads("nowhere")


async def test_hook_knows_whether_the_connection_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "gpus", in_cluster=True)
    found, missing = GangJobHook("gpus"), GangJobHook("kubernetes_default")
    found.config()
    missing.config()

    assert (found.exists, missing.exists) == (True, False)


async def test_credentials_are_in_no_repr(monkeypatch: pytest.MonkeyPatch, reads: Any) -> None:
    connect(monkeypatch, "gpus", kube_config=json.dumps(KUBECONFIG))

    assert "s3cr3t" not in repr(await reads("gpus"))
    assert "s3cr3t" not in repr(vars(GangJobHook("gpus")))


async def test_triggers_that_start_together_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "gpus", namespace="team")
    hook = GangJobHook("gpus")
    await hook.aconfig()
    connect(monkeypatch, "gpus", namespace="other")

    both = await asyncio.gather(hook.aconfig(max_age_s=60), hook.aconfig(max_age_s=60))

    assert [config.namespace for config in both] == ["team", "team"]


async def test_caller_that_needs_a_new_read_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "gpus", namespace="team")
    hook = GangJobHook("gpus")
    await hook.aconfig(max_age_s=60)
    connect(monkeypatch, "gpus", namespace="other")

    assert (await hook.aconfig()).namespace == "other"


async def test_failed_read_is_not_shared_with_later_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = GangJobHook("gpus")
    with pytest.raises(AirflowNotFoundException):
        await hook.aconfig(max_age_s=60)
    connect(monkeypatch, "gpus", namespace="team")

    assert (await hook.aconfig(max_age_s=60)).namespace == "team"


async def test_cancelled_caller_does_not_end_the_read_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "gpus", namespace="team")
    hook = GangJobHook("gpus")
    first, second = (asyncio.create_task(hook.aconfig(max_age_s=60)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()

    assert (await second).namespace == "team"
