"""Kubeconfigs read by the provider and by the official Python clients, side by side.

Each client judges each kubeconfig of `kubeconfig_cases`: same server, headers, certificates, and proxy, or an error. A
difference that the case does not list is a failure, and so is a listed difference that does not exist.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes.client
import kubernetes.config.kube_config
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.auth.credentials import load_access
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection
from tests.timeouts import TIMEOUT_S
from tests.unit.kubeconfig_cases import (
    ASYNC,
    CASES,
    CERTIFICATE,
    CLUSTERS,
    CONTEXTS,
    KEY,
    PKI,
    SERVER,
    SYNC,
    USERS,
    Case,
    encoded,
    kubeconfig,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Result = dict[str, Any] | None
"""The settings that a client uses, or None if the client refuses the kubeconfig."""


def by_provider(paths: list[str], context: str | None) -> Result:
    extras = {"kube_config_path": os.pathsep.join(paths), "cluster_context": context}
    try:
        loaded = load_access(ClusterConfig.from_extras("k8s", extras))
    except (InvalidConnection, CredentialsFailed):
        return None
    return {
        "server": loaded.base_url,
        "authorization": loaded.authorization,
        "impersonation": loaded.impersonation,
        "ca": loaded.tls.ca,
        "certificate": loaded.tls.certificate,
        "key": loaded.tls.key,
        "verify": loaded.tls.verify,
        "server_name": loaded.server_hostname,
        "proxy": loaded.proxy.url if loaded.proxy else None,
    }


def by_official_client(paths: list[str], context: str | None, library: Any, configuration: Any) -> Result:
    try:
        merged = library.KubeConfigMerger(os.pathsep.join(paths)).config
        loader = library.KubeConfigLoader(merged, active_context=context, config_base_path=None)
        loading = loader.load_and_set(configuration)
        if loading is not None:
            asyncio.run(loading)
    except Exception:
        return None
    token = configuration.api_key.get("BearerToken")
    return {
        "server": configuration.host,
        "authorization": token.strip() if token else None,
        "impersonation": (),
        "ca": _content(configuration.ssl_ca_cert),
        "certificate": _content(configuration.cert_file),
        "key": _content(configuration.key_file),
        "verify": configuration.verify_ssl,
        "server_name": configuration.tls_server_name,
        "proxy": configuration.proxy,
    }


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def by_async_client(paths: list[str], context: str | None) -> Result:
    # Each worker of pytest-xdist imports all modules of tests, and only this function needs this library.
    from kubernetes_asyncio import client
    from kubernetes_asyncio.config import kube_config

    return by_official_client(paths, context, kube_config, client.Configuration())


def by_blocking_client(paths: list[str], context: str | None) -> Result:
    return by_official_client(paths, context, kubernetes.config.kube_config, kubernetes.client.Configuration())


CLIENTS: dict[str, Callable[[list[str], str | None], Result]] = {ASYNC: by_async_client, SYNC: by_blocking_client}


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def write(case: Case, directory: Path) -> list[str]:
    """Write the files of a case and return the paths of its kubeconfigs."""
    for name, content in {"token": b"from-file\n", **case.files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("bin/"):
            path.write_text(f"#!{sys.executable}\n{content}")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        else:
            data = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
            path.write_bytes(data.replace(b"DIRECTORY", str(directory).encode()))
    return [str(directory / name) for name in case.paths]


@pytest.mark.parametrize("client", [pytest.param(ASYNC, marks=pytest.mark.slow), SYNC])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_provider_and_official_client_agree(case: Case, client: str, tmp_path: Path) -> None:
    paths = write(case, tmp_path)
    ours, theirs = by_provider(paths, case.context), CLIENTS[client](paths, case.context)
    if client in case.differs:
        assert ours != theirs, f"The difference no longer exists: {case.differs[client]}"
    else:
        assert ours == theirs


@pytest.mark.parametrize("case", [c for c in CASES if set(c.differs) == set(CLIENTS)], ids=lambda case: case.name)
def test_result_that_no_official_client_has(case: Case, tmp_path: Path) -> None:
    ours = by_provider(write(case, tmp_path), case.context)
    if case.expected is None:
        assert ours is None
    else:
        assert ours is not None
        assert case.expected
        assert case.expected == {name: ours[name] for name in case.expected}


# -- kubectl ---------------------------------------------------------------------------------------------------

KUBECTL = shutil.which("kubectl")
KUBECTL_REFUSES = {"two users of one name in a file"}
KUBECTL_CASES = [*CONTEXTS, *(case for case in [*CLUSTERS, *USERS] if set(case.differs) == set(CLIENTS))]


def by_kubectl(paths: list[str], context: str | None) -> Result:
    """Return what kubectl would use of the fields that it shows, or None if it refuses the kubeconfig."""
    assert KUBECTL
    command = [
        KUBECTL,
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "--output=json",
        f"--context={context or ''}",
    ]
    environment = {**os.environ, "KUBECONFIG": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        return None
    shown = json.loads(done.stdout)
    cluster = shown["clusters"][0]["cluster"]
    user = (shown["users"] or [{}])[0].get("user", {})
    return {
        "server": cluster.get("server", "").rstrip("/"),
        "ca": _decoded(cluster.get("certificate-authority-data")),
        "certificate": _decoded(user.get("client-certificate-data")),
        "key": _decoded(user.get("client-key-data")),
        "verify": not cluster.get("insecure-skip-tls-verify"),
        "server_name": cluster.get("tls-server-name"),
        "proxy": cluster.get("proxy-url"),
    }


def _decoded(data: str | None) -> bytes | None:
    return base64.b64decode(data) if data else None


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (Debian: kubernetes-client)")
@pytest.mark.parametrize("case", KUBECTL_CASES, ids=lambda case: case.name)
def test_provider_and_kubectl_agree(case: Case, tmp_path: Path) -> None:
    paths = write(case, tmp_path)
    ours, kubectl = by_provider(paths, case.context), by_kubectl(paths, case.context)
    if ours and kubectl:
        assert kubectl == {name: ours[name] for name in kubectl}
    elif ours:
        assert case.name in KUBECTL_REFUSES


# -- any combination -------------------------------------------------------------------------------------------

CLUSTER_FIELDS = {
    "certificate-authority-data": encoded(SERVER.certificate),
    "certificate-authority": "pki/ca.crt",
    "insecure-skip-tls-verify": True,
    "tls-server-name": "api",
    "proxy-url": "http://proxy:3128",
}
USER_FIELDS = {
    "token": "t0ken",
    "tokenFile": "token",
    "username": "me",
    "password": "pass",
    "client-certificate-data": encoded(CERTIFICATE),
    "client-key-data": encoded(KEY),
    "client-certificate": "pki/me.crt",
    "client-key": "pki/me.key",
}


def some_of(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.sets(st.sampled_from(sorted(fields))).map(lambda names: {name: fields[name] for name in names})


@given(
    server=st.sampled_from(["https://api:6443", "https://api:6443/prefix/", "http://api"]),
    cluster=some_of(CLUSTER_FIELDS),
    user=some_of(USER_FIELDS),
    context=some_of({"namespace": "team"}),
)
def test_any_combination_of_fields_means_the_same(
    server: str, cluster: dict[str, Any], user: dict[str, Any], context: dict[str, Any], tmp_path_factory: Any
) -> None:
    directory = tmp_path_factory.mktemp("kubeconfig")
    content = kubeconfig(cluster={"server": server, **cluster}, user=user, context=context)
    paths = write(Case("any", {"config": content, **PKI}), directory)
    ours, theirs = by_provider(paths, None), by_async_client(paths, None)
    if ours and server.startswith("http:"):
        # The official client does not read the certificates of a server that does not use TLS.
        ours.update(ca=None, certificate=None, key=None)
    assert ours == theirs
