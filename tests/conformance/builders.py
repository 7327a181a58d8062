"""Objects with defaults. No controller acts on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangjobs_sandbox.releases import Release

Obj = dict[str, Any]
CONTAINER: Obj = {"name": "main", "image": "busybox:1"}


def config_map(name: str = "a", *, finalizers: list[str] | None = None, **data: str) -> Obj:
    metadata: Obj = {"name": name} | ({"finalizers": finalizers} if finalizers else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(name: str = "a", *, labels: dict[str, str] | None = None, container: Obj | None = None, **spec: Any) -> Obj:
    """Return a pod that no scheduler places."""
    metadata: Obj = {"name": name} | ({"labels": labels} if labels else {})
    containers = [CONTAINER | (container or {})]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "nobody", "containers": containers, **spec},
    }


def job(name: str = "a", *, template: Obj | None = None, pod_spec: Obj | None = None, **spec: Any) -> Obj:
    """Return a suspended Job."""
    inner = {"restartPolicy": "Never", "containers": [dict(CONTAINER)], **(pod_spec or {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"suspend": True, "template": {**(template or {}), "spec": inner}, **spec},
    }


INDEXED = {"completionMode": "Indexed", "completions": 2, "parallelism": 2}


def gang(least: int = 2) -> Obj:
    """Return the gang policy of a group."""
    return {"schedulingPolicy": {"gang": {"minCount": least}}}


def workload(name: str = "w", least: int = 2) -> Obj:
    return {"metadata": {"name": name}, "spec": {"podGroupTemplates": [{"name": "workers", **gang(least)}]}}


def pod_group(release: Release, name: str = "g", workload: str = "w", least: int = 2) -> Obj:
    if release.schema == "1.36":
        link: Obj = {"podGroupTemplateRef": {"workload": {"workloadName": workload, "podGroupTemplateName": "workers"}}}
    else:
        link = {"workloadRef": {"workloadName": workload, "templateName": "workers"}}
    return {"metadata": {"name": name}, "spec": {**gang(least), **link}}
