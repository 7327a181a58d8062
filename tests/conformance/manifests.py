"""Manifests of Jobs and gangs, by the API of each release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.builders import pod_group, workload

if TYPE_CHECKING:
    from tests.conformance.namespace import Namespace, Obj


def indexed(name: str = "j", size: int = 2, *, finalizers: tuple[str, ...] = (), cpu: str = "1", **spec: Any) -> Obj:
    """Return an Indexed Job whose completions equal its parallelism."""
    container = {"name": "main", "image": "busybox:1", "resources": {"requests": {"cpu": cpu}}}
    template: Obj = {"spec": {"restartPolicy": "Never", "containers": [container], **spec.pop("pod_spec", {})}}
    if finalizers:
        template["metadata"] = {"finalizers": list(finalizers)}
    shape = {"completionMode": "Indexed", "completions": size, "parallelism": size, "backoffLimit": 0}
    return {"metadata": {"name": name}, "spec": {**shape, "template": template, **spec}}


def with_two_nodes(namespace: Namespace) -> Namespace:
    """Add two nodes of two CPUs to a namespace. Skip the test if the release has no gangs."""
    if namespace.release.scheduling_version is None:
        pytest.skip("the release has no Workload API")
    namespace.add_nodes(2, cpu=2)
    return namespace


def link(namespace: Namespace, name: str) -> Obj:
    """Return the part of a pod's spec that makes the pod a member of the group `name`."""
    return {"schedulingGroup": {"podGroupName": name}}


def gang(
    namespace: Namespace, name: str, size: int, *, least: int | None = None, priority: str | None = None, **spec: Any
) -> Obj:
    """Create a suspended Job and its group, and then resume the Job. Return the Job as it was created."""
    pod_spec = {**link(namespace, name), **spec.pop("pod_spec", {})}
    if priority is not None:
        pod_spec["priorityClassName"] = priority
    job = namespace.create("jobs", indexed(name, size, suspend=True, pod_spec=pod_spec, **spec))
    group(namespace, name, size if least is None else least, owner=job, priority=priority)
    namespace.patch("jobs", name, {"spec": {"suspend": False}})
    return job


def group(
    namespace: Namespace, name: str, least: int, *, owner: Obj | None = None, priority: str | None = None
) -> None:
    """Create the Workload and the PodGroup `name`."""
    objects = {
        "workloads": workload(name, least),
        "podgroups": pod_group(namespace.release, name, name, least),
    }
    if priority is not None and namespace.release.schedules_groups:
        objects["workloads"]["spec"]["podGroupTemplates"][0]["priorityClassName"] = priority
        objects["podgroups"]["spec"]["priorityClassName"] = priority
    for plural, obj in objects.items():
        if owner is not None:
            obj["metadata"]["ownerReferences"] = [owner_reference(owner)]
        namespace.create(plural, obj)


def owner_reference(job: Obj) -> Obj:
    metadata = job["metadata"]
    return {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
