"""Workloads and PodGroups that the Job controller creates itself (KEP-5547, gate WorkloadWithJob), as in 1.36 and 1.37.

1.36 makes a gang of any Indexed Job whose completions equal its parallelism. 1.37 follows `spec.scheduling`, and gives
every other Job a group without a gang policy. In both releases the controller creates nothing for a pod template that
names its group, and in 1.37 nothing for a Job that has a controller. Delegation by annotation (JobSet) is not
reproduced.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job.assessment import is_indexed
from gangjobs_sandbox.controllers.job.pod_control import COMPONENT
from gangjobs_sandbox.controllers.meta import (
    Obj,
    controller_of,
    controller_ref,
    find_condition,
    name_of,
    namespace_of,
    owner_ref,
    uid_of,
)
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry.metadata import SUFFIX_ALPHABET
from gangjobs_sandbox.releases import POD_LINK, Release, min_count_of
from gangjobs_sandbox.resources import PODGROUPS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.registry import Registry

log = logging.getLogger(__name__)

_NAME_CHARACTERS_MAX = 253
_COPIED_FIELDS = (
    "schedulingPolicy",
    "schedulingConstraints",
    "disruptionMode",
    "resourceClaims",
    "priorityClassName",
)


class WorkloadWithJob:
    """Finds or creates the objects of one Job at a time. Only for releases that have the integration."""

    def __init__(self, registry: Registry) -> None:
        assert registry.release.has_pod_groups, "the integration came with PodGroups, in 1.36"
        self._registry = registry
        self._release = registry.release

    def ensure(self, job: Obj, *, has_pods: bool) -> str | None:
        """Find or create Workload and PodGroup. Returns the PodGroup's name, or None for pods without a group.

        The method creates objects only for a Job that has never started. Raises StatusError; the Job gets no pods until
        a retry succeeds.
        """
        if not is_eligible(job, self._release):
            return None
        is_new = _is_new(job, has_pods=has_pods)
        workload = self._ensure_workload(job, is_new=is_new)
        if workload is None:
            return None
        pod_group = self._ensure_pod_group(job, workload, is_new=is_new)
        if pod_group is None:
            return None
        if self._release.min_count_mutable:
            self._follow_min_count(job, workload, pod_group)
        return name_of(pod_group)

    def _ensure_workload(self, job: Obj, *, is_new: bool) -> Obj | None:
        found = [one for one in self._registry.list(WORKLOADS, namespace_of(job)) if _names_job(one, job)]
        if self._release.min_count_mutable:
            found = [one for one in found if _is_controlled_by(one, job)]
        if not found:
            return self._create_workload(job) if is_new else None
        if len(found) > 1 or not _is_controlled_by(found[0], job) or len(found[0]["spec"]["podGroupTemplates"]) != 1:
            log.info(
                "%s/%s: the Job's Workload cannot be used, so its pods get no group",
                namespace_of(job),
                name_of(job),
            )
            return None
        return found[0]

    def _create_workload(self, job: Obj) -> Obj:
        template = compile_template(job, self._release)
        body = {
            "metadata": {"name": workload_name(job), "ownerReferences": [controller_ref(job)]},
            "spec": {
                "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": name_of(job)},
                "podGroupTemplates": [template],
            },
        }
        try:
            created = self._registry.create(WORKLOADS, body, namespace_of(job))
        except StatusError as exc:
            if self._release.min_count_mutable:
                message = f"Failed to create Workload for Job {name_of(job)}: {exc.message}"
                self._record_event(job, "FailedWorkloadCreate", message, kind="Warning")
            raise
        self._record_event(job, "WorkloadCreated", f"Created Workload {name_of(created)} for Job {name_of(job)}")
        return created

    def _ensure_pod_group(self, job: Obj, workload: Obj, *, is_new: bool) -> Obj | None:
        groups = self._registry.list(PODGROUPS, namespace_of(job))
        found = [group for group in groups if _workload_of(group) == name_of(workload)]
        if not found:
            may_create = is_new or self._release.infers_gangs
            return self._create_pod_group(job, workload) if may_create else None
        if len(found) > 1 or not _is_controlled_by(found[0], job):
            log.info(
                "%s/%s: the Job's PodGroup cannot be used, so its pods get no group",
                namespace_of(job),
                name_of(job),
            )
            return None
        return found[0]

    def _create_pod_group(self, job: Obj, workload: Obj) -> Obj:
        template = workload["spec"]["podGroupTemplates"][0]
        spec = {field: template[field] for field in _COPIED_FIELDS if template.get(field) is not None}
        body = {
            "metadata": {
                "name": pod_group_name(name_of(workload), template["name"]),
                "ownerReferences": [controller_ref(job), owner_ref(workload)],
            },
            "spec": {**_link(name_of(workload), template["name"], self._release), **spec},
        }
        created = self._registry.create(PODGROUPS, body, namespace_of(job))
        if not self._release.infers_gangs:
            self._record_event(job, "PodGroupCreated", f"Created PodGroup {name_of(created)} for Job {name_of(job)}")
        return created

    def _follow_min_count(self, job: Obj, workload: Obj, pod_group: Obj) -> None:
        """Set the gang size of an elastic Job to the size that the Job asks for. Changes by others are reverted."""
        template = compile_template(job, self._release)
        wanted = min_count_of(template)
        if wanted is None:
            return
        policy = {"gang": {"minCount": wanted}}
        stored = workload["spec"]["podGroupTemplates"][0]
        if min_count_of(stored) not in (None, wanted):
            templates = [{**stored, "schedulingPolicy": policy}]
            patch = {"spec": {"podGroupTemplates": templates}}
            self._registry.patch(WORKLOADS, name_of(workload), namespace_of(job), patch)
        if min_count_of(pod_group) not in (None, wanted):
            self._registry.patch(
                PODGROUPS, name_of(pod_group), namespace_of(job), {"spec": {"schedulingPolicy": policy}}
            )

    def _record_event(self, job: Obj, reason: str, message: str, *, kind: str = "Normal") -> None:
        self._registry.record_event(job, kind, reason, message, COMPONENT)


def is_eligible(job: Mapping[str, Any], release: Release) -> bool:
    """Return whether the controller creates a group for the Job's pods."""
    spec = job["spec"]
    if spec["template"]["spec"].get(POD_LINK) is not None:
        return False
    if not release.infers_gangs:
        return controller_of(job) is None
    parallelism: int = spec.get("parallelism", 1)
    return is_indexed(job) and parallelism > 1 and spec.get("completions") == parallelism


