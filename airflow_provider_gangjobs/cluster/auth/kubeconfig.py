"""Reads a kubeconfig or a pod's service account with the loaders of kubernetes_asyncio. Blocking: call it in a thread.

The loaders do not change the library's process-wide default Configuration, so that two connections in one process stay
apart. Error messages of the library are redacted, because they can contain users with their tokens.

The certificates are read into memory and removed from the kubeconfig that the library's loader gets. The loader would
write embedded certificates to files and remove them at exit, but Airflow ends its task processes by `os._exit`, so each
try of a task would leave a client key in /tmp.

If the connection names no source, a kubeconfig is used before the pod's service account, as kubectl does. (The cncf
provider's hook for workers uses the opposite order, and its hook for the triggerer uses only a kubeconfig.)
"""

from __future__ import annotations

import asyncio
import base64
import copy
import os
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_gangjobs.cluster.auth.plugin_loop import run_in_own_loop
from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig, environment_proxy
from airflow_provider_gangjobs.cluster.config import ClusterConfig, ConfigSource
from airflow_provider_gangjobs.cluster.errors import ClusterError, CredentialsFailed, InvalidConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kubernetes_asyncio.config.kube_config import ConfigNode

LOAD_TIMEOUT_S = 60.0
"""An exec plugin that requests a token from a cloud takes seconds. A plugin that waits for a person must not block a
task."""
TOKEN_FILE_PERIOD_S = 60.0
"""How often a token that changes by itself is read again, as in client-go. The kubelet rotates a pod's token hourly."""
EXPIRY_MARGIN_S = 300.0
"""A plugin's token is renewed this long before its expiry, or after half of its lifetime if that is later."""

_EVIDENCE_CHARS_MAX = 256
_SECRET_CHARS_MIN = 6
"""Shorter texts (a group, "true") are not secrets and occur in ordinary sentences."""


_CA = "certificate-authority"
_CERTIFICATE = "client-certificate"
_KEY = "client-key"
_CERTIFICATE_FIELDS = frozenset(field + suffix for field in (_CA, _CERTIFICATE, _KEY) for suffix in ("", "-data"))


@dataclass(frozen=True)
class RestConfig:
    """The address of a server and the credentials for it, as the source has them."""

    base_url: str
    authorization: str | None = field(default=None, repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig)
    proxy: str | None = field(default=None, repr=False)
    server_hostname: str | None = None
    renew_in_s: float | None = None
    """After how many seconds to load again, or None if nothing changes unless someone edits the kubeconfig."""


