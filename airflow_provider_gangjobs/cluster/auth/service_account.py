"""Reads the service account of the pod that this process runs in. Blocking: call it in a thread."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_gangjobs.cluster.auth.errors import ConfigError, TokenUnavailableError
from airflow_provider_gangjobs.cluster.auth.kubeconfig_user import TOKEN_FILE_PERIOD_S
from airflow_provider_gangjobs.cluster.auth.rest_config import RestConfig
from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig, environment_proxy

DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SOURCE = "the pod's service account"
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def is_in_pod() -> bool:
    """Return whether this process runs in a pod, by the variables that the kubelet sets."""
    return bool(os.environ.get(_HOST))


def load_service_account(directory: Path = DIRECTORY, *, verify: bool = True) -> RestConfig:
    """Return the API server and credentials of the pod. The kubelet replaces the token, so it is read periodically.

    Raises:
        ConfigError: this process does not run in a pod, or the pod has no service account token.
        TokenUnavailableError: the token file is empty.
    """
    base_url = f"https://{_host_and_port()}"
    token, authority = _read(directory / "token").strip(), _read(directory / "ca.crt")
    if not token:
        raise TokenUnavailableError(f"the file {directory / 'token'} is empty")
    if not authority.strip():
        raise _unusable(f"the file {directory / 'ca.crt'} is empty", "Check the ConfigMap kube-root-ca.crt.")
    return RestConfig(
        base_url=base_url,
        authorization=f"Bearer {token.decode('ascii', 'replace')}",
        tls=TlsConfig(ca=authority, verify=verify),
        proxy=environment_proxy(base_url),
        renew_in_s=TOKEN_FILE_PERIOD_S,
        namespace=_namespace(directory),
    )


def _host_and_port() -> str:
    for name in (_HOST, _PORT):
        if not os.environ.get(name):
            remedy = "Run in a pod, or set kube_config_path or kube_config in the connection's extras."
            raise _unusable(f"the environment variable {name} is not set", remedy)
    host, port = os.environ[_HOST], os.environ[_PORT]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _namespace(directory: Path) -> str | None:
    try:
        return (directory / "namespace").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        remedy = "Set automountServiceAccountToken: true in the pod or in its service account."
        raise _unusable(f"the file {path} cannot be read: {exc.strerror}", remedy) from None


def _unusable(problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"{SOURCE} cannot be used: {problem}", remedy)
