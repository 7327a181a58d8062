"""Where credentials come from, and that no message contains them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.auth.credentials import Proxy, environment_proxy, load_access
from airflow_provider_gangjobs.cluster.auth.exec_plugin import redacted
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection
from gangjobs_sandbox.tls import issue
from tests.timeouts import TIMEOUT_S
from tests.unit.credential_sources import config_of, load, service_account, write_kubeconfig
from tests.unit.exec_plugins import Plugin
from tests.unit.fault_server import SECRET, kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

SERVER = issue()


@pytest.fixture(autouse=True)
def _no_cluster_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the kubeconfig, the ServiceAccount, and the proxy of the machine that runs the tests."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a pod. Return the directory of its service account."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return service_account(tmp_path / "serviceaccount", authority=SERVER.certificate)


# -- sources -----------------------------------------------------------------------------------------------------


def test_kubeconfig_in_the_connection_is_used() -> None:
    material = load(kube_config=kubeconfig("https://here:6443/"))
    assert (material.base_url, material.authorization) == ("https://here:6443", f"Bearer {SECRET}")


def test_default_file_is_that_of_kubectl(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "home" / ".kube" / "config", kubeconfig("https://home"))
    assert load().base_url == "https://home"


def test_default_file_is_used_before_the_service_account(pod: Path, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "home" / ".kube" / "config", kubeconfig("https://home"))
    assert load().base_url == "https://home"


@pytest.mark.parametrize("given_extras", [{}, {"in_cluster": True}], ids=str)
def test_pod_uses_its_service_account(pod: Path, given_extras: dict[str, Any]) -> None:
    material = load_access(config_of(**given_extras), service_account_dir=pod)
    assert (material.base_url, material.authorization, material.tls.ca) == (
        "https://10.0.0.1:443",
        f"Bearer {SECRET}",
        SERVER.certificate,
    )


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        ("token", None, InvalidConnection, "token cannot be read: No such file.*automountServiceAccountToken"),
        ("token", "", CredentialsFailed, "token is empty"),
        ("token", "open\nsesame", CredentialsFailed, "the token contains a character that a header cannot contain"),
        ("ca.crt", None, InvalidConnection, "ca.crt cannot be read"),
        ("ca.crt", "", InvalidConnection, "ca.crt is empty"),
    ],
)
def test_incomplete_service_account_is_refused(
    pod: Path, file: str, content: str | None, error: type[Exception], message: str
) -> None:
    (pod / file).unlink()
    if content is not None:
        (pod / file).write_text(content)
    with pytest.raises(error, match=message):
        load_access(config_of(in_cluster=True), service_account_dir=pod)


def test_service_account_is_read_as_by_the_official_client(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader

    for host in ("10.0.0.1", "fd00::1", "kubernetes.default"):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        theirs = Configuration()
        InClusterConfigLoader(str(pod / "token"), str(pod / "ca.crt")).load_and_set(theirs)
        ours = load_access(config_of(in_cluster=True), service_account_dir=pod)
        assert (ours.base_url, ours.authorization) == (theirs.host, theirs.api_key["BearerToken"].strip())


def test_verification_can_be_switched_off_by_the_connection() -> None:
    assert not load(kube_config=kubeconfig("https://here"), disable_verify_ssl=True).tls.verify


def test_loading_imports_no_client_library(tmp_path: Path) -> None:
    user = Plugin(tmp_path, "answer(token='t')").user()
    path = write_kubeconfig(tmp_path / "config", kubeconfig("https://here", user=user))
    program = f"""
import asyncio, sys
from airflow_provider_gangjobs.cluster.auth.credentials import Credentials
from airflow_provider_gangjobs.cluster.config import ClusterConfig
access = asyncio.run(Credentials(ClusterConfig.from_extras("k8s", {{"kube_config_path": {path!r}}})).current())
assert access.authorization == "Bearer t"
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    loaded = set(done.stdout.split())
    assert "yaml" in loaded
    assert not loaded & {"kubernetes", "kubernetes_asyncio", "aiohttp", "yarl", "multidict", "urllib3", "requests"}


@pytest.mark.parametrize(
    ("given_extras", "message"),
    [
        ({}, "there is no kubeconfig in .* and this is not a pod"),
        ({"in_cluster": True}, "the pod's service account cannot be used"),
        ({"kube_config_path": "/nowhere/config"}, "the file /nowhere/config does not exist"),
        ({"kube_config": {"apiVersion": "v1"}}, "extra kube_config cannot be used"),
        ({"kube_config": kubeconfig("https://here"), "cluster_context": "gone"}, "name gone"),
        ({"kube_config": kubeconfig("https://h", cluster={"certificate-authority": "/no/ca"})}, "'/no/ca'"),
    ],
    ids=str,
)
def test_missing_file_context_or_service_account_is_named(given_extras: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConnection, match=message):
        load(**given_extras)


# -- secrets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Expected key x in /f/{'name': 'u', 'token': {'a': 1}}/user", "Expected key x in /f/{...}/user"),
        ("got eyJhbGciOi.eyJzdWIi.c2ln back", "got ... back"),
        ("header was Bearer abc", "header was Bearer ..."),
        ("a\n  b", "a b"),
        ("x" * 999, "x" * 256),
        ("the word hunter2 is secret", "the word ... is secret"),
        (
            "File does not exist: /a/very/long/path/with-many/parts",
            "File does not exist: /a/very/long/path/with-many/parts",
        ),
    ],
)
def test_evidence_is_redacted(text: str, shown: str) -> None:
    assert redacted(text, {"hunter2", "a"}) == shown


# -- proxies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxy"),
    [
        ("https://10.96.0.1:443", "", "http://proxy:3128"),
        ("https://127.0.0.1:6443", "", None),
        ("https://[::1]:6443", "", None),
        ("https://localhost:6443", "", None),
        ("https://10.96.0.1:443", "10.0.0.0/8,example.org", None),
        ("https://10.96.0.1:443", "10.96.0.1", None),
        ("https://api.example.org", ".example.org", None),
        ("https://api.example.org", "10.0.0.0/8", "http://proxy:3128"),
        ("https://api.example.org", "local, *.Example.org", None),
        ("https://example.org", "*.example.org", "http://proxy:3128"),
        ("https://api.other-example.org", "*.example.org", "http://proxy:3128"),
        ("https://[fd00::1]:443", "fd00::/8", None),
        ("http://api.example.org", "", None),
    ],
)
def test_proxy_of_the_environment(url: str, no_proxy: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert environment_proxy(url) == (proxy and Proxy(proxy, None))


@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@proxy:1080", "http://me:hunter2@", "http://proxy:0"])
def test_proxy_of_the_environment_that_is_not_usable_is_named(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(InvalidConnection, match="variable HTTPS_PROXY is not a URL of the form http://") as caught:
        load(kube_config=kubeconfig("https://api.example.org"))
    assert "hunter2" not in str(caught.value)


def test_kubeconfigs_of_the_variable_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig("https://first")
    second = {k: v for k, v in kubeconfig("https://second").items() if k != "current-context"}
    paths = [
        write_kubeconfig(tmp_path / "1", first),
        str(tmp_path / "missing"),
        write_kubeconfig(tmp_path / "2", second),
    ]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))
    assert load().base_url == "https://first"
