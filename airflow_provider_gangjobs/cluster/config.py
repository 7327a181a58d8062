"""The configuration of a cluster and its credentials, from the extras of Airflow's `kubernetes` connection.

The extras have the same meaning as for the cncf provider's KubernetesHook, in the worker and in the triggerer. (The
two hooks of the cncf provider differ: the asynchronous one ignores `disable_verify_ssl`.) This module loads no
credentials; `auth.credentials` does. Secrets never appear in `repr`, in `key`, or in an error.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import yaml
from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import InvalidConnection
from airflow_provider_gangjobs.kube.links import LinkTemplate, parse_links
from airflow_provider_gangjobs.kube.yaml_errors import YAML_ERRORS

PREFIX = "extra__kubernetes__"
"""Connections that Airflow created before 2.3 have this prefix on every extra."""

_KEY_SALT = secrets.token_bytes(16)
"""A key is a hash over secrets. The random salt of this process prevents guessing passwords from a key."""


class ClusterConfig(Struct, frozen=True, dict=True):
    """How to reach a cluster. Configs with equal `key` have the same cluster and credentials and can share a client.

    At most one of `in_cluster`, `kube_config_path`, and `kube_config` is set. Without any of them, the default
    kubeconfig is used, and the service account of the pod if there is no such file.
    """

    conn_id: str
    in_cluster: bool = False
    """Use the service account of the pod."""
    kube_config_path: str | None = None
    kube_config: Mapping[str, Any] | None = None
    context: str | None = None
    namespace: str | None = None
    verify_ssl: bool = True
    tcp_keepalive: bool = True
    gang_scheduler: str | None = None
    """The gang scheduler of gangs that name none. The extra is the provider's own; the cncf provider ignores it."""
    queue_name: str | None = None
    """The Kueue queue of gangs that name none, as an extra of the provider's own."""
    queue_priority: str | None = None
    """The WorkloadPriorityClass of gangs in a queue that name none, as an extra of the provider's own."""
    links: tuple[LinkTemplate, ...] = ()
    """Links of gangs and ranks to other systems, as an extra of the provider's own."""

    def __repr__(self) -> str:
        return f"ClusterConfig(conn_id={self.conn_id!r}, namespace={self.namespace!r})"

    @classmethod
    def from_extras(cls, conn_id: str, extras: Mapping[str, Any]) -> ClusterConfig:
        """Read the extras of a connection. Unknown extras are ignored, as in the cncf provider.

        Raises:
            InvalidConnection: the extras name several sources, kube_config is not a mapping, a flag is not a boolean,
                or a link has an unknown field.
        """
        reader = _Extras(conn_id, extras)
        in_cluster = reader.flag("in_cluster")
        path = reader.text("kube_config_path")
        inline = reader.kube_config()
        sources = {"in_cluster": in_cluster, "kube_config_path": path, "kube_config": inline}
        chosen = [name for name, value in sources.items() if value]
        if len(chosen) > 1:
            problem = f"{' and '.join(chosen)} are set, which exclude each other"
            raise InvalidConnection(conn_id, problem, "Keep one of them.")
        return cls(
            conn_id=conn_id,
            in_cluster=in_cluster,
            kube_config_path=os.path.expanduser(path) if path else None,
            kube_config=inline,
            context=reader.text("cluster_context"),
            namespace=reader.text("namespace"),
            verify_ssl=not reader.flag("disable_verify_ssl"),
            tcp_keepalive=not reader.flag("disable_tcp_keepalive"),
            gang_scheduler=reader.text("gang_scheduler"),
            queue_name=reader.text("queue_name"),
            queue_priority=reader.text("queue_priority"),
            links=reader.links(),
        )

    @cached_property
    def key(self) -> str:
        """An opaque hash of the cluster and credentials, valid within this process."""
        sources = [self.in_cluster, self.kube_config_path, self.kube_config]
        default_location = "" if any(sources) else os.environ.get("KUBECONFIG", "")
        parts = [*sources, self.context, default_location]
        text = repr([*parts, self.verify_ssl, self.tcp_keepalive])
        return hmac.new(_KEY_SALT, text.encode(), hashlib.sha256).hexdigest()[:16]


class _Extras:
    def __init__(self, conn_id: str, extras: Mapping[str, Any]) -> None:
        self._conn_id = conn_id
        self._extras = extras

    def _get(self, name: str) -> Any:
        value = self._extras[name] if name in self._extras else self._extras.get(PREFIX + name)
        return None if value == "" else value

    def _invalid(self, name: str, expected: str) -> InvalidConnection:
        return InvalidConnection(self._conn_id, f"extra {name} is not {expected}", "Correct it in the connection.")

    def text(self, name: str) -> str | None:
        value = self._get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._invalid(name, "a string")

    def flag(self, name: str) -> bool:
        """Return a boolean, which may be given as text: a connection in URI form can contain only text."""
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        text = str(value).strip().lower()
        if text not in ("true", "false", "1", "0"):
            raise self._invalid(name, "true or false")
        return text in ("true", "1")

    def links(self) -> tuple[LinkTemplate, ...]:
        try:
            return parse_links(self._get("links") or {})
        except ValueError as error:
            raise InvalidConnection(self._conn_id, f"extra links {error}", "Correct it in the connection.") from None

    def kube_config(self) -> Mapping[str, Any] | None:
        value = self._get("kube_config")
        if isinstance(value, str):
            value = self._parse(value)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self._invalid("kube_config", "a kubeconfig (a JSON or YAML mapping)")
        return value

    def _parse(self, text: str) -> Any:
        with suppress(ValueError, RecursionError):
            return json.loads(text)
        try:
            return yaml.safe_load(text)
        except YAML_ERRORS:
            # Not chained: the parser's message quotes the malformed line, which may contain a token.
            raise self._invalid("kube_config", "readable as JSON or YAML") from None