class CredentialSource:
    """The source of a connection's credentials. Keeps the refresh token of an issuer, which may change at each use."""

    def __init__(self, config: ClusterConfig, *, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._inline: dict[str, Any] = copy.deepcopy(dict(config.kube_config or {}))
        self._secrets: frozenset[str] = frozenset()

    def load(self) -> RestConfig:
        """Load the credentials. Runs the exec plugin if the kubeconfig has one.

        Raises:
            InvalidConnection: there is no usable kubeconfig or service account.
            CredentialsFailed: the exec plugin, issuer, or token file failed. A later call may succeed.
        """
        try:
            return run_in_own_loop(asyncio.wait_for(self._load(), self._timeout_s))
        except ClusterError:
            raise
        except TimeoutError:
            evidence = f"the exec plugin or issuer did not answer within {self._timeout_s:g} s"
            raise CredentialsFailed(self._config.conn_id, evidence) from None
        except yaml.YAMLError:
            raise self._unusable("is not valid YAML") from None
        except Exception as exc:
            # Not chained: for a missing key, the loader's message quotes the whole mapping, including tokens.
            raise self._redacted_error(exc) from None

    async def _load(self) -> RestConfig:
        if self._config.source is ConfigSource.IN_CLUSTER:
            return _service_account(self._config)
        if self._config.source is ConfigSource.INLINE:
            return await self._kubeconfig(_inline_node(self._inline), None)
        if self._config.source is ConfigSource.DEFAULT and not default_paths() and _in_pod():
            return _service_account(self._config)
        node, persist = self._read_files()
        return await self._kubeconfig(node, persist)

    def _read_files(self) -> tuple[ConfigNode, Callable[[], None]]:
        from kubernetes_asyncio.config.kube_config import KubeConfigMerger

        merger = KubeConfigMerger(os.pathsep.join(self._paths()))
        if merger.config is None or not isinstance(merger.config.value, dict):
            raise self._unusable("is empty")
        return merger.config, merger.save_changes

    def _paths(self) -> list[str]:
        if self._config.source is ConfigSource.DEFAULT:
            if paths := default_paths():
                return paths
            raise InvalidConnection(
                self._config.conn_id,
                "it names no cluster, there is no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod",
                "Set kube_config_path, kube_config or in_cluster in the connection's extras.",
            )
        if paths := existing_paths(self._config.kube_config_path or ""):
            return paths
        raise InvalidConnection(
            self._config.conn_id,
            f"the file {self._config.kube_config_path} does not exist",
            "Correct kube_config_path.",
        )

    async def _kubeconfig(self, node: ConfigNode, persist: Callable[[], None] | None) -> RestConfig:
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config.kube_config import KubeConfigLoader

        self._secrets = _secrets_of(node)
        loader = KubeConfigLoader(
            _without_certificates(node),
            active_context=self._config.context,
            config_base_path=None,
            config_persister=persist,
        )
        configuration = Configuration()
        await loader.load_and_set(configuration)
        if not hasattr(loader, "host"):
            raise self._unusable("names no server for this context")
        context = (loader.current_context or {}).get("context") or {}
        tls = _certificates(node, context, verify=self._config.verify_ssl)
        return _rest_config(configuration, _with_plugin_certificate(configuration, tls), renew_in_s=_renew_in_s(loader))

    def _redacted_error(self, exc: Exception) -> ClusterError:
        evidence = redacted(str(exc), self._secrets)
        if evidence.startswith(("exec:", "oidc:")):
            return CredentialsFailed(self._config.conn_id, evidence)
        return self._unusable(f"cannot be used: {type(exc).__name__}: {evidence}")

    def _unusable(self, problem: str) -> InvalidConnection:
        return InvalidConnection(self._config.conn_id, f"{self._source_name()} {problem}", "Correct it.")

    def _source_name(self) -> str:
        match self._config.source:
            case ConfigSource.FILE:
                return f"the kubeconfig {self._config.kube_config_path}"
            case ConfigSource.DEFAULT:
                return f"the kubeconfig {os.pathsep.join(default_paths())}"
            case ConfigSource.INLINE:
                return "extra kube_config"
            case ConfigSource.IN_CLUSTER:
                return "the pod's service account"


def default_paths() -> list[str]:
    """Return the existing files of $KUBECONFIG, or of kubectl's default location."""
    return existing_paths(os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config"))


def existing_paths(listed: str) -> list[str]:
    return [path for path in map(os.path.expanduser, listed.split(os.pathsep)) if path and os.path.exists(path)]


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without mappings, tokens, and the given secrets, cut to `_EVIDENCE_CHARS_MAX`."""
    for secret in sorted((s for s in secrets if len(s) >= _SECRET_CHARS_MIN), key=len, reverse=True):
        text = text.replace(secret, "...")
    text = re.sub(r"\{.*\}", "{...}", text, flags=re.DOTALL)
    text = re.sub(r"\beyJ[\w.=-]+", "...", text)
    text = re.sub(r"(?i)\b(bearer|basic)\s+\S+", r"\1 ...", text)
    return " ".join(text.split())[:_EVIDENCE_CHARS_MAX]


def _in_pod() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _inline_node(kubeconfig: dict[str, Any]) -> ConfigNode:
    from kubernetes_asyncio.config.kube_config import ConfigNode

    return ConfigNode("kube-config", kubeconfig)


def _service_account(config: ClusterConfig) -> RestConfig:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import load_incluster_config

    configuration = Configuration()
    load_incluster_config(configuration, try_refresh_token=False)  # type: ignore[no-untyped-call]
    tls = TlsConfig(ca=Path(str(configuration.ssl_ca_cert)).read_bytes(), verify=config.verify_ssl)
    return _rest_config(configuration, tls, renew_in_s=TOKEN_FILE_PERIOD_S)


def _with_plugin_certificate(configuration: Any, tls: TlsConfig) -> TlsConfig:
    """Add the client certificate of an exec plugin, which the loader leaves in files."""
    if not (configuration.cert_file and configuration.key_file):
        return tls
    certificate, key = Path(configuration.cert_file).read_bytes(), Path(configuration.key_file).read_bytes()
    return replace(tls, certificate=certificate, key=key)


def _rest_config(configuration: Any, tls: TlsConfig, *, renew_in_s: float | None) -> RestConfig:
    base_url = str(configuration.host).rstrip("/")
    return RestConfig(
        base_url=base_url,
        # Token files may end with a newline, which a header cannot contain.
        authorization=(configuration.api_key.get("BearerToken") or "").strip() or None,
        tls=tls,
        proxy=configuration.proxy or environment_proxy(base_url),
        server_hostname=configuration.tls_server_name or None,
        renew_in_s=renew_in_s,
    )


def _renew_in_s(loader: Any) -> float | None:
    """Return after how many seconds to load again.

    The token of a plugin is used until shortly before its expiry. Token files and issuers are read periodically.
    """
    expiry: datetime | None = getattr(loader, "exec_plugin_expiry", None)
    if expiry is not None:
        left_s = (expiry - datetime.now(UTC)).total_seconds()
        return max(left_s - EXPIRY_MARGIN_S, left_s / 2, 1.0)
    user = getattr(loader, "_user", None)
    changes = user is not None and (loader.provider is not None or "tokenFile" in user)
    return TOKEN_FILE_PERIOD_S if changes else None


# -- certificates and secrets of a kubeconfig ------------------------------------------------------------------


def _without_certificates(kubeconfig: ConfigNode) -> ConfigNode:
    """Return a copy for the loader. Other values are shared, so that the loader can write refreshed tokens back."""
    from kubernetes_asyncio.config.kube_config import ConfigNode

    value = dict(kubeconfig.value)
    for plural, singular in (("clusters", "cluster"), ("users", "user")):
        value[plural] = [_stripped(item, singular) for item in value.get(plural) or ()]
    return ConfigNode(kubeconfig.name, value, kubeconfig.path)


def _certificates(kubeconfig: ConfigNode, context: Mapping[str, Any], *, verify: bool) -> TlsConfig:
    """Return the certificates of the cluster and user of a context.

    Raises:
        OSError: a certificate file cannot be read.
        ValueError: embedded data is not base64.
    """
    cluster, cluster_dir = _section(kubeconfig, "clusters", "cluster", context.get("cluster"))
    user, user_dir = _section(kubeconfig, "users", "user", context.get("user"))
    return TlsConfig(
        ca=_content(cluster, _CA, cluster_dir),
        certificate=_content(user, _CERTIFICATE, user_dir),
        key=_content(user, _KEY, user_dir),
        verify=verify and not cluster.get("insecure-skip-tls-verify"),
    )


def _secrets_of(kubeconfig: ConfigNode) -> frozenset[str]:
    """Return every text of the users section. Messages must not contain any of them."""
    return frozenset(text for item in kubeconfig.value.get("users") or () for text in _texts(_plain(item).get("user")))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        # The names of a plugin or token file help to find the fault and are not secret.
        return [t for k, v in value.items() if k not in ("command", "apiVersion", "tokenFile") for t in _texts(v)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _plain(item: Any) -> dict[str, Any]:
    """Return an entry of a list as a mapping. An entry from a file is a node around a mapping."""
    value = getattr(item, "value", item)
    return value if isinstance(value, dict) else {}


def _stripped(item: Any, section: str) -> Any:
    inner = _plain(item).get(section)
    if not isinstance(inner, dict):
        return item
    plain = {**_plain(item), section: {k: v for k, v in inner.items() if k not in _CERTIFICATE_FIELDS}}
    return type(item)(item.name, plain, item.path) if hasattr(item, "value") else plain


def _section(kubeconfig: ConfigNode, plural: str, singular: str, name: object) -> tuple[dict[str, Any], str]:
    """Return a cluster or user by name, and the directory of its relative paths."""
    for item in kubeconfig.value.get(plural) or ():
        if _plain(item).get("name") == name:
            path = getattr(item, "path", None)
            return _plain(item).get(singular) or {}, os.path.dirname(os.path.abspath(path)) if path else ""
    return {}, ""


def _content(section: Mapping[str, Any], field: str, directory: str) -> bytes | None:
    """Return a certificate or key. Embedded data takes precedence over a file, as for kubectl."""
    if embedded := section.get(f"{field}-data"):
        return base64.b64decode(embedded, validate=False)
    if path := section.get(field):
        return Path(directory, path).read_bytes()
    return None
