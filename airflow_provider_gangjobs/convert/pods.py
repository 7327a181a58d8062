"""From a pod template to the parameters that render it: named parameters, and `pod_overrides` for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.host_names import replace_host_names
from airflow_provider_gangjobs.convert.secret_values import move_secrets
from airflow_provider_gangjobs.gang.render.pod_template import (
    CONTAINER_FIELDS,
    POD_FIELDS,
    RENDEZVOUS_ENV,
    merge_pod_template,
    resources_of,
)
from airflow_provider_gangjobs.gang.render.user_manifest import main_container_name
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.validation.parsed_spec import ParsedSpec, check_structure
from airflow_provider_gangjobs.kube.well_known import DEFAULT_CONTAINER, MAIN_CONTAINER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from airflow_provider_gangjobs.convert.task import Part, Task

_CONTAINER: Final = {**CONTAINER_FIELDS, "env": "env", "resources": "resources", "volume_mounts": "volumeMounts"}
_POD: Final = {
    **{name.removesuffix("_s"): field for name, field in POD_FIELDS.items()},
    "volumes": "volumes",
    "image_pull_secrets": "imagePullSecrets",
}
_DEFAULTS: Final = {
    "dnsPolicy": "ClusterFirst",
    "restartPolicy": "Never",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "terminationMessagePath": "/dev/termination-log",
}
"""What Kubernetes or the provider takes if the field of the pod or the container is missing."""
_OF_POD: Final = ("name", "namespace", "creationTimestamp")
_OF_GANG: Final = ("subdomain", "hostname", "setHostnameAsFQDN")


def require_structure(task: Task, spec: dict[str, Any]) -> None:
    """Check that the spec of a Job has the types of Kubernetes, on which all other functions rely.

    Raises:
        ConversionError: it has others, or no container.
    """
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}
    for problem in check_structure(ParsedSpec(GangSpec(manifest=job))):
        raise task.document.refusal(problem)


def pod_parameters(task: Task, part: Part, names: Collection[str]) -> dict[str, Any]:
    """Return the parameters that render the template of a part, without those that it does not need.

    :param names: The parameters that are possible. What they would say is in `pod_overrides` without them.
    """
    template = part.spec["template"]
    metadata, pod = dict(template.get("metadata", {})), _without_defaults(template["spec"])
    metadata = {name: value for name, value in metadata.items() if name not in _OF_POD}
    policy = pod.get("restartPolicy")
    if policy == "Always" or (policy and task.parameters.get("gang") != "off"):
        task.note(f"restartPolicy was {policy}, with which the kubelet starts one rank again alone: use retries")
        del pod["restartPolicy"]
    for name in _OF_GANG if task.has_rendezvous else ():
        if name in pod:
            task.note(f"{name} was {pod.pop(name)}: the gang has a Service of its own for the names of its ranks")
    annotations: dict[str, Any] = task.parameters.get("annotations") or metadata.get("annotations") or {}
    main = main_container_name(template, {}, annotations)
    containers = [_without_defaults(one) for one in pod.pop("containers")]
    for each in (*containers, *pod.get("initContainers", ())):
        each |= {"env": list(_kept_env(task, each["env"]))} if "env" in each else {}
        move_secrets(task, each)
        replace_host_names(task, part, each)
    container = next(one for one in containers if one["name"] == main)
    containers.remove(container)
    if main != MAIN_CONTAINER and DEFAULT_CONTAINER not in annotations:
        is_named = f"'containerName': '{main}'" in str(task.document.data)
        if is_named or any(one["name"] == MAIN_CONTAINER for one in containers):
            place = task.parameters if "annotations" in names else metadata
            place["annotations"] = {**annotations, DEFAULT_CONTAINER: main}
        else:
            task.note(f"The container {main} is named {MAIN_CONTAINER} here")
            main = MAIN_CONTAINER
    pod.setdefault("serviceAccountName", pod.pop("serviceAccount", None))
    found = {name: container.pop(field) for name, field in _CONTAINER.items() if container.get(field)}
    found |= {name: pod.pop(field) for name, field in _POD.items() if pod.get(field) and name in names}
    found |= {name: simplify(found[name]) for name, simplify in _SIMPLER.items() if name in found}
    rest = _exact({**_without_defaults(container), "name": main}, _merged_container)
    spec = _exact(_without_defaults(pod), _merged_pod)
    if patches := ([rest] if len(rest) > 1 or main != MAIN_CONTAINER else []) + containers:
        spec["containers"] = patches
    overrides = _without_defaults({"metadata": _without_defaults(metadata), "spec": spec})
    return found | ({"pod_overrides": overrides} if overrides else {})


def _without_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {}, [], _DEFAULTS.get(name))}


def _kept_env(task: Task, env: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the variables without those of the rendezvous."""
    for item in env:
        name, value = str(item.get("name")), str(item.get("value", "set"))
        if task.has_rendezvous and name in RENDEZVOUS_ENV:
            task.note(f"{name} was {value}: each rank has it from the gang", "env")
            if name == "MASTER_PORT" and value.isdigit() and int(value) != Rendezvous().port:
                task.parameters["rendezvous"] = Rendezvous(int(value))
            if name == "WORLD_SIZE" and value != str(task.size):
                task.note(f"WORLD_SIZE is {task.size}, the number of pods: a launcher counts processes itself", "env")
        else:
            yield item


def _env(env: list[dict[str, Any]]) -> Any:
    """Return a mapping of the variables, or the list if the mapping cannot say the same."""
    sources = ("value", "valueFrom")
    is_plain = all(item.keys() <= {"name", *sources} and not all(map(item.get, sources)) for item in env)
    if not is_plain or len({item["name"] for item in env}) < len(env):
        return env
    return {one["name"]: {"valueFrom": one["valueFrom"]} if "valueFrom" in one else one.get("value", "") for one in env}


def _resources(resources: dict[str, Any]) -> dict[str, Any]:
    """Return only the limits if the requests are the same, as they are by default."""
    limits: dict[str, Any] = resources.get("limits", {})
    requests = {**limits, **resources.get("requests", {})}
    is_same = resources_of(limits) == resources_of(requests) and "claims" not in resources
    return limits if limits and is_same else resources


_SIMPLER: Final[Mapping[str, Callable[[Any], Any]]] = {
    "env": _env,
    "resources": _resources,
    "image_pull_secrets": lambda secrets: [one["name"] for one in secrets],
}


def _exact(fields: dict[str, Any], merge: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return the patch that gives the fields, also a list with several items of one merge key.

    :param merge: Returns what a patch gives.
    """
    merged = merge(fields)
    return {name: value if merged[name] == value else [{"$patch": "replace"}, *value] for name, value in fields.items()}


def _merged_pod(spec: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = merge_pod_template({}, {"spec": spec})["spec"]
    return merged


def _merged_container(container: dict[str, Any]) -> dict[str, Any]:
    before = {"spec": {"containers": [{"name": container["name"]}]}}
    merged: dict[str, Any] = merge_pod_template(before, {"spec": {"containers": [container]}})["spec"]["containers"][0]
    return merged
