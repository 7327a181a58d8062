"""What a cluster offers, and what it would allow: its resources, which are cached for a while, and access reviews.

A scheduler that is installed later is noticed at once if its API group was not served before.

The Workload API changed its version in every release. Neither the release number nor the API group proves that a
cluster serves it: `scheduling.k8s.io/v1` contains PriorityClasses in every cluster, and a feature gate can disable the
other resources. Therefore discovery reads the resources of versions. A resource is served, not served, or unknown.

The process of a task discovers only what one gang needs, which is one request on the newest releases. Only gangs that
name a scheduler with an API of its own need `read_api_group`: one request for the group, and one for each version.
Aggregated discovery would also be one request, but with the resources of all groups, which are megabytes in a cluster
with many CRDs.

A review of access denies nothing and leaves no denial in an audit log. Every authenticated user may ask for one, by the
built-in role system:basic-user.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.errors import ApiError, ClusterError, NotFound, ReplyLost
from airflow_provider_gangjobs.cluster.loop_local import EXPIRY_S, UNKNOWN_EXPIRY_S, Answer, cached_read
from airflow_provider_gangjobs.kube.resources import SCHEDULING_GROUP, Resource
from airflow_provider_gangjobs.kube.views import ServedGroup

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client


REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)


async def is_allowed(client: Client, verb: str, resource: Resource, namespace: str | None = None) -> bool | None:
    """Return whether the client may send a request, or `None` if this is unknown.

    A server without reviews, such as the sandbox, has no rights and allows everything.

    :param namespace: The namespace of the objects. By default all namespaces.
    """
    try:
        return await review(client, verb, resource.group, resource.plural, namespace)
    except NotFound:
        return True
    except ClusterError:
        return None


async def review(client: Client, verb: str, group: str, plural: str, namespace: str | None) -> bool:
    """Return whether the API server says that it would allow a request.

    :param plural: The resource, with its subresource if there is one: `pods/log`.
    :param namespace: The namespace of the objects. `None` for all namespaces.

    Raises:
        ClusterError: the review was refused or not answered. `NotFound` if the server has no reviews.
    """
    resource, _, subresource = plural.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    spec = {"resourceAttributes": {**asked, "namespace": namespace or ""}}
    stored = await client.create(REVIEWS, {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": spec})
    return bool((stored.get("status") or {}).get("allowed"))


async def read_api_group(client: Client, group: str) -> ServedGroup:
    """Return what the cluster serves of a group. A group that is served is cached for `EXPIRY_S`.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: no request could be sent.
    """
    return await cached_read(client, (read_api_group, group), partial(_read_api_group, client, group))


async def _read_api_group(client: Client, group: str) -> Answer[ServedGroup]:
    versions: dict[str, frozenset[str]] = {}
    try:
        document = await client.get_raw(f"/apis/{group}")
        for item in document.get("versions") or ():
            name = str(item.get("version"))
            with suppress(NotFound):  # the version was removed meanwhile
                resources = await client.get_raw(f"/apis/{group}/{name}")
                versions[name] = frozenset(str(one.get("name")) for one in resources.get("resources") or ())
    except NotFound:
        pass  # the cluster does not serve the group
    except (ApiError, ReplyLost) as error:
        return Answer(ServedGroup(versions, str(error)), 0.0)
    return Answer(ServedGroup(versions), EXPIRY_S if versions else 0.0)


VersionResources = Mapping[str, frozenset[str]]
"""Verbs by plural of the resources that one version of a group serves."""

WantedVersions = Mapping[str, Collection[str]]
"""Versions of scheduling.k8s.io by preference, the best first, each with the plurals that it must serve."""


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
    groups: Mapping[str, ServedGroup] = field(default_factory=dict)
    """The API groups of other schedulers, as far as a gang needed them."""
    gang_scheduler: str | None = None
    """The gang scheduler of gangs that name none, from the connection."""
    queue_name: str | None = None
    """The Kueue queue of gangs that name none, from the connection."""
    queue_priority: str | None = None
    """The WorkloadPriorityClass of gangs in a queue that name none, from the connection."""
    proven_versions: tuple[str, ...] = ()
    """Versions of scheduling.k8s.io that the provider does not know, and for which dry runs keep link and group."""
    refused_versions: Mapping[str, str] = field(default_factory=dict)
    """Why such a version cannot be used."""
    is_complete: bool = True
    """Whether discovery has tried to read everything. Otherwise it stopped at the first wanted version."""

    @property
    def scheduling_versions(self) -> tuple[str, ...]:
        """The versions of scheduling.k8s.io that are known to serve Workloads, the server's preferred version first."""
        return tuple(version for version, served in self.resources.items() if "workloads" in served)

    def satisfies(self, wanted: WantedVersions) -> bool:
        """Return whether a wanted version is known to serve all of its resources."""
        return any(set(plurals) <= set(self.resources.get(version, ())) for version, plurals in wanted.items())

    def can_watch(self, version: str, plural: str) -> bool:
        """Return whether the resource is known to support `watch`. RBAC may still forbid it."""
        return "watch" in self.resources.get(version, {}).get(plural, ())


