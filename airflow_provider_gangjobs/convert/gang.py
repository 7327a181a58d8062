"""From the Jobs of a workload to the parameters of a task: the shape, the queue and the scheduler, and the roles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.beforehand import needs, use_files
from airflow_provider_gangjobs.convert.host_names import role_name
from airflow_provider_gangjobs.convert.pods import pod_parameters, require_structure
from airflow_provider_gangjobs.convert.secret_values import leave_secrets_out
from airflow_provider_gangjobs.gang import schedulers
from airflow_provider_gangjobs.gang.render.placement import ineligibility_reason, is_single_pod, shape_of
from airflow_provider_gangjobs.gang.spec import GangSpec, RoleSpec
from airflow_provider_gangjobs.gang.validation.job_checks import PARTIAL_ADMISSION
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_PRIORITY, LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.parameters.declaration import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.convert.documents import Document
    from airflow_provider_gangjobs.convert.task import Part, Task

_SHAPE: Final = ("completions", "parallelism", "completionMode")
_SET_BY_PROVIDER: Final = ("selector", "manualSelector", "managedBy", "podReplacementPolicy", "scheduling")
_QUEUE: Final = {LABEL_KUEUE_QUEUE: "queue_name", LABEL_KUEUE_PRIORITY: "queue_priority"}
_LINKS: Final = {
    **{scheduler.link[1]: scheduler.name for scheduler in schedulers.SEPARATE_SCHEDULERS},
    schedulers.LABEL_APPLICATION: "yunikorn",
    schedulers.YUNIKORN_ANNOTATION_GROUPS: "yunikorn",
    schedulers.YUNIKORN_ANNOTATION_PARAMETERS: "yunikorn",
}
"""The scheduler by a label or an annotation that links pods to their group. The provider sets its own."""
_TOPOLOGY: Final = re.compile(r"kueue\.x-k8s\.io/podset-(required|preferred)-topology")
_LEFT_OUT: Final = (
    (re.compile(re.escape(PARTIAL_ADMISSION)), "all pods of a gang start together"),
    (
        re.compile(r"kueue\.x-k8s\.io/(pod-group|retriable-in-group).*"),
        "give the pods of the group as roles of one gang",
    ),
    (re.compile(r"alpha\.jobset\.sigs\.k8s\.io/.*"), "give affinity, or topology in a queue of Kueue"),
)
"""Labels and annotations with which a controller would do something else to the pods of a gang, and the cure."""
_OF_SERVER: Final = re.compile(
    r"batch\.kubernetes\.io/.*|controller-uid|job-name|kubectl\.kubernetes\.io/last-applied-configuration"
)
_SHARED: Final = {"priorityClassName": "priority_class", "schedulerName": "scheduler_name"}
"""Fields of the pods that all roles of a gang share, and their parameters."""


def set_parameters(task: Task, config_maps: Mapping[str, Document]) -> None:
    """Set the parameters of the task from its parts.

    :param config_maps: The ConfigMaps of the files by name.

    Raises:
        ConversionError: a part has another structure than that of Kubernetes, or no part has pods.
    """
    for part in task.parts:
        require_structure(task, part.spec)
        if not part.size:
            task.note(f"{part.name} is left out: it has no pods")
    task.parts = [part for part in task.parts if part.size]
    if not task.parts:
        remedy = "Give it one or more by replicas or completions, or leave the object out"
        raise task.document.error(f"{task.document.kind} has no pods", remedy)
    use_files(task, config_maps)
    if len(task.parts) > 1:
        _set_roles(task)
    else:
        _set_shape(task, task.parts[0])
        template = task.parts[0].spec["template"]
        _set_metadata(task, template.get("metadata", {}))
        _set_scheduler(task, template["spec"])
        task.parameters |= pod_parameters(task, task.parts[0], set(PARAMETERS))
    for name in [name for name in task.parameters if name != "ssh_secret"]:
        if (value := leave_secrets_out(task, task.parameters.pop(name), name)) is not None:
            task.parameters[name] = value
    if names := list(dict.fromkeys(task.secret_variables)):
        values = " ".join(f'--from-literal={name}="${name}"' for name in names)
        create = f"kubectl create secret generic{task.in_namespace} {task.task_id}-env {values}"
        task.note(f"The values of these variables are secret and left out: {create}", "env")
    if found := needs(task):
        task.note(f"These must exist beforehand: kubectl get{task.in_namespace} {' '.join(found)}")


def _set_shape(task: Task, part: Part) -> None:
    """Set the number of ranks and the limits, and the fields of the Job that no parameter stands for."""
    spec = {name: value for name, value in part.spec.items() if name not in ("template", *_SET_BY_PROVIDER)}
    if claims := part.spec.get("scheduling", {}).get("resourceClaims"):
        spec["scheduling"] = {"resourceClaims": claims}
    for name in _SET_BY_PROVIDER:
        if part.spec.get(name) not in (None, "Failed", spec.get(name)):
            task.note(f"{name} is left out: the provider sets it")
    backoff = {"backoffLimit": spec.pop("backoffLimit")} if "backoffLimit" in spec else {}
    asked = {**spec, **backoff} if "successPolicy" in spec else spec
    shape = shape_of(GangSpec(manifest={"spec": asked}), {"spec": asked})
    if (reason := ineligibility_reason(shape)) and not is_single_pod(shape):
        task.parameters["gang"] = "off"
        task.note(f"No gang, because {reason}. For a gang, give workers in place of manifest", "gang")
    else:
        spec = {name: value for name, value in spec.items() if name not in _SHAPE}
    if task.is_gang:
        task.parameters["workers"] = shape.size
    has_names = task.is_gang or "subdomain" in part.spec["template"]["spec"]
    asks_for_it = task.parameters.get("launch") == "mpi" or "rendezvous" in task.parameters
    task.has_rendezvous = asks_for_it or (shape.indexed and shape.size > 1 and has_names)
    if shape.indexed and shape.size > 1 and not has_names:
        task.parameters["rendezvous"] = False
    task.take_limits(spec)
    if spec and (not task.is_gang or "successPolicy" in spec):
        spec |= backoff
    else:
        if not backoff:
            task.note("backoffLimit was 6 by default, and is 0: give retries if a failed task shall run again")
        task.take_limits(backoff)
    if spec:
        task.parameters["manifest"] = {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def _set_metadata(task: Task, of_pods: dict[str, Any]) -> None:
    """Move the labels and annotations of the object and of its pods into parameters, with those of queues."""
    metadata, given = task.document.data.get("metadata", {}), task.parameters
    if namespace := metadata.get("namespace"):
        given["namespace"] = namespace
    for kind in ("labels", "annotations"):
        own, kept = metadata.get(kind) or {}, {}
        others = {**(of_pods.pop(kind, None) or {}), **given.pop(kind, {})}
        for name, value in {**own, **others}.items():
            found = _TOPOLOGY.fullmatch(name)
            if name in _QUEUE:
                given[_QUEUE[name]] = value
            elif found and "queue_name" in given and "gang" not in given:
                given["topology"] = f"{found[1]}:{value}"
            elif name in _LINKS and task.is_gang:
                given["gang_scheduler"] = _LINKS[name]
                task.note("The provider makes the group of the pods", "gang_scheduler")
            elif _is_kept(task, name):
                kept[name] = value
        if kept:
            given[kind] = kept
        if own.keys() & kept.keys() - others.keys():
            task.note(f"The pods have the {kind} of the {task.document.data['kind']}, too", kind)


def _is_kept(task: Task, name: str) -> bool:
    """Return whether the pods keep a label or an annotation. What is left out is named, but for what servers set."""
    cure = next((cure for pattern, cure in _LEFT_OUT if pattern.fullmatch(name)), None)
    if cure is None or (name == PARTIAL_ADMISSION and not task.is_gang):
        return not _OF_SERVER.fullmatch(name)
    task.note(f"{name} is left out: {cure}")
    return False


def _set_scheduler(task: Task, pod: dict[str, Any]) -> None:
    if not task.is_gang:
        return
    owner = schedulers.owner_of(pod.get("schedulerName"))
    if owner is not None:
        task.parameters["gang_scheduler"] = owner.name
        if pod["schedulerName"] == owner.scheduler_names[0]:
            del pod["schedulerName"]
    if pod.pop("schedulingGroup", None):
        task.note("schedulingGroup is left out: the provider makes the group of the pods")


def _set_roles(task: Task) -> None:
    task.has_rendezvous = True
    _set_metadata(task, {})
    shared: dict[str, Any] = {}
    for part in task.parts:
        pod, metadata = part.spec["template"]["spec"], part.spec["template"].get("metadata", {})
        for kind in ("labels", "annotations"):
            metadata[kind] = {name: each for name, each in metadata.get(kind, {}).items() if _is_kept(task, name)}
        shared |= {field: pod.pop(field) for field in _SHARED if field in pod}
    _set_scheduler(task, shared)
    task.parameters |= {_SHARED[field]: value for field, value in shared.items() if value != "default-scheduler"}
    roles: dict[str, Any] = {}
    for part in task.parts:
        given = {"workers": part.size} if part.size > 1 else {}
        given |= pod_parameters(task, part, set(RoleSpec.__struct_fields__))
        roles[role_name(part.name)] = {name: given[name] for name in PARAMETERS if name in given}
    if len(roles) < len(task.parts):
        raise task.document.error("has roles whose names begin alike", "Shorten them to 20 characters", "name")
    task.parameters["roles"] = roles
