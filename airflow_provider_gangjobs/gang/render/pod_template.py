"""The pod template: the manifest's, then the named parameters, then the overrides, then what a gang needs.

Named parameters go to the first container, which is the one whose exit and result are the rank's.
Expects a spec that passed validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import (
    ANNOTATION_DEFAULT_CONTAINER,
    ENV_ATTEMPT,
    ENV_RESULT_PATH,
    ENV_SIZE,
    FINALIZER_HARVEST,
    LABEL_ATTEMPT,
    LABEL_GANG,
    LABEL_TASK,
    MAIN_CONTAINER,
    RESULT_PATH,
)
from airflow_provider_gangjobs.gang.render.files import FILES_ENV, files_mount, volume_of
from airflow_provider_gangjobs.gang.render.manifest import copy_without_nulls
from airflow_provider_gangjobs.gang.render.rendezvous import env_of
from airflow_provider_gangjobs.gang.render.shape import Shape, rendezvous_of
from airflow_provider_gangjobs.kube import strategic_merge

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import Attempt
    from airflow_provider_gangjobs.gang.spec import GangSpec

Object = dict[str, Any]

_FLAT_RESOURCES: Final = frozenset({"requests", "limits", "claims"})

# parameter -> field of the container / of the pod's spec
_CONTAINER_FIELDS: Final = {
    "image": "image",
    "command": "command",
    "args": "args",
    "env_from": "envFrom",
    "image_pull_policy": "imagePullPolicy",
    "working_dir": "workingDir",
}
_POD_FIELDS: Final = {
    "priority_class": "priorityClassName",
    "service_account": "serviceAccountName",
    "node_selector": "nodeSelector",
    "affinity": "affinity",
    "tolerations": "tolerations",
    "security_context": "securityContext",
    "scheduler_name": "schedulerName",
    "termination_grace_s": "terminationGracePeriodSeconds",
}


def user_template(spec: GangSpec, manifest: Mapping[str, Any]) -> Object:
    """What the user asked for: manifest, named parameters, overrides.

    Raises:
        ValueError: an item of a list in `pod_overrides` lacks the key by which that list is merged.
    """
    user = manifest.get("spec", {}).get("template", {})
    pod: Object = dict(user.get("spec", {}))
    containers = list(pod.get("containers", [])) or [{"name": MAIN_CONTAINER}]
    containers[0] = _container(spec, containers[0])
    pod["containers"] = containers
    for parameter, name in _POD_FIELDS.items():
        if (value := getattr(spec, parameter)) is not None:
            pod[name] = copy_without_nulls(value)
    if spec.volumes is not None:
        pod["volumes"] = _merge_by_key("name", pod.get("volumes", []), copy_without_nulls(spec.volumes))
    if spec.image_pull_secrets is not None:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    template = {"metadata": dict(user.get("metadata", {})), "spec": pod}
    merged = strategic_merge.apply(template, spec.pod_overrides or {}, "PodTemplateSpec")
    return _with_main_container_first(merged, containers[0].get("name"))


def _with_main_container_first(template: Object, main: Any) -> Object:
    """A strategic merge puts new containers before those that are there; ours stays the first."""
    pod = template.get("spec") or {}
    containers = sorted(pod.get("containers", []), key=lambda container: bool(container.get("name") != main))
    return {**template, "spec": {**pod, "containers": containers}}


def gang_template(spec: GangSpec, manifest: Mapping[str, Any], shape: Shape, attempt: Attempt) -> Object:
    """The template as it is submitted, but for the pods' link to their group."""
    template: Object = copy_without_nulls(user_template(spec, manifest))
    pod: Object = template["spec"]
    known = {ENV_RESULT_PATH: RESULT_PATH, ENV_ATTEMPT: str(attempt.number), ENV_SIZE: str(shape.size)}
    env = [{"name": name, "value": value} for name, value in known.items()]
    if spec.mounts_files:
        env += FILES_ENV
        pod["volumes"] = [*pod.get("volumes", []), volume_of(spec.files, spec.uploads, job=attempt.name)]
    if rendezvous := rendezvous_of(spec, shape):
        pod.setdefault("subdomain", attempt.name)
        env += env_of(rendezvous, job=attempt.name, service=pod["subdomain"], size=shape.size)
    main = pod["containers"][0]["name"]
    for kind in ("initContainers", "containers"):
        if containers := pod.get(kind):
            pod[kind] = [_with_gang_env(container, env, with_files=spec.mounts_files) for container in containers]
    pod.setdefault("restartPolicy", "Never")
    template["metadata"] = _metadata(template["metadata"], spec, attempt, main)
    return template