async def discover(client: Client, *, wanted: WantedVersions | None = None) -> DiscoveredResources:
    """Return the capabilities of a cluster. They take about five requests and are cached for `EXPIRY_S`.

    :param wanted: Stop at the first of these versions that serves all of its resources. That takes one request if the
        cluster serves the best of them. If the cluster serves none of them, everything is read.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: no request could be sent.
    """
    discovery = _Discovery(client, wanted or {})
    return await cached_read(
        client,
        (DiscoveredResources,),
        discovery.run,
        accepts=lambda found: found.is_complete or found.satisfies(wanted or {}),
    )


class _Discovery:
    """One discovery. Each document is read at most once."""

    def __init__(self, client: Client, wanted: WantedVersions) -> None:
        self._client = client
        self._wanted = wanted
        self._resources: dict[str, VersionResources] = {}
        self._unknown: dict[str, str] = {}

    async def run(self) -> Answer[DiscoveredResources]:
        """Read versions until one serves what is wanted, and everything if the cluster serves none of them."""
        best = list(self._wanted)[:1]
        if await self._read_until_served(best):  # without the list of versions: the newest releases serve the best one
            return self._answer(self._found())
        listed = _version_names(await self._document(f"/apis/{SCHEDULING_GROUP}", SCHEDULING_GROUP))
        others = [*(name for name in self._wanted if name in listed), *(n for n in listed if n not in self._wanted)]
        if await self._read_until_served([name for name in others if name not in best]):
            return self._answer(self._found())
        version = await self._document("/version", "version")
        resources = {name: self._resources[name] for name in listed if name in self._resources}
        git_version = (version or {}).get("gitVersion")
        return self._answer(DiscoveredResources(_release(version), git_version, resources, self._unknown))

    def _answer(self, found: DiscoveredResources) -> Answer[DiscoveredResources]:
        return Answer(found, UNKNOWN_EXPIRY_S if self._unknown else EXPIRY_S)

    async def _read_until_served(self, names: list[str]) -> bool:
        """Read versions, and return true at the first one that serves what is wanted."""
        for name in names:
            document = await self._document(f"/apis/{SCHEDULING_GROUP}/{name}", name)
            if name not in self._unknown:
                self._resources[name] = _verbs_by_plural(document)
                if self._found().satisfies(self._wanted):
                    return True
        return False

    def _found(self) -> DiscoveredResources:
        served = {name: verbs for name, verbs in self._resources.items() if verbs}
        return DiscoveredResources(None, None, served, self._unknown, is_complete=False)

    async def _document(self, path: str, what: str) -> dict[str, Any] | None:
        """Return a document, or `None` if it does not exist or could not be read. The latter is noted as unknown."""
        try:
            return await self._client.get_raw(path)
        except NotFound:
            return None
        except (ApiError, ReplyLost) as error:
            self._unknown[what] = str(error)
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
