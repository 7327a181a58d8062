"""Reads a kubeconfig or a pod's service account with kubernetes_asyncio's own loaders. Blocking: call it in a thread.

Its process-wide default Configuration is never touched, so that two connections in one process do not mix.
Its error texts are not passed on unseen: they can hold whole users with their tokens.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_gangjobs.cluster.connection import ClusterConfig, Source
from airflow_provider_gangjobs.cluster.errors import ClusterError, CredentialsFailed, InvalidConnection
from airflow_provider_gangjobs.cluster.tls import TlsFiles, environment_proxy

LOAD_TIMEOUT_S = 60
"""An exec plugin that asks a cloud for a token takes seconds; one that waits for a person must not hang a task."""

TOKEN_FILE_PERIOD_S = 60.0
"""How often a token that changes by itself is read again, as client-go does; the kubelet rotates a pod's hourly."""

EXPIRY_MARGIN_S = 300.0
"""A plugin's token is renewed this long before it expires, or half-way if it does not last as long."""

_EVIDENCE_CHARS_MAX = 256


@dataclass(frozen=True)
class Material:
    """What the source said: where the server is, and how to prove who we are."""

    base_url: str
    authorization: str | None
    tls: TlsFiles
    proxy: str | None
    server_hostname: str | None
    renew_in_s: float | None
    """After how long to load again; None if nothing changes unless someone edits the kubeconfig."""


class CredentialSource:
    """One connection's source of credentials. Keeps an issuer's refresh token, which may change at each use."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._inline: dict[str, Any] = copy.deepcopy(dict(config.kube_config or {}))

    def load(self) -> Material:
        """Load the credentials, running an exec plugin if there is one.

        Raises:
            InvalidConnection: there is no usable kubeconfig or service account.
            CredentialsFailed: the plugin, issuer or file that gives the token failed; it may work later.
        """
        return _load_or_explain(self._config, self._inline)


def _load_or_explain(config: ClusterConfig, inline: dict[str, Any]) -> Material:
    try:
        return asyncio.run(asyncio.wait_for(_load(config, inline), LOAD_TIMEOUT_S))
    except ClusterError:
        raise
    except TimeoutError:
        raise CredentialsFailed(config.conn_id, f"the exec plugin did not end within {LOAD_TIMEOUT_S} s") from None
    except yaml.YAMLError:
        raise InvalidConnection(config.conn_id, f"{_where(config)} is not valid YAML", "Correct the file.") from None
    except Exception as exc:
        # Not chained: the loader's messages name a missing key by the whole mapping around it, tokens included.
        raise _explained(config, exc) from None


async def _load(config: ClusterConfig, inline: dict[str, Any]) -> Material:
    from kubernetes_asyncio import config as loaders
    from kubernetes_asyncio.client import Configuration

    configuration = Configuration()
    match config.source:
        case Source.IN_CLUSTER:
            loaders.load_incluster_config(configuration, try_refresh_token=False)  # type: ignore[no-untyped-call]
            return _material(configuration, config, renew_in_s=TOKEN_FILE_PERIOD_S)
        case Source.INLINE:
            loader = await loaders.load_kube_config_from_dict(inline, config.context, configuration)
        case Source.FILE:
            loader = await loaders.load_kube_config(
                _existing(config, config.kube_config_path or ""), config.context, configuration
            )
        case Source.DEFAULT:
            paths = default_paths()
            if not paths:
                return await _load(_in_cluster(config), inline)
            loader = await loaders.load_kube_config(os.pathsep.join(paths), config.context, configuration)
    return _material(configuration, config, renew_in_s=_renew_in_s(loader))


def default_paths() -> list[str]:
    """The existing files of $KUBECONFIG, or of kubectl's default place."""
    listed = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return [path for path in map(os.path.expanduser, listed.split(os.pathsep)) if path and os.path.exists(path)]


def _in_cluster(config: ClusterConfig) -> ClusterConfig:
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise InvalidConnection(
            config.conn_id,
            "it names no cluster, there is no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod",
            "Set kube_config_path, kube_config or in_cluster in the connection's extras.",
        )
    return ClusterConfig(config.conn_id, Source.IN_CLUSTER, verify_ssl=config.verify_ssl)


def _existing(config: ClusterConfig, path: str) -> str:
    if any(os.path.exists(os.path.expanduser(part)) for part in path.split(os.pathsep) if part):
        return path
    raise InvalidConnection(config.conn_id, f"there is no file {path}", "Correct kube_config_path.")


def _renew_in_s(loader: Any) -> float | None:
    """A plugin's token lasts until its expiry, or until it is refused; files and issuers are asked again and again."""
    expiry: datetime | None = getattr(loader, "exec_plugin_expiry", None)
    if expiry is not None:
        left_s = (expiry - datetime.now(UTC)).total_seconds()
        return max(left_s - EXPIRY_MARGIN_S, left_s / 2, 1.0)
    user = getattr(loader, "_user", None)
    changes = user is not None and (loader.provider is not None or "tokenFile" in user)
    return TOKEN_FILE_PERIOD_S if changes else None


def _material(configuration: Any, config: ClusterConfig, *, renew_in_s: float | None) -> Material:
    base_url = str(configuration.host).rstrip("/")
    return Material(
        base_url=base_url,
        authorization=configuration.api_key.get("BearerToken"),
        tls=TlsFiles(
            ca=configuration.ssl_ca_cert or None,
            certificate=configuration.cert_file or None,
            key=configuration.key_file or None,
            verify=config.verify_ssl and bool(configuration.verify_ssl),
        ),
        proxy=configuration.proxy or environment_proxy(base_url),
        server_hostname=configuration.tls_server_name or None,
        renew_in_s=renew_in_s,
    )


def _explained(config: ClusterConfig, exc: Exception) -> ClusterError:
    evidence = redacted(str(exc))
    if evidence.startswith(("exec:", "oidc:")):
        return CredentialsFailed(config.conn_id, evidence)
    return InvalidConnection(
        config.conn_id, f"{_where(config)} cannot be used: {type(exc).__name__}: {evidence}", "Correct it."
    )


def _where(config: ClusterConfig) -> str:
    match config.source:
        case Source.FILE:
            return f"the kubeconfig {config.kube_config_path}"
        case Source.DEFAULT:
            return f"the kubeconfig {os.pathsep.join(default_paths())}"
        case Source.INLINE:
            return "extra kube_config"
        case Source.IN_CLUSTER:
            return "the pod's service account"


def redacted(text: str) -> str:
    """`text` without mappings and without what looks like a token, cut to a readable length."""
    text = re.sub(r"\{.*\}", "{...}", text, flags=re.DOTALL)
    text = re.sub(r"[A-Za-z0-9_\-+/=.]{40,}", "...", text)
    text = re.sub(r"(?i)\b(bearer|basic|token|password|secret)\b(\s*[:=]?\s*)\S+", r"\1\2...", text)
    return " ".join(text.split())[:_EVIDENCE_CHARS_MAX]
