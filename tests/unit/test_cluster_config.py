"""The extras of the `kubernetes` connection mean what they mean to the cncf provider."""

from __future__ import annotations

import json
import pickle

import pytest
import yaml

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import InvalidConnection
from tests.unit.connection_server import ConnectionServer
from tests.unit.fault_server import kubeconfig

KUBECONFIG = {"apiVersion": "v1", "users": [{"name": "me", "user": {"token": "sesame-open-the-door"}}]}


def read(**extras: object) -> ClusterConfig:
    return ClusterConfig.from_extras("k8s", extras)


@pytest.mark.parametrize(
    ("extras", "source"),
    [
        ({}, None),
        ({"in_cluster": True}, "in_cluster"),
        ({"in_cluster": "True"}, "in_cluster"),
        ({"in_cluster": False}, None),
        ({"in_cluster": "false"}, None),
        ({"in_cluster": ""}, None),
        ({"kube_config_path": "/etc/kube"}, "kube_config_path"),
        ({"kube_config_path": ""}, None),
        ({"kube_config": KUBECONFIG}, "kube_config"),
        ({"kube_config": json.dumps(KUBECONFIG)}, "kube_config"),
        ({"kube_config": yaml.safe_dump(KUBECONFIG)}, "kube_config"),
        ({"kube_config": ""}, None),
        ({"kube_config": "{}"}, None),
        ({"extra__kubernetes__in_cluster": True}, "in_cluster"),
        ({"extra__kubernetes__kube_config_path": "/etc/kube"}, "kube_config_path"),
        ({"extra__kubernetes__kube_config": json.dumps(KUBECONFIG)}, "kube_config"),
        ({"kube_config_path": "", "extra__kubernetes__kube_config_path": "/etc/kube"}, None),
        ({"xcom_sidecar_container_image": "busybox", "anything": 1}, None),
    ],
    ids=str,
)
def test_extras_choose_the_source(extras: dict[str, object], source: str | None) -> None:
    config = read(**extras)
    chosen = [name for name in ("in_cluster", "kube_config_path", "kube_config") if getattr(config, name)]
    assert chosen == ([source] if source else [])


def test_all_other_extras_are_read() -> None:
    config = read(
        cluster_context="prod",
        namespace="team",
        disable_verify_ssl=True,
        extra__kubernetes__disable_tcp_keepalive="true",
    )
    assert config == ClusterConfig("k8s", context="prod", namespace="team", verify_ssl=False, tcp_keepalive=False)


def test_extras_name_the_scheduler_and_the_queue_of_a_team() -> None:
    config = read(gang_scheduler="volcano", queue_name="team", queue_priority="high")
    assert (config.gang_scheduler, config.queue_name, config.queue_priority) == ("volcano", "team", "high")


@pytest.mark.parametrize(
    "extras",
    [
        {"in_cluster": True, "kube_config_path": "/etc/kube"},
        {"in_cluster": True, "kube_config": KUBECONFIG},
        {"kube_config": KUBECONFIG, "extra__kubernetes__kube_config_path": "/etc/kube"},
    ],
    ids=str,
)
def test_two_sources_exclude_each_other(extras: dict[str, object]) -> None:
    with pytest.raises(InvalidConnection, match="exclude each other") as caught:
        read(**extras)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"in_cluster": "maybe"}, "extra in_cluster is not true or false"),
        ({"disable_verify_ssl": 7}, "extra disable_verify_ssl is not true or false"),
        ({"namespace": 7}, "extra namespace is not a string"),
        ({"kube_config": "just words"}, "extra kube_config is not a kubeconfig"),
        ({"kube_config": ["a"]}, "extra kube_config is not a kubeconfig"),
        ({"kube_config": "token: [sesame-open-the-door"}, "extra kube_config is not readable"),
    ],
    ids=str,
)
def test_invalid_value_names_the_extra(extras: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConnection, match=message) as caught:
        read(**extras)
    assert "sesame" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_repr_shows_no_secret() -> None:
    assert "sesame" not in repr(read(kube_config=KUBECONFIG))


def test_key_depends_on_cluster_and_credentials_alone() -> None:
    config = read(kube_config=KUBECONFIG, namespace="one")
    same = ClusterConfig.from_extras("other", {"kube_config": json.dumps(KUBECONFIG), "namespace": "two"})
    assert config.key == same.key


@pytest.mark.parametrize(
    "other",
    [{}, {"in_cluster": True}, {"kube_config_path": "/a"}, {"cluster_context": "b"}, {"disable_verify_ssl": True}],
)
def test_key_differs_if_cluster_or_credentials_differ(other: dict[str, object]) -> None:
    assert read(**other).key != read(kube_config_path="/b").key


def test_key_of_a_kubeconfig_whose_names_are_not_all_texts() -> None:
    assert read(kube_config="users: [{user: {1: a, b: c}}]").key != read(kube_config="users: [{user: {1: b}}]").key


@pytest.mark.parametrize(
    "text", ["until: 2026-13-45", "x: !!bool '1'", "x: !!timestamp foo", "x: !!int ''", "[" * 5000, '{"a":' * 99_999]
)
def test_kube_config_that_no_parser_reads_is_refused(text: str) -> None:
    with pytest.raises(InvalidConnection, match="readable as JSON or YAML"):
        read(kube_config=text)


def test_default_key_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/a")
    before = read().key
    monkeypatch.setenv("KUBECONFIG", "/b")
    assert read().key != before


def test_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert read(kube_config_path="~/kube").kube_config_path == "/home/me/kube"


def test_errors_survive_pickling() -> None:
    error = InvalidConnection("k8s", "problem", "remedy")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# -- Every request of an impersonating kubeconfig has the headers of the impersonated user, over each transport ------

USER = {"token": "t0ken", "as": "jane", "as-groups": ["a", "b"], "as-user-extra": {"scope": ["x", "y"]}}
HEADERS = [
    "Authorization: Bearer t0ken",
    "Impersonate-User: jane",
    "Impersonate-Group: a",
    "Impersonate-Group: b",
    "Impersonate-Extra-scope: x",
    "Impersonate-Extra-scope: y",
]


def impersonating(url: str) -> ClusterConfig:
    return ClusterConfig.from_extras("k8s", {"kube_config": kubeconfig(url, user=USER)})


def credentials_in(head: str) -> list[str]:
    return [line for line in head.split("\r\n") if line.startswith(("Authorization", "Impersonate"))]


async def test_request_impersonates() -> None:
    async with ConnectionServer() as server, Client(impersonating(server.url)) as client:
        await client.version()
    assert credentials_in(server.heads[0]) == HEADERS
