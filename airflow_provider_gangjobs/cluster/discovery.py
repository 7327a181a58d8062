"""Discovers the capabilities of a cluster and caches them for a while.

The Workload API changed its version in every release. Neither the release number nor the API group proves that a
cluster serves it: `scheduling.k8s.io/v1` contains PriorityClasses in every cluster, and a feature gate can disable the
other resources. Therefore discovery reads the resources of each listed version. A resource is served, not served, or
unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import ApiError, NotFound, ReplyLost
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import SCHEDULING_GROUP

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client

EXPIRY_S = 600.0
"""Discovery notices an upgrade of the cluster after this time. Until then, a request for a removed version fails."""
UNKNOWN_EXPIRY_S = 30.0

VersionResources = Mapping[str, frozenset[str]]
"""Verbs by plural of the resources that one version of a group serves."""


@dataclass(frozen=True)
class DiscoveredResources:
    """The known capabilities of a cluster. `unknown` is empty if all requests succeeded."""

    release: str | None
    """The minor release, such as "1.37", or None if unknown."""
    git_version: str | None
    resources: Mapping[str, VersionResources]
    """The resources of each version of scheduling.k8s.io, in the server's order of preference."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a request failed, by its subject: "version", "scheduling.k8s.io", or a version of it such as "v1beta1"."""
    groups: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Plurals by version of the API groups of other schedulers, as far as a gang needed them (`api_groups`)."""
    gang_scheduler: str | None = None
    """The gang scheduler of gangs that name none, from the connection."""
    proven_versions: tuple[str, ...] = ()
    """Versions of scheduling.k8s.io that the provider does not know, and for which dry runs keep link and group."""
    refused_versions: Mapping[str, str] = field(default_factory=dict)
    """Why such a version cannot be used."""

    @property
    def scheduling_versions(self) -> tuple[str, ...]:
        """The versions of scheduling.k8s.io that are known to serve Workloads, the server's preferred version first."""
        return tuple(version for version, served in self.resources.items() if "workloads" in served)

    def serves(self, version: str, plural: str) -> bool | None:
        """Return whether scheduling.k8s.io/`version` serves `plural`, or None if this is unknown."""
        if version in self.resources:
            return plural in self.resources[version]
        return None if version in self.unknown or SCHEDULING_GROUP in self.unknown else False

    def can_watch(self, version: str, plural: str) -> bool:
        """Return whether the resource is known to support `watch`. RBAC may still forbid it."""
        return "watch" in self.resources.get(version, {}).get(plural, ())


async def discover(client: Client, *, clock: Clock | None = None) -> DiscoveredResources:
    """Return the capabilities of a cluster. They take about five requests and are cached for `EXPIRY_S`.

    Concurrent callers wait for the same requests.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: no request could be sent.
    """
    return await loop_local(_Cache).get(client, clock or Clock())


@dataclass
class _Entry:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    known: DiscoveredResources | None = None
    expires_at: float = 0.0


class _Cache:
    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    async def get(self, client: Client, clock: Clock) -> DiscoveredResources:
        entry = self._entries.setdefault(client.config.key, _Entry())
        async with entry.lock:
            if entry.known is None or clock.monotonic() >= entry.expires_at:
                entry.known = await _discover(client)
                lasts_s = UNKNOWN_EXPIRY_S if entry.known.unknown else EXPIRY_S
                entry.expires_at = clock.monotonic() + lasts_s
            return entry.known


async def _discover(client: Client) -> DiscoveredResources:
    unknown: dict[str, str] = {}
    version = await _get_document(client, "/version", "version", unknown)
    group = await _get_document(client, f"/apis/{SCHEDULING_GROUP}", SCHEDULING_GROUP, unknown)
    names = _version_names(group)
    documents = [await _get_document(client, f"/apis/{SCHEDULING_GROUP}/{name}", name, unknown) for name in names]
    resources = {
        name: _verbs_by_plural(document) for name, document in zip(names, documents, strict=True) if name not in unknown
    }
    return DiscoveredResources(_release(version), (version or {}).get("gitVersion"), resources, unknown)


async def _get_document(client: Client, path: str, what: str, unknown: dict[str, str]) -> dict[str, Any] | None:
    """Return a document, or None if it does not exist. If this is unknown, return None and add a note to `unknown`."""
    try:
        return await client.get_raw(path)
    except NotFound:
        return None
    except (ApiError, ReplyLost) as error:
        unknown[what] = str(error)
        return None


def _version_names(group: dict[str, Any] | None) -> list[str]:
    """Return the versions of a group, the preferred version first."""
    document = group or {}
    preferred = (document.get("preferredVersion") or {}).get("version")
    names = [str(item.get("version")) for item in document.get("versions") or ()]
    return sorted(names, key=lambda name: name != preferred)


def _verbs_by_plural(document: dict[str, Any] | None) -> VersionResources:
    served = (document or {}).get("resources") or ()
    return {str(item.get("name")): frozenset(item.get("verbs") or ()) for item in served}


def _release(version: dict[str, Any] | None) -> str | None:
    """Return the minor release: "1.37" for major "1" and minor "37+", which managed clusters report."""
    parts = [re.match(r"\d+", str((version or {}).get(name, ""))) for name in ("major", "minor")]
    return ".".join(part.group() for part in parts if part) if all(parts) else None
