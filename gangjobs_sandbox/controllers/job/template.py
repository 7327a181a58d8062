"""Renders a pod from the template of a Job, with an owner reference, the tracking finalizer and an index. Pure.

As `GetPodFromTemplate` does, `render` copies labels, annotations, finalizers and the spec of the template. The Job
controller never removes finalizers of other parties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job.indexes import ANNOTATION_INDEX
from gangjobs_sandbox.controllers.job.pods import FINALIZER_TRACKING
from gangjobs_sandbox.controllers.meta import Obj, controller_ref, name_of, namespace_of
from gangjobs_sandbox.store import objects_copy

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_INDEX = "JOB_COMPLETION_INDEX"

_GENERATED_PREFIX_CHARACTERS_MAX = 58
"""A generated name has 63 characters, of which five are random."""


def render(job: Mapping[str, Any], *, index: int | None = None, annotations: Mapping[str, str] | None = None) -> Obj:
    """Build the pod to create for the Job or for one of its indexes. The API server completes the name."""
    template = job["spec"]["template"]
    template_meta = template.get("metadata") or {}
    finalizers = list(template_meta.get("finalizers") or ())
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name_of(job)}-" if index is None else _prefix(name_of(job), index),
            "namespace": namespace_of(job),
            "labels": dict(template_meta.get("labels") or {}),
            "annotations": {**(template_meta.get("annotations") or {}), **(annotations or {})},
            "finalizers": finalizers if FINALIZER_TRACKING in finalizers else [*finalizers, FINALIZER_TRACKING],
            "ownerReferences": [controller_ref(job)],
        },
        "spec": objects_copy(template["spec"]),
    }
    if index is not None:
        _set_index(pod, name_of(job), index)
    return pod


def _set_index(pod: Obj, job_name: str, index: int) -> None:
    pod["metadata"]["annotations"][ANNOTATION_INDEX] = str(index)
    pod["metadata"]["labels"][ANNOTATION_INDEX] = str(index)
    pod["spec"]["hostname"] = f"{job_name}-{index}"
    for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]):
        env: list[Obj] = container.setdefault("env", [])
        if not any(variable.get("name") == ENV_INDEX for variable in env):
            env.append({"name": ENV_INDEX, "valueFrom": {"fieldRef": _INDEX_FIELD.copy()}})


_INDEX_FIELD = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{ANNOTATION_INDEX}']"}


def _prefix(job_name: str, index: int) -> str:
    suffix = f"-{index}-"
    return job_name[: _GENERATED_PREFIX_CHARACTERS_MAX - len(suffix)] + suffix
