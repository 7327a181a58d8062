"""What a cluster can do, asked once in a while.

The Workload API moved in every release, and neither a release number nor a group's presence proves it:
`scheduling.k8s.io/v1` holds PriorityClasses everywhere, and a feature gate can take the rest away. So the
resources of each listed version are read. There are three answers: served, not served, and not known.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.clock import Timing
from airflow_provider_gangjobs.cluster.errors import ApiError, NotFound, ReplyLost
from airflow_provider_gangjobs.cluster.loop_local import of_running_loop
from airflow_provider_gangjobs.cluster.resources import SCHEDULING_GROUP

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client

EXPIRY_S = 600.0
"""An upgrade of the cluster is noticed after this long; a request for what is gone fails clearly before."""
UNKNOWN_EXPIRY_S = 30.0

VersionResources = Mapping[str, frozenset[str]]
"""Verbs by plural, as one version of a group serves them."""


@dataclass(frozen=True)
class Capabilities:
    """What is known of a cluster. `unknown` says what could not be found out, and why; empty if all was."""

    release: str | None
    """Such as "1.37"; None if not known."""
    git_version: str | None
    resources: Mapping[str, VersionResources]
    """What each version of scheduling.k8s.io serves, in the server's order of preference."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Reason by what was asked: "version", "scheduling.k8s.io", or one version of it such as "v1beta1"."""

    @property
    def scheduling_versions(self) -> tuple[str, ...]:
        """The versions of scheduling.k8s.io known to serve Workloads, the server's preferred one first."""
        return tuple(version for version, served in self.resources.items() if "workloads" in served)

    def serves(self, version: str, plural: str) -> bool | None:
        """Whether scheduling.k8s.io/`version` has `plural`; None if that could not be found out."""
        if version in self.resources:
            return plural in self.resources[version]
        return None if version in self.unknown or SCHEDULING_GROUP in self.unknown else False

    def can_watch(self, version: str, plural: str) -> bool:
        """Whether it is known to be served with `watch`. Permission is another question."""
        return "watch" in self.resources.get(version, {}).get(plural, ())


async def discover(client: Client, *, timing: Timing | None = None) -> Capabilities:
    """The cluster's capabilities: asked for with about five requests, then remembered for ten minutes.

    Callers that come while the answer is on its way wait for it.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: nothing could be asked at all.
    """
    return await of_running_loop(_Cache).get(client, timing or Timing())


@dataclass
class _Entry:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    known: Capabilities | None = None
    expires_at: float = 0.0


class _Cache:
    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    async def get(self, client: Client, timing: Timing) -> Capabilities:
        entry = self._entries.setdefault(client.config.key, _Entry())
        async with entry.lock:
            if entry.known is None or timing.monotonic() >= entry.expires_at:
                entry.known = await _ask(client)
                lasts_s = UNKNOWN_EXPIRY_S if entry.known.unknown else EXPIRY_S
                entry.expires_at = timing.monotonic() + lasts_s
            return entry.known


async def _ask(client: Client) -> Capabilities:
    unknown: dict[str, str] = {}
    version = await _document(client, "/version", "version", unknown)
    group = await _document(client, f"/apis/{SCHEDULING_GROUP}", SCHEDULING_GROUP, unknown)
    names = _version_names(group)
    documents = [await _document(client, f"/apis/{SCHEDULING_GROUP}/{name}", name, unknown) for name in names]
    resources = {
        name: _verbs_by_plural(document) for name, document in zip(names, documents, strict=True) if name not in unknown
    }
    return Capabilities(_release(version), (version or {}).get("gitVersion"), resources, unknown)


async def _document(client: Client, path: str, what: str, unknown: dict[str, str]) -> dict[str, Any] | None:
    """The document; None if it does not exist, or with a note in `unknown` if that could not be found out."""
    try:
        return await client.get_raw(path)
    except NotFound:
        return None
    except (ApiError, ReplyLost) as error:
        unknown[what] = str(error)
        return None


def _version_names(group: dict[str, Any] | None) -> list[str]:
    """Versions of a group, the preferred one first."""
    document = group or {}
    preferred = (document.get("preferredVersion") or {}).get("version")
    names = [str(item.get("version")) for item in document.get("versions") or ()]
    return sorted(names, key=lambda name: name != preferred)


def _verbs_by_plural(document: dict[str, Any] | None) -> VersionResources:
    served = (document or {}).get("resources") or ()
    return {str(item.get("name")): frozenset(item.get("verbs") or ()) for item in served}


def _release(version: dict[str, Any] | None) -> str | None:
    """ "1.37" of major "1" and minor "37+", which managed clusters report."""
    parts = [re.match(r"\d+", str((version or {}).get(name, ""))) for name in ("major", "minor")]
    return ".".join(part.group() for part in parts if part) if all(parts) else None
