"""The resources of the API and their URL paths. Functions return resources whose version differs between releases."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from msgspec import Struct

SCHEDULING_GROUP = "scheduling.k8s.io"
KUEUE_GROUP = "kueue.x-k8s.io"
KUEUE_VISIBILITY_GROUP = "visibility.kueue.x-k8s.io"
JOB_SET_GROUP = "jobset.x-k8s.io"


class Resource(Struct, frozen=True):
    """One resource of the API. `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The field `apiVersion` of the objects: `batch/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of an object, or of the collection if `name` is None.

        Without a namespace, the collection spans all namespaces.

        Raises:
            ValueError: a namespaced object has no namespace, or a subresource has no object.
        """
        if name is not None and self.namespaced and namespace is None:
            raise ValueError(f"{self.plural} {name!r}: a namespace is needed")
        if subresource is not None and name is None:
            raise ValueError(f"{self.plural}/{subresource}: a name is needed")
        path = _collection(self, namespace if self.namespaced else None)
        if name is None:
            return path
        path = f"{path}/{quote(name, safe='')}"
        return path if subresource is None else f"{path}/{quote(subresource, safe='')}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


@lru_cache(maxsize=256)
def _collection(resource: Resource, namespace: str | None) -> str:
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
    parts += [resource.plural] if namespace is None else ["namespaces", namespace, resource.plural]
    return "/" + "/".join(quote(part, safe="") for part in parts)


JOBS = Resource("batch", "v1", "jobs", "Job")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
JOB_SETS = Resource(JOB_SET_GROUP, "v1alpha2", "jobsets", "JobSet")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


def workloads(version: str) -> Resource:
    """Return the Workloads of this version of the Workload API."""
    return Resource(SCHEDULING_GROUP, version, "workloads", "Workload")


def podgroups(version: str) -> Resource:
    """Return the PodGroups of this version of the Workload API."""
    return Resource(SCHEDULING_GROUP, version, "podgroups", "PodGroup")
