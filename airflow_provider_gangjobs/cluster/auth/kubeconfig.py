"""Reads a kubeconfig or a pod's service account with kubernetes_asyncio's own loaders. Blocking: call it in a thread.

Its process-wide default Configuration is never touched, so that two connections in one process do not mix.
Its error texts are not passed on unseen: they can hold whole users with their tokens.

With nothing set, a kubeconfig is looked for first and the pod's service account second, as kubectl does. (Of the
cncf provider's hooks, the one of the worker looks in the other order, and the one of the triggerer at the first only.)
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_gangjobs.cluster.auth.certificates import certificates, secrets_of, without_certificates
from airflow_provider_gangjobs.cluster.auth.plugin_loop import run_in_own_loop
from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig, environment_proxy
from airflow_provider_gangjobs.cluster.config import ClusterConfig, ConfigSource
from airflow_provider_gangjobs.cluster.errors import ClusterError, CredentialsFailed, InvalidConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kubernetes_asyncio.config.kube_config import ConfigNode

LOAD_TIMEOUT_S = 60.0
"""An exec plugin that asks a cloud for a token takes seconds; one that waits for a person must not hang a task."""
TOKEN_FILE_PERIOD_S = 60.0
"""How often a token that changes by itself is read again, as client-go does; the kubelet rotates a pod's hourly."""
EXPIRY_MARGIN_S = 300.0
"""A plugin's token is renewed this long before it expires, or half-way if it does not last as long."""

_EVIDENCE_CHARS_MAX = 256
_SECRET_CHARS_MIN = 6
"""Shorter texts (a group, "true") are in every sentence, and no secret."""


@dataclass(frozen=True)
class RestConfig:
    """What the source said: where the server is, and how to prove who we are."""

    base_url: str
    authorization: str | None = field(default=None, repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig)
    proxy: str | None = field(default=None, repr=False)
    server_hostname: str | None = None
    renew_in_s: float | None = None
    """After how long to load again; None if nothing changes unless someone edits the kubeconfig."""


class CredentialSource:
    """One connection's source of credentials. Keeps an issuer's refresh token, which may change at each use."""

    def __init__(self, config: ClusterConfig, *, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._inline: dict[str, Any] = copy.deepcopy(dict(config.kube_config or {}))
        self._secrets: frozenset[str] = frozenset()

    def load(self) -> RestConfig:
        """Load the credentials, running an exec plugin if there is one.

        Raises:
            InvalidConnection: there is no usable kubeconfig or service account.
            CredentialsFailed: the plugin, issuer or file that gives the token failed; it may work later.
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
            # Not chained: the loader's messages name a missing key by the whole mapping around it, tokens included.
            raise self._explained(exc) from None

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
            self._config.conn_id, f"there is no file {self._config.kube_config_path}", "Correct kube_config_path."
        )

    async def _kubeconfig(self, node: ConfigNode, persist: Callable[[], None] | None) -> RestConfig:
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config.kube_config import KubeConfigLoader

        self._secrets = secrets_of(node)
        loader = KubeConfigLoader(
            without_certificates(node),
            active_context=self._config.context,
            config_base_path=None,
            config_persister=persist,
        )
        configuration = Configuration()
        await loader.load_and_set(configuration)
        if not hasattr(loader, "host"):
            raise self._unusable("names no server for this context")
        context = (loader.current_context or {}).get("context") or {}
        tls = certificates(node, context, verify=self._config.verify_ssl)
        return _rest_config(configuration, _with_plugin_certificate(configuration, tls), renew_in_s=_renew_in_s(loader))

    def _explained(self, exc: Exception) -> ClusterError:
        evidence = redacted(str(exc), self._secrets)
        if evidence.startswith(("exec:", "oidc:")):
            return CredentialsFailed(self._config.conn_id, evidence)
        return self._unusable(f"cannot be used: {type(exc).__name__}: {evidence}")

    def _unusable(self, why: str) -> InvalidConnection:
        return InvalidConnection(self._config.conn_id, f"{self._where()} {why}", "Correct it.")

    def _where(self) -> str:
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
    """The existing files of $KUBECONFIG, or of kubectl's default place."""
    return existing_paths(os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config"))


def existing_paths(listed: str) -> list[str]:
    return [path for path in map(os.path.expanduser, listed.split(os.pathsep)) if path and os.path.exists(path)]


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without mappings, tokens and the given secrets, cut to a readable length."""
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
    """A plugin may give a client certificate instead of a token; the loader leaves that in files."""
    if not (configuration.cert_file and configuration.key_file):
        return tls
    certificate, key = Path(configuration.cert_file).read_bytes(), Path(configuration.key_file).read_bytes()
    return replace(tls, certificate=certificate, key=key)


def _rest_config(configuration: Any, tls: TlsConfig, *, renew_in_s: float | None) -> RestConfig:
    base_url = str(configuration.host).rstrip("/")
    return RestConfig(
        base_url=base_url,
        # Token files may end with a newline, which no header can hold.
        authorization=(configuration.api_key.get("BearerToken") or "").strip() or None,
        tls=tls,
        proxy=configuration.proxy or environment_proxy(base_url),
        server_hostname=configuration.tls_server_name or None,
        renew_in_s=renew_in_s,
    )


def _renew_in_s(loader: Any) -> float | None:
    """A plugin's token lasts until its expiry, or until it is refused; files and issuers are asked again and again."""
    expiry: datetime | None = getattr(loader, "exec_plugin_expiry", None)
    if expiry is not None:
        left_s = (expiry - datetime.now(UTC)).total_seconds()
        return max(left_s - EXPIRY_MARGIN_S, left_s / 2, 1.0)
    user = getattr(loader, "_user", None)
    changes = user is not None and (loader.provider is not None or "tokenFile" in user)
    return TOKEN_FILE_PERIOD_S if changes else None
