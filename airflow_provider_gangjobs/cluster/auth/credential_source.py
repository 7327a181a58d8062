"""Loads the credentials of a connection from its kubeconfig or from the pod's service account.

If the connection names no source, a kubeconfig is used before the pod's service account, as kubectl does. (The cncf
provider's hook for workers uses the opposite order, and its hook for the triggerer uses only a kubeconfig.)

Reads the service account of the pod that this process runs in. Blocking: call it in a thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_provider_gangjobs.cluster.auth.errors import ConfigError, TokenUnavailableError
from airflow_provider_gangjobs.cluster.auth.kubeconfig import Kubeconfig, default_paths, existing_paths
from airflow_provider_gangjobs.cluster.auth.kubeconfig_user import (
    TOKEN_FILE_PERIOD_S,
    authenticate,
    impersonation_headers,
)
from airflow_provider_gangjobs.cluster.auth.rest_config import RestConfig
from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig, environment_proxy
from airflow_provider_gangjobs.cluster.config import ClusterConfig, ConfigSource
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.auth.kubeconfig_fields import Section


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
    token, authority = _read_file(directory / "token").strip(), _read_file(directory / "ca.crt")
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


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        remedy = "Set automountServiceAccountToken: true in the pod or in its service account."
        raise _unusable(f"the file {path} cannot be read: {exc.strerror}", remedy) from None


def _unusable(problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"{SOURCE} cannot be used: {problem}", remedy)


LOAD_TIMEOUT_S = 60.0
"""An exec plugin that requests a token from a cloud takes seconds. A plugin that waits for a person must not block a
task."""

_NO_SOURCE = "it names no cluster, there is no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod"


class CredentialSource:
    """The source of a connection's credentials, which may be loaded any number of times."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        timeout_s: float = LOAD_TIMEOUT_S,
        service_account_dir: Path = DIRECTORY,
    ) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._service_account_dir = service_account_dir

    def load(self) -> RestConfig:
        """Load the credentials. Runs the exec plugin if the kubeconfig has one.

        Raises:
            InvalidConnection: there is no usable kubeconfig or service account.
            CredentialsFailed: the exec plugin or the token file failed. A later call may succeed.
        """
        try:
            return self._load()
        except ConfigError as error:
            raise InvalidConnection(self._config.conn_id, error.problem, error.remedy) from None
        except TokenUnavailableError as error:
            raise CredentialsFailed(self._config.conn_id, str(error)) from None

    def _load(self) -> RestConfig:
        match self._config.source:
            case ConfigSource.INLINE:
                return self._from_kubeconfig(Kubeconfig.from_mapping(self._config.kube_config or {}))
            case ConfigSource.FILE:
                return self._from_kubeconfig(Kubeconfig.from_files(self._configured_paths()))
            case ConfigSource.DEFAULT if paths := default_paths():
                return self._from_kubeconfig(Kubeconfig.from_files(paths))
            case ConfigSource.DEFAULT if not is_in_pod():
                raise ConfigError(
                    _NO_SOURCE, "Set kube_config_path, kube_config or in_cluster in the connection's extras."
                )
        return load_service_account(self._service_account_dir, verify=self._config.verify_ssl)

    def _configured_paths(self) -> list[str]:
        if paths := existing_paths(self._config.kube_config_path or ""):
            return paths
        raise ConfigError(f"the file {self._config.kube_config_path} does not exist", "Correct kube_config_path.")

    def _from_kubeconfig(self, kubeconfig: Kubeconfig) -> RestConfig:
        selected = kubeconfig.select(self._config.context)
        cluster = selected.cluster
        base_url = _base_url(cluster)
        verify = not cluster.flag("insecure-skip-tls-verify") and self._config.verify_ssl
        authority = cluster.pem("certificate-authority")
        proxy = _proxy(cluster) or environment_proxy(base_url)
        impersonation = impersonation_headers(selected.user)
        # The last step, because it may run a program.
        credentials = authenticate(selected, timeout_s=self._timeout_s)
        return RestConfig(
            base_url=base_url,
            authorization=credentials.authorization,
            tls=TlsConfig(ca=authority, certificate=credentials.certificate, key=credentials.key, verify=verify),
            proxy=proxy,
            server_hostname=cluster.text("tls-server-name"),
            renew_in_s=credentials.renew_in_s,
            impersonation=impersonation,
            namespace=selected.namespace,
        )


def _base_url(cluster: Section) -> str:
    server = cluster.required_text("server")
    url = _url_parts(server)
    if url is None or url[0] not in ("http", "https"):
        raise cluster.error("server", "is not a URL of the form https://HOST:PORT")
    scheme, has_password = url
    if has_password:
        raise cluster.error("server", "contains a user", "Move username and password to the user of the context.")
    return f"{scheme}{server[len(scheme) :]}".rstrip("/")


def _proxy(cluster: Section) -> str | None:
    proxy = cluster.text("proxy-url")
    if proxy is None:
        return None
    url = _url_parts(proxy)
    if url is None or url[0] not in ("http", "https"):
        raise cluster.error("proxy-url", "is not a URL of the form http://HOST:PORT, the supported kind of proxy")
    return proxy


def _url_parts(url: str) -> tuple[str, bool] | None:
    """Return the scheme and whether there is a user, or None if `url` is not a URL with a host."""
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return None
    valid = parts.hostname and port_is_valid and url.isprintable() and " " not in url
    return (parts.scheme, "@" in parts.netloc) if valid else None
