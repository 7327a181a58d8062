"""Maps a path to the object, collection or subresource that it names (`RequestInfoFactory` of the API server)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.resources import NAMESPACES, PODGROUPS, RESOURCES, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.releases import Release

__all__ = ["Target", "groups", "parse_path", "served"]


@dataclass(frozen=True)
class Target:
    """The object, collection or subresource that a request names."""

    resource: Resource
    group: str
    version: str
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def served(release: Release) -> Iterator[tuple[str, str, Resource]]:
    """Yield the group, version and resource of everything that this release serves, preferred versions first."""
    for resource in RESOURCES:
        versions = resource.versions or release.scheduling_versions
        if resource is PODGROUPS and not release.has_pod_groups:
            continue
        for version in versions:
            yield resource.group, version, resource


def groups(release: Release) -> dict[str, list[str]]:
    """Return the versions by group, preferred versions first: v1 before beta before alpha."""
    found: dict[str, list[str]] = {"authorization.k8s.io": ["v1"]}
    for group, version, _ in served(release):
        versions = found.setdefault(group, [])
        if version not in versions:
            versions.append(version)
    return {group: sorted(versions, key=_rank) for group, versions in found.items()}


def _rank(version: str) -> tuple[int, str]:
    return (0 if version == "v1" else 1 if "beta" in version else 2, version)


def parse_path(group: str, version: str, rest: str, release: Release) -> Target | None:
    """Parse the part of a path after group and version. Returns None if this release does not serve the path."""
    parts = [part for part in rest.split("/") if part]
    namespace = None
    if len(parts) >= 3 and parts[0] == "namespaces" and parts[2] not in NAMESPACES.subresources:
        namespace, parts = parts[1], parts[2:]
    if not 1 <= len(parts) <= 3:
        return None
    resource = _resource(group, version, parts[0], release)
    name = parts[1] if len(parts) > 1 else None
    subresource = parts[2] if len(parts) > 2 else None
    if resource is None or (subresource and subresource not in resource.subresources):
        return None
    if (namespace is not None) != resource.namespaced and (namespace is not None or name is not None):
        return None
    return Target(resource, group, version, namespace, name, subresource)


def _resource(group: str, version: str, plural: str, release: Release) -> Resource | None:
    for known_group, known_version, resource in served(release):
        if (known_group, known_version, resource.plural) == (group, version, plural):
            return resource
    return None
