"""What a cluster offers, and what it would allow: its resources, which are cached for a while, and access reviews.

One request reads all groups, versions and resources (aggregated discovery). In a cluster with 300 CRDs the response has
180 kB, 10 kB of them on the network. All callers of an event loop share it.

The Workload API changed its version in every release. Neither the release number nor the API group proves that a
cluster serves it: `scheduling.k8s.io/v1` contains PriorityClasses in every cluster, and a feature gate can disable the
other resources. Therefore discovery reads the resources of versions. A resource is served, not served, or unknown.

A review of access denies nothing and leaves no denial in an audit log. Every authenticated user may ask for one, by the
built-in role system:basic-user.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import ApiError, ClusterError, NotFound, ReplyLost
from airflow_provider_gangjobs.cluster.loop_local import EXPIRY_S, UNKNOWN_EXPIRY_S, Answer, cached_read
from airflow_provider_gangjobs.kube.resources import SCHEDULING_GROUP, Resource
from airflow_provider_gangjobs.kube.views import ServedGroup

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.kube.views import ApiGroupView


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


class _ApiGroups(Struct, frozen=True):
    """One response of aggregated discovery."""

    groups: Mapping[str, ApiGroupView]
    error: ClusterError | None
    """Why there is no response; `None` if there is one."""
    read_at_s: float

    def find(self, name: str) -> ServedGroup:
        """Return what is known of a group."""
        return self.groups[name].served() if name in self.groups else ServedGroup(unknown=str(self.error or ""))


async def read_api_group(client: Client, name: str) -> ServedGroup:
    """Return what the cluster serves of a group.

    What is served is used for `EXPIRY_S`. That a group is not served, or unknown, counts for `UNKNOWN_EXPIRY_S`, so
    that a controller which is installed later is noticed soon.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: no request could be sent.
    """
    now_s = client.clock.monotonic()

    def is_recent(known: _ApiGroups) -> bool:
        group = known.find(name)
        return bool(group.versions and not group.unknown) or now_s < known.read_at_s + UNKNOWN_EXPIRY_S

    return (await cached_read(client, (_ApiGroups,), partial(_read_groups, client), accepts=is_recent)).find(name)


async def read_group_names(client: Client) -> Collection[str]:
    """Return the names of all API groups of the cluster, also of groups whose versions are unknown.

    Raises:
        ClusterError: this is unknown.
    """
    read = partial(_read_groups, client)
    known = await cached_read(client, (_ApiGroups,), read, accepts=lambda known: known.error is None)
    if known.error is not None:
        raise known.error
    return known.groups.keys()


async def _read_groups(client: Client) -> Answer[_ApiGroups]:
    groups, failure = [], None
    try:
        groups = await client.api_groups()
    except (ApiError, ReplyLost) as error:
        failure = error
    by_name = {group.metadata.name: group for group in groups}
    return Answer(_ApiGroups(by_name, failure, client.clock.monotonic()), EXPIRY_S)


VersionResources = Mapping[str, Collection[str]]
"""Verbs by plural of the resources that one version of a group serves."""


class DiscoveredResources(Struct, frozen=True):
    """The known capabilities of a cluster. `unknown` is empty if all requests succeeded."""

    release: str | None
    """The minor release, such as "1.37", or None if unknown."""
    git_version: str | None
    resources: Mapping[str, VersionResources]
    """The resources of each version of scheduling.k8s.io, in the server's order of preference."""
    unknown: Mapping[str, str] = {}
    """Why it is unknown, by its subject: "version", "scheduling.k8s.io", or a version such as "v1beta1"."""
    groups: Mapping[str, ServedGroup] = {}
    """The API groups of other schedulers, as far as a gang needed them."""
    gang_scheduler: str | None = None
    """The gang scheduler of gangs that name none, from the connection."""
    queue_name: str | None = None
    """The Kueue queue of gangs that name none, from the connection."""
    queue_priority: str | None = None
    """The WorkloadPriorityClass of gangs in a queue that name none, from the connection."""
    proven_versions: tuple[str, ...] = ()
    """Versions of scheduling.k8s.io that the provider does not know, and for which dry runs keep link and group."""
    refused_versions: Mapping[str, str] = {}
    """Why such a version cannot be used."""

    @property
    def scheduling_versions(self) -> tuple[str, ...]:
        """The versions of scheduling.k8s.io that are known to serve Workloads, the server's preferred version first."""
        return tuple(version for version, served in self.resources.items() if "workloads" in served)

    def can_watch(self, version: str, plural: str) -> bool:
        """Return whether the resource is known to support `watch`. RBAC may still forbid it."""
        return "watch" in self.resources.get(version, {}).get(plural, ())


async def discover(client: Client) -> DiscoveredResources:
    """Return what the cluster serves of scheduling.k8s.io, without the release of the cluster.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: no request could be sent.
    """
    served = await read_api_group(client, SCHEDULING_GROUP)
    unknown = {SCHEDULING_GROUP: served.unknown} if served.unknown else {}
    return DiscoveredResources(None, None, served.versions, unknown)


async def with_release(client: Client, known: DiscoveredResources) -> DiscoveredResources:
    """Add the release of the cluster, which is one more request, and cached for as long.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: no request could be sent.
    """
    version, why_unknown = await cached_read(client, (with_release,), partial(_read_version, client))
    unknown = {**known.unknown, "version": why_unknown} if why_unknown else known.unknown
    return replace(known, release=_release(version), git_version=version.get("gitVersion"), unknown=unknown)


async def _read_version(client: Client) -> Answer[tuple[dict[str, Any], str]]:
    try:
        return Answer((await client.version(), ""), EXPIRY_S)
    except (ApiError, ReplyLost) as error:
        return Answer(({}, str(error)), UNKNOWN_EXPIRY_S)


def _release(version: Mapping[str, Any]) -> str | None:
    """Return the minor release: "1.37" for major "1" and minor "37+", which managed clusters report."""
    parts = [re.match(r"\d+", str(version.get(name, ""))) for name in ("major", "minor")]
    return ".".join(part.group() for part in parts if part) if all(parts) else None
