"""Loads the credentials of a connection from its kubeconfig or from the pod's service account.

If the connection names no source, a kubeconfig is used before the pod's service account, as kubectl does. (The cncf
provider's hook for workers uses the opposite order, and its hook for the triggerer uses only a kubeconfig.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_provider_gangjobs.cluster.auth import service_account
from airflow_provider_gangjobs.cluster.auth.errors import ConfigError, TokenUnavailableError
from airflow_provider_gangjobs.cluster.auth.kubeconfig import Kubeconfig, default_paths, existing_paths
from airflow_provider_gangjobs.cluster.auth.kubeconfig_user import authenticate, impersonation_headers
from airflow_provider_gangjobs.cluster.auth.oidc import OidcTokens
from airflow_provider_gangjobs.cluster.auth.rest_config import RestConfig
from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig, environment_proxy
from airflow_provider_gangjobs.cluster.config import ClusterConfig, ConfigSource
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_gangjobs.cluster.auth.kubeconfig_fields import Section

LOAD_TIMEOUT_S = 60.0
"""An exec plugin that requests a token from a cloud takes seconds. A plugin that waits for a person must not block a
task."""

_NO_SOURCE = "it names no cluster, there is no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod"


class CredentialSource:
    """The source of a connection's credentials. Keeps the refresh token of an issuer, which may change at each use."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        timeout_s: float = LOAD_TIMEOUT_S,
        service_account_dir: Path = service_account.DIRECTORY,
    ) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._service_account_dir = service_account_dir
        self._tokens = OidcTokens()

    def load(self) -> RestConfig:
        """Load the credentials. Runs the exec plugin if the kubeconfig has one.

        Raises:
            InvalidConnection: there is no usable kubeconfig or service account.
            CredentialsFailed: the exec plugin, issuer, or token file failed. A later call may succeed.
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
            case ConfigSource.DEFAULT if not service_account.is_in_pod():
                raise ConfigError(
                    _NO_SOURCE, "Set kube_config_path, kube_config or in_cluster in the connection's extras."
                )
        return service_account.load_service_account(self._service_account_dir, verify=self._config.verify_ssl)

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
        credentials = authenticate(selected, self._tokens, timeout_s=self._timeout_s)
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
