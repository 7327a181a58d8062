"""A worker and a triggerer read the `kubernetes` connection in the same way, and no output contains its secrets."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import InvalidConnection
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.config import ClusterConfig

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


async def test_extras_that_exclude_each_other_are_refused(monkeypatch: pytest.MonkeyPatch, reads: Any) -> None:
    connect(monkeypatch, "gpus", in_cluster=True, kube_config_path="/etc/kube")

    with pytest.raises(InvalidConnection, match="exclude each other"):
        await reads("gpus")


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
