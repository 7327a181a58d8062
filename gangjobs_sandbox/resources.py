"""The kinds of objects that the embedded cluster stores.

A `Resource` is identified by group and plural, and carries what discovery says about it. The served versions of
`scheduling.k8s.io` depend on the release (see `releases`), so a resource does not name them. The storage has no API
versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "CONFIGMAPS",
    "EVENTS",
    "JOBS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODGROUPS",
    "PODS",
    "PRIORITYCLASSES",
    "RESOURCES",
    "SECRETS",
    "SERVICEACCOUNTS",
    "SERVICES",
    "WORKLOADS",
    "Resource",
    "by_key",
    "by_kind",
]


@dataclass(frozen=True, eq=False)
class Resource:
    """The identity, names and subresources of a resource.

    There is one object for each resource, compared by identity.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    in_all: bool = False
    """Whether `kubectl get all` lists the resource."""
    key: str = field(init=False, default="")
    """`<plural>.<group>`, as error messages name it; the plural alone for the core group."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def qualified_kind(self) -> str:
        """`<Kind>.<group>`, as `is invalid` messages name it."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version

    def __repr__(self) -> str:
        return f"<Resource {self.key}>"


NAMESPACES = Resource(
    "", ("v1",), "namespaces", "Namespace", namespaced=False, short_names=("ns",), subresources=("status", "finalize")
)
NODES = Resource("", ("v1",), "nodes", "Node", namespaced=False, short_names=("no",), subresources=("status",))
PODS = Resource(
    "",
    ("v1",),
    "pods",
    "Pod",
    short_names=("po",),
    subresources=("status", "log", "binding", "eviction"),
    in_all=True,
)
SERVICES = Resource("", ("v1",), "services", "Service", short_names=("svc",), subresources=("status",), in_all=True)
CONFIGMAPS = Resource("", ("v1",), "configmaps", "ConfigMap", short_names=("cm",))
SECRETS = Resource("", ("v1",), "secrets", "Secret")
SERVICEACCOUNTS = Resource("", ("v1",), "serviceaccounts", "ServiceAccount", short_names=("sa",))
EVENTS = Resource("", ("v1",), "events", "Event", short_names=("ev",))
"""Events have their core/v1 form; the API group `events.k8s.io` is not served."""
JOBS = Resource("batch", ("v1",), "jobs", "Job", subresources=("status",), in_all=True)
PRIORITYCLASSES = Resource(
    "scheduling.k8s.io", ("v1",), "priorityclasses", "PriorityClass", namespaced=False, short_names=("pc",)
)
WORKLOADS = Resource("scheduling.k8s.io", (), "workloads", "Workload")
PODGROUPS = Resource("scheduling.k8s.io", (), "podgroups", "PodGroup", subresources=("status",))
LEASES = Resource("coordination.k8s.io", ("v1",), "leases", "Lease")

RESOURCES: tuple[Resource, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    CONFIGMAPS,
    SECRETS,
    SERVICEACCOUNTS,
    EVENTS,
    JOBS,
    PRIORITYCLASSES,
    WORKLOADS,
    PODGROUPS,
    LEASES,
)

_BY_KEY = {resource.key: resource for resource in RESOURCES} | {resource.plural: resource for resource in RESOURCES}
_BY_KIND = {(resource.group, resource.kind): resource for resource in RESOURCES}


def by_key(name: str | Resource) -> Resource:
    """Return the resource of this plural (`jobs`) or key (`jobs.batch`).

    Raises:
        KeyError: the sandbox has no such resource.
    """
    return name if isinstance(name, Resource) else _BY_KEY[name]


def by_kind(api_version: str, kind: str) -> Resource | None:
    """Return the resource of the `apiVersion` and `kind` of an object or reference, or None if the sandbox has none."""
    group = api_version.rpartition("/")[0]
    return _BY_KIND.get((group, kind))
