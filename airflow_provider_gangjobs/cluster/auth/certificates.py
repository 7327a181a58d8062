"""The certificates of a kubeconfig, read into memory and kept away from the library's loader.

The loader would write embedded ones to files that it removes at exit, but Airflow ends its task processes
by `os._exit`: every try of a task would leave a client key in /tmp.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.auth.tls import TlsConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubernetes_asyncio.config.kube_config import ConfigNode

_CA = "certificate-authority"
_CERTIFICATE = "client-certificate"
_KEY = "client-key"
_FIELDS = frozenset(field + suffix for field in (_CA, _CERTIFICATE, _KEY) for suffix in ("", "-data"))


def without_certificates(kubeconfig: ConfigNode) -> ConfigNode:
    """A copy for the loader. Everything else is shared, so that tokens it refreshes can be written back."""
    from kubernetes_asyncio.config.kube_config import ConfigNode

    value = dict(kubeconfig.value)
    for plural, singular in (("clusters", "cluster"), ("users", "user")):
        value[plural] = [_stripped(item, singular) for item in value.get(plural) or ()]
    return ConfigNode(kubeconfig.name, value, kubeconfig.path)


def certificates(kubeconfig: ConfigNode, context: Mapping[str, Any], *, verify: bool) -> TlsConfig:
    """The certificates of the cluster and user that a context names.

    Raises:
        OSError: a file that is named cannot be read.
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


def secrets_of(kubeconfig: ConfigNode) -> frozenset[str]:
    """Every text under the users: what must not show up in a message."""
    return frozenset(text for item in kubeconfig.value.get("users") or () for text in _texts(_plain(item).get("user")))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        # What identifies a plugin or a file helps to find the fault, and is no secret.
        return [t for k, v in value.items() if k not in ("command", "apiVersion", "tokenFile") for t in _texts(v)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _plain(item: Any) -> dict[str, Any]:
    """An entry of a list: a mapping, or a node around one if it came from a file."""
    value = getattr(item, "value", item)
    return value if isinstance(value, dict) else {}


def _stripped(item: Any, section: str) -> Any:
    inner = _plain(item).get(section)
    if not isinstance(inner, dict):
        return item
    plain = {**_plain(item), section: {k: v for k, v in inner.items() if k not in _FIELDS}}
    return type(item)(item.name, plain, item.path) if hasattr(item, "value") else plain


def _section(kubeconfig: ConfigNode, plural: str, singular: str, name: object) -> tuple[dict[str, Any], str]:
    """One cluster or user by name, and the directory that its relative paths start from."""
    for item in kubeconfig.value.get(plural) or ():
        if _plain(item).get("name") == name:
            path = getattr(item, "path", None)
            return _plain(item).get(singular) or {}, os.path.dirname(os.path.abspath(path)) if path else ""
    return {}, ""


def _content(section: Mapping[str, Any], field: str, directory: str) -> bytes | None:
    """Embedded data goes before a file, as for kubectl."""
    if embedded := section.get(f"{field}-data"):
        return base64.b64decode(embedded, validate=False)
    if path := section.get(field):
        return Path(directory, path).read_bytes()
    return None