def labels_of(attempt: Attempt) -> dict[str, str]:
    """Our labels of the Job and of its pods."""
    return {LABEL_GANG: attempt.name, LABEL_TASK: attempt.digest, LABEL_ATTEMPT: str(attempt.number)}


def env_list(env: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> list[Object]:
    """Env as Kubernetes writes it, from a list of that form or from name -> text or source."""
    if isinstance(env, Mapping):
        return [
            {"name": name, **copy_without_nulls(value)}
            if isinstance(value, Mapping)
            else {"name": name, "value": value}
            for name, value in env.items()
        ]
    return [copy_without_nulls(item) for item in env or ()]


def resources_of(resources: Mapping[str, Any]) -> Object:
    """Requests and limits; amounts given without either are both, so that a rank gets what it was placed for."""
    if _FLAT_RESOURCES.isdisjoint(resources):
        amounts = _amounts(resources)
        return {"requests": amounts, "limits": dict(amounts)}
    return {
        name: _amounts(value) if isinstance(value, Mapping) else copy_without_nulls(value)
        for name, value in resources.items()
    }


def _amounts(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _container(spec: GangSpec, user: Object) -> Object:
    container = dict(user)
    for parameter, name in _CONTAINER_FIELDS.items():
        if (value := getattr(spec, parameter)) is not None:
            container[name] = copy_without_nulls(value)
    if spec.command is not None and spec.args is None:
        container.pop("args", None)
    if spec.env is not None:
        container["env"] = _merge_by_key("name", container.get("env", []), env_list(spec.env))
    if spec.resources is not None:
        container["resources"] = resources_of(spec.resources)
    if spec.volume_mounts is not None:
        container["volumeMounts"] = _merge_by_key(
            "mountPath", container.get("volumeMounts", []), copy_without_nulls(spec.volume_mounts)
        )
    return container


def _merge_by_key(key: str, user: Sequence[Object], given: Sequence[Object]) -> list[Object]:
    """`user`, with those of the same key replaced by the given ones, which stand last."""
    named = {item.get(key) for item in given}
    return [item for item in user if item.get(key) not in named] + list(given)


def _with_gang_env(container: Object, env: list[Object], *, with_files: bool) -> Object:
    """The container with our variables before the user's, so that theirs may refer to ours as $(RANK)."""
    path = container.get("terminationMessagePath", RESULT_PATH)
    ours = [{**item, "value": path} if item["name"] == ENV_RESULT_PATH else item for item in env]
    result = {"terminationMessagePolicy": "FallbackToLogsOnError", **container, "env": ours + container.get("env", [])}
    if with_files:
        result["volumeMounts"] = [*container.get("volumeMounts", []), files_mount()]
    return result


def _metadata(user: Object, spec: GangSpec, attempt: Attempt, main: str) -> Object:
    finalizers = [name for name in user.get("finalizers", []) if name != FINALIZER_HARVEST]
    annotations = {ANNOTATION_DEFAULT_CONTAINER: main, **user.get("annotations", {}), **spec.annotations}
    return {
        **{name: value for name, value in user.items() if name not in {"name", "namespace"}},
        "labels": {**user.get("labels", {}), **spec.labels, **labels_of(attempt)},
        "annotations": annotations,
        "finalizers": [*finalizers, FINALIZER_HARVEST],
    }