def compile_template(job: Mapping[str, Any], release: Release) -> Obj:
    """Return the only pod group template of the Job's Workload."""
    template: Obj = {"name": f"{name_of(job)}-pgt-0"}
    if release.infers_gangs:
        return {**template, "schedulingPolicy": {"gang": {"minCount": job["spec"]["parallelism"]}}}
    scheduling = job["spec"].get("scheduling") or {}
    policy = scheduling.get("schedulingPolicy") or {"basic": {}}
    if policy.get("gang") is not None:
        # The Job keeps its own value: its size may change, and the gang size follows.
        min_count = policy["gang"].get("minCount") or max(job["spec"].get("parallelism", 1), 1)
        policy = {"gang": {"minCount": min_count}}
    template["schedulingPolicy"] = policy
    for field in ("schedulingConstraints", "disruptionMode", "resourceClaims"):
        if scheduling.get(field) is not None:
            template[field] = scheduling[field]
    priority_class = job["spec"]["template"]["spec"].get("priorityClassName")
    return {**template, "priorityClassName": priority_class} if priority_class else template


def workload_name(job: Mapping[str, Any]) -> str:
    """Return `<job>-<hash of the UID>`, so that another Job of the same name gets another Workload."""
    suffix = _hash_text(uid_of(job))
    return f"{name_of(job)[: _NAME_CHARACTERS_MAX - len(suffix) - 1]}-{suffix}"


def pod_group_name(workload: str, template: str) -> str:
    """Return `<workload>-<template>-<hash of both>`. If both are long, each is cut to half of the space."""
    suffix = _hash_text(workload + template)
    room = _NAME_CHARACTERS_MAX - len(suffix) - 2
    workload_room = max(room - room // 2, room - len(template))
    workload = workload[:workload_room]
    return f"{workload}-{template[: room - len(workload)]}-{suffix}"


def _hash_text(text: str) -> str:
    """Return the 32-bit FNV-1a hash, in letters that form no words."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return "".join(SUFFIX_ALPHABET[ord(digit) % len(SUFFIX_ALPHABET)] for digit in str(value))


def _link(workload: str, template: str, release: Release) -> Obj:
    if release.infers_gangs:
        return {"podGroupTemplateRef": {"workload": {"workloadName": workload, "podGroupTemplateName": template}}}
    return {"workloadRef": {"workloadName": workload, "templateName": template}}


def _workload_of(pod_group: Mapping[str, Any]) -> str | None:
    spec = pod_group["spec"]
    link = spec.get("workloadRef") or (spec.get("podGroupTemplateRef") or {}).get("workload") or {}
    name: str | None = link.get("workloadName")
    return name


def _names_job(workload: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Return whether the Workload names the Job.

    As in Kubernetes, the Workload of an earlier Job of this name does too.
    """
    ref = workload["spec"].get("controllerRef") or {}
    return (ref.get("apiGroup"), ref.get("kind"), ref.get("name")) == ("batch", "Job", name_of(job))


def _is_controlled_by(obj: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    owner = controller_of(obj)
    return owner is not None and owner["uid"] == uid_of(job)


def _is_new(job: Mapping[str, Any], *, has_pods: bool) -> bool:
    """Return whether the Job was never started or suspended. Jobs that are older than the gate are not changed."""
    status = job.get("status") or {}
    counted = status.get("startTime") or status.get("succeeded") or status.get("failed")
    return not has_pods and not counted and find_condition(job, "Suspended") is None
