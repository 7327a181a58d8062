"""Plans how many pods a sync creates or deletes, and renders a pod from the template of the Job. Pure.

As in Kubernetes, one sync either creates or deletes pods, never both, and at most 500 of them. As `GetPodFromTemplate`
does, `render_pod` copies labels, annotations, finalizers and the spec of the template, and adds an owner reference, the
tracking finalizer and an index. The Job controller never removes finalizers of other parties.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job import indexed_job
from gangjobs_sandbox.controllers.job.assessment import Assessment, is_indexed, is_suspended
from gangjobs_sandbox.controllers.job.indexed_job import ANNOTATION_INDEX, Indexes, first_free, index_of, valid_index
from gangjobs_sandbox.controllers.job.pods import FINALIZER_TRACKING, removal_order, replaces_failed_only
from gangjobs_sandbox.controllers.meta import Obj, controller_ref, name_of, namespace_of
from gangjobs_sandbox.store import objects_copy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gangjobs_sandbox.controllers.meta import Obj


ENV_INDEX = "JOB_COMPLETION_INDEX"

_GENERATED_PREFIX_CHARACTERS_MAX = 58
"""A generated name has 63 characters, of which five are random."""


_INDEX_FIELD = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{ANNOTATION_INDEX}']"}
PODS_PER_SYNC_MAX = 500


def render_pod(
    job: Mapping[str, Any], *, index: int | None = None, annotations: Mapping[str, str] | None = None
) -> Obj:
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


def _prefix(job_name: str, index: int) -> str:
    suffix = f"-{index}-"
    return job_name[: _GENERATED_PREFIX_CHARACTERS_MAX - len(suffix)] + suffix


@dataclass(frozen=True)
class Plan:
    """The pods that one sync deletes or creates."""

    delete: list[Obj] = field(default_factory=list)
    create: list[int | None] = field(default_factory=list)
    """One entry for each pod to create: its index, or None in a Job without indexes."""
    retry_after_s: float | None = None
    """The remaining back-off in seconds, if it delays the creation."""


def plan(job: Obj, assessment: Assessment, now: datetime) -> Plan:
    """Compare the active pods with the number of wanted pods."""
    if is_suspended(job):
        return Plan(delete=removal_order(assessment.active_pods))
    wanted = _wanted(job, assessment)
    surplus = _surplus(job, assessment.active_pods, assessment.active - wanted)
    if surplus:
        return Plan(delete=surplus[:PODS_PER_SYNC_MAX])
    missing = wanted - assessment.active
    if replaces_failed_only(job):
        missing -= assessment.terminating
    if missing <= 0:
        return Plan()
    if job["spec"].get("backoffLimitPerIndex") is None:
        remaining_s = assessment.backoff.remaining_s(now)
        if remaining_s > 0:
            return Plan(retry_after_s=remaining_s)
    missing = min(missing, PODS_PER_SYNC_MAX)
    return _create_indexes(job, assessment, missing, now) if is_indexed(job) else Plan(create=[None] * missing)


def _wanted(job: Obj, assessment: Assessment) -> int:
    """Return the number of active pods that the Job should have now."""
    parallelism: int = job["spec"].get("parallelism", 1)
    completions: int | None = job["spec"].get("completions")
    if completions is None:
        # A work-queue Job starts no new pod after the first success. Its running pods may finish.
        return assessment.active if assessment.succeeded > 0 else parallelism
    return max(min(completions - assessment.succeeded, parallelism), 0)


def _surplus(job: Obj, active_pods: list[Obj], count: int) -> list[Obj]:
    """Return the pods to delete: those without a valid index, duplicates of an index, and then the excess."""
    if count <= 0 and (not is_indexed(job) or _have_unique_indexes(active_pods, job["spec"]["completions"])):
        return []
    surplus: list[Obj] = []
    rest = removal_order(active_pods)
    if is_indexed(job):
        surplus = _without_own_index(rest, job["spec"]["completions"])
        gone = {id(pod) for pod in surplus}
        rest = [pod for pod in rest if id(pod) not in gone]
    return surplus + rest[: max(count - len(surplus), 0)]


def _have_unique_indexes(pods: list[Obj], completions: int) -> bool:
    """Return whether each pod has a valid index of its own. This common case needs no sorting."""
    indexes = {valid_index(pod, completions) for pod in pods}
    return None not in indexes and len(indexes) == len(pods)


def _without_own_index(pods: list[Obj], completions: int) -> list[Obj]:
    """Return the pods to delete, in removal order. The last pod of each index stays."""
    taken: set[int] = set()
    without: list[Obj] = []
    for pod in reversed(pods):
        index = valid_index(pod, completions)
        if index is None or index in taken:
            without.append(pod)
        else:
            taken.add(index)
    return without[::-1]


def _create_indexes(job: Obj, assessment: Assessment, missing: int, now: datetime) -> Plan:
    indexes = assessment.indexes
    assert indexes is not None, "only an Indexed Job has indexes to create"
    taken = indexes.succeeded | _indexes_of(assessment.active_pods)
    if replaces_failed_only(job):
        taken |= _indexes_of(assessment.terminating_pods)
    if indexes.failed is not None:
        taken |= indexes.failed
    free = first_free(taken, missing, job["spec"]["completions"])
    if indexes.replaceable is None:
        return Plan(create=list(free))
    waits = {index: indexed_job.remaining_s(indexes.replaceable.get(index), now) for index in free}
    ready: list[int | None] = [index for index, wait_s in waits.items() if wait_s == 0]
    if ready or not waits:
        return Plan(create=ready)
    return Plan(retry_after_s=min(waits.values()))


def _indexes_of(pods: list[Obj]) -> Indexes:
    return Indexes.of(index for pod in pods if (index := index_of(pod)) is not None)
