"""Pod template: the manifest's template, the named parameters, the overrides, and the fields that a gang needs.

They are applied in this order. Named parameters apply to the main container, whose exit code and result are those of
the rank, and which is the first one of the rendered pods. All functions expect a spec that passed validation.

The ranks find each other by a headless Service, which gives each rank the name `<job>-<rank>.<service>`, also before
its pod is ready. The variables are those of torch.distributed (MASTER_ADDR, ...) and torchrun (PET_...), and NNODES and
NODE_RANK.

The overrides are a strategic merge patch, as of `kubectl patch`: a list with a merge key is merged item by item, and
`$patch` deletes or replaces. New items come last. The rules follow `k8s.io/apimachinery/pkg/util/strategicpatch`, whose
other directives are refused. The result shares unchanged parts with the arguments, so treat it as immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.checkpoints import folder_of, place_of, with_checkpoints
from airflow_provider_gangjobs.gang.render.files import FILES_ENV, FILES_MOUNT, volume_of, with_supervisor
from airflow_provider_gangjobs.gang.render.placement import Shape, rendezvous_of, shape_of
from airflow_provider_gangjobs.gang.render.user_manifest import copy_without_nulls, main_container_name
from airflow_provider_gangjobs.gang.spec import RESULT_HELPER_FILE, spec_of_role
from airflow_provider_gangjobs.kube import well_known as keys

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import Attempt
    from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous, RoleRanks
    from airflow_provider_gangjobs.kube.views import Object


class _ListRule(Struct, frozen=True):
    """How a list field is merged: by the key of its items, or as a set of primitives if `key` is None."""

    key: str | None
    item: str = ""


# type -> field -> type of the nested object, or rule of the nested list. Other lists are replaced.
# Merge keys are those of `x-kubernetes-patch-merge-key` in the published OpenAPI.
_FIELDS: dict[str, dict[str, str | _ListRule]] = {
    "PodTemplateSpec": {"metadata": "ObjectMeta", "spec": "PodSpec"},
    "ObjectMeta": {"finalizers": _ListRule(None), "ownerReferences": _ListRule("uid")},
    "PodSpec": {
        "containers": _ListRule("name", "Container"),
        "initContainers": _ListRule("name", "Container"),
        "ephemeralContainers": _ListRule("name", "Container"),
        "volumes": _ListRule("name", "Volume"),
        "imagePullSecrets": _ListRule("name"),
        "hostAliases": _ListRule("ip"),
        "schedulingGates": _ListRule("name"),
        "resourceClaims": _ListRule("name"),
        "topologySpreadConstraints": _ListRule("topologyKey"),
        "affinity": "Affinity",
    },
    "Container": {
        "env": _ListRule("name"),
        "ports": _ListRule("containerPort"),
        "volumeMounts": _ListRule("mountPath"),
        "volumeDevices": _ListRule("devicePath"),
    },
}


def merge_pod_template(original: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Return the pod template after a strategic merge patch.

    Raises:
        ValueError: a directive or a merge key of the patch is malformed.
    """
    return _merge_object(original, patch, "PodTemplateSpec")


def _merge_object(original: Mapping[str, Any], patch: Mapping[str, Any], kind: str) -> Object:
    directive = patch.get("$patch", "merge")
    unknown = next((name for name in patch if name.startswith("$") and name != "$patch"), None)
    if unknown is not None or directive not in {"delete", "merge", "replace"}:
        what = f"$patch value {directive!r}" if unknown is None else f"directive {unknown}"
        raise ValueError(f"unknown {what} in {kind or 'object'}: use $patch with delete, merge or replace")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {name: _without_directives(value) for name, value in patch.items() if name != "$patch"}
    merged, fields = dict(original), _FIELDS.get(kind, {})
    for name, value in patch.items():
        if name != "$patch":
            _merge_field(merged, name, value, fields.get(name))
    return merged


def _merge_field(merged: Object, name: str, value: Any, rule: str | _ListRule | None) -> None:
    if value is None:
        merged.pop(name, None)
    elif isinstance(value, Mapping):
        kind = rule if isinstance(rule, str) else ""
        before = merged.get(name)
        result = _merge_object(before if isinstance(before, Mapping) else {}, value, kind)
        if value.get("$patch") == "delete":
            merged.pop(name, None)
        else:
            merged[name] = result
    elif isinstance(value, list) and isinstance(rule, _ListRule):
        merged[name] = _merge_list(merged.get(name) or [], value, rule)
    else:
        merged[name] = _without_directives(value)


def _merge_list(original: Sequence[Any], patch: Sequence[Any], rule: _ListRule) -> list[Any]:
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    if rule.key is None:
        return list(dict.fromkeys([*original, *patch]))
    merged = list(original)
    for item in patch:
        _merge_item(merged, item, rule.key, rule.item)
    return merged


def _merge_item(merged: list[Any], item: Any, key: str, kind: str) -> None:
    if not isinstance(item, Mapping) or key not in item:
        raise ValueError(f"map: {item!r} does not contain declared merge key: {key}")
    at = next((i for i, present in enumerate(merged) if _key_of(present, key) == item[key]), None)
    if item.get("$patch") == "delete":
        merged[:] = [present for present in merged if _key_of(present, key) != item[key]]
    elif at is None:
        merged.append(_without_directives({k: v for k, v in item.items() if k != "$patch"}))
    else:
        merged[at] = _merge_object(merged[at], item, kind)


def _key_of(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, Mapping) else None


def _without_directives(value: Any) -> Any:
    """Return the value that a patch adds to an empty place: the content of the patch without directives."""
    if isinstance(value, Mapping):
        return {
            name: _without_directives(item)
            for name, item in value.items()
            if not name.startswith("$") and item is not None
        }
    if isinstance(value, list):
        return [
            _without_directives(item)
            for item in value
            if not (isinstance(item, Mapping) and item.get("$patch") == "delete")
        ]
    return value


RANK_VARIABLES: Final = ("RANK", "NODE_RANK", "PET_NODE_RANK")
"""Variables whose value is the rank."""
_VALUES: Final = {
    "MASTER_ADDR": "address",
    "MASTER_PORT": "port",
    "WORLD_SIZE": "size",
    "NNODES": "size",
    "PET_NNODES": "size",
    "PET_MASTER_ADDR": "address",
    "PET_MASTER_PORT": "port",
}
RENDEZVOUS_ENV: Final = frozenset({*_VALUES, *RANK_VARIABLES})
"""Variables that a user must not set while rendezvous is on."""


def env_of(rendezvous: Rendezvous, *, address: str, size: int) -> list[dict[str, Any]]:
    """Render the variables of every container. The kubelet reads the rank from the pod.

    :param address: The host name of rank 0.
    """
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{keys.COMPLETION_INDEX}']"}}
    values = {"address": address, "port": str(rendezvous.port), "size": str(size)}
    ranks = [{"name": name, "valueFrom": rank} for name in RANK_VARIABLES]
    return [{"name": name, "value": values[value]} for name, value in _VALUES.items()] + ranks


_FLAT_RESOURCES: Final = frozenset({"requests", "limits", "claims"})

# Parameter of the spec -> field of the container.
CONTAINER_FIELDS: Final = {
    "image": "image",
    "command": "command",
    "args": "args",
    "env_from": "envFrom",
    "image_pull_policy": "imagePullPolicy",
    "working_dir": "workingDir",
}
# Parameter of the spec -> field of the pod's spec.
POD_FIELDS: Final = {
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
    """Render the user's pod template from the manifest, the named parameters, and the overrides.

    Raises:
        ValueError: An item of a list in `pod_overrides` lacks the key by which the list is merged.
    """
    in_manifest = manifest.get("spec", {}).get("template", {})
    pod: Object = dict(in_manifest.get("spec", {}))
    main = main_container_name(in_manifest, spec.pod_overrides or {}, spec.annotations)
    containers = list(pod.get("containers", []))
    if all(container.get("name") != main for container in containers):
        containers.append({"name": main})
    pod["containers"] = [_container(spec, one) if one.get("name") == main else one for one in containers]
    for parameter, name in POD_FIELDS.items():
        if (value := getattr(spec, parameter)) is not None:
            pod[name] = copy_without_nulls(value)
    if spec.volumes is not None:
        pod["volumes"] = _merge_by_key("name", pod.get("volumes", []), copy_without_nulls(spec.volumes))
    if spec.image_pull_secrets is not None:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    template = {"metadata": dict(in_manifest.get("metadata", {})), "spec": pod}
    merged = merge_pod_template(template, spec.pod_overrides or {})
    return _with_main_container_first(merged, main)


def _with_main_container_first(template: Object, main: Any) -> Object:
    """Move the main container to the first place, wherever the manifest has it."""
    pod = template.get("spec") or {}
    containers = sorted(pod.get("containers", []), key=lambda container: bool(container.get("name") != main))
    return {**template, "spec": {**pod, "containers": containers}}


def gang_template(
    spec: GangSpec, manifest: Mapping[str, Any], shape: Shape, attempt: Attempt, *, first_job: str | None = None
) -> Object:
    """Render the pod template of a gang, without the link to the scheduling group.

    :param first_job: The name of the Job of rank 0, if it is not that of the gang.
    """
    template: Object = copy_without_nulls(user_template(spec, manifest))
    pod: Object = template["spec"]
    known = {
        keys.ENV_RESULT_PATH: keys.RESULT_PATH,
        keys.ENV_ATTEMPT: str(attempt.number),
        keys.ENV_SIZE: str(shape.size),
    }
    env = [{"name": name, "value": value} for name, value in known.items()]
    if RESULT_HELPER_FILE in spec.files and attempt.key.installation:
        env.append({"name": keys.ENV_INSTALLATION, "value": attempt.key.installation})
    if spec.mounts_files:
        env += FILES_ENV
        has_own = bool(spec.files) or spec.is_supervised
        pod["volumes"] = [*pod.get("volumes", []), volume_of(spec.uploads, job=attempt.name, has_own=has_own)]
    rank_0 = ""
    if rendezvous := rendezvous_of(spec, shape):
        # A Service of the user selects pods by the Job's name in the manifest, and the Job has another name.
        pod["subdomain"] = attempt.name
        rank_0 = f"{first_job or attempt.name}-0.{attempt.name}"
        env += env_of(rendezvous, address=rank_0, size=shape.size)
    main = pod["containers"][0]["name"]
    for kind in ("initContainers", "containers"):
        if containers := pod.get(kind):
            pod[kind] = [
                _with_env(container, env, attempt.claim.env, with_files=spec.mounts_files) for container in containers
            ]
    pod.setdefault("restartPolicy", "Never")
    if spec.checkpoints is not None:
        pod = with_checkpoints(pod, place_of(spec.checkpoints), folder_of(attempt.key.path, attempt.checkpoint_digest))
    template["spec"] = with_supervisor(spec, pod, rank_0) if spec.is_supervised else pod
    template["metadata"] = _metadata(template["metadata"], spec, attempt, main)
    return template


_ADD_RANK: Final = (
    f"RANK=$$(({keys.ENV_RANK_OFFSET}+{keys.ENV_ROLE_RANK})); "
    f"export {' '.join((RANK_VARIABLES[0], *(f'{name}=$RANK' for name in RANK_VARIABLES[1:])))}; "
    'exec "$@"'
)
"""Sets the variables with the rank in the gang, and becomes the program. The kubelet makes one dollar sign of two."""


def role_template(spec: GangSpec, role: RoleRanks, attempt: Attempt, *, first_job: str | None = None) -> Object:
    """Render the pod template of a role. Its size and its rendezvous are those of the whole gang.

    Kubernetes knows the rank in the role only, and cannot add numbers. So in the roles after the first, a shell adds
    them before it becomes the program. A role that has no command runs what its image says, and a sidecar has no rank:
    neither has the variables with the rank in the gang, unless the role has only one rank.
    """
    template = gang_template(spec_of_role(spec, role.name), {}, shape_of(spec, {}), attempt, first_job=first_job)
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{keys.COMPLETION_INDEX}']"}}
    env: list[Object] = [
        {"name": keys.ENV_ROLE, "value": role.name},
        {"name": keys.ENV_ROLE_RANK, "valueFrom": index},
        {"name": keys.ENV_ROLE_SIZE, "value": str(role.size)},
        {"name": keys.ENV_RANK_OFFSET, "value": str(role.offset)},
    ]

    def is_rank_in_gang(item: Object) -> bool:
        return item["name"] in RANK_VARIABLES and item.get("valueFrom") == index

    pod = template["spec"]
    has_rank = any(map(is_rank_in_gang, pod["containers"][0]["env"]))
    for kind in ("initContainers", "containers"):
        for container in pod.get(kind, []):
            known = [item for item in container["env"] if role.offset == 0 or not is_rank_in_gang(item)]
            if has_rank and role.offset and role.size == 1:
                known += [{"name": name, "value": str(role.offset)} for name in RANK_VARIABLES]
            container["env"] = env + known
    main = pod["containers"][0]
    if has_rank and role.offset and role.size > 1 and main.get("command"):
        main["command"] = ["/bin/sh", "-c", _ADD_RANK, "gangjobs", *main["command"]]
    template["metadata"]["labels"] |= {keys.LABEL_GANG_ROLE: role.name, keys.LABEL_RANK_OFFSET: str(role.offset)}
    return template


def labels_of(attempt: Attempt) -> dict[str, str]:
    labels = {
        keys.LABEL_GANG: attempt.name,
        keys.LABEL_TASK: attempt.key.digest,
        keys.LABEL_ATTEMPT: str(attempt.number),
    }
    return labels | ({keys.LABEL_INSTALLATION: attempt.key.installation} if attempt.key.installation else {})


def env_list(env: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> list[Object]:
    """Return environment variables as a list, as in a Pod."""
    if isinstance(env, Mapping):
        return [
            {"name": name, **copy_without_nulls(value)}
            if isinstance(value, Mapping)
            else {"name": name, "value": value}
            for name, value in env.items()
        ]
    return [copy_without_nulls(item) for item in env or ()]


def resources_of(resources: Mapping[str, Any]) -> Object:
    """Return requests and limits. Amounts that are given without `requests` and `limits` apply to both."""
    if _FLAT_RESOURCES.isdisjoint(resources):
        amounts = _amounts(resources)
        return {"requests": amounts, "limits": dict(amounts)}
    return {
        name: _amounts(value) if isinstance(value, Mapping) else copy_without_nulls(value)
        for name, value in resources.items()
    }


def _amounts(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _container(spec: GangSpec, in_manifest: Object) -> Object:
    container = dict(in_manifest)
    for parameter, name in CONTAINER_FIELDS.items():
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


def _merge_by_key(key: str, items: Sequence[Object], given: Sequence[Object]) -> list[Object]:
    named = {item.get(key) for item in given}
    return [item for item in items if item.get(key) not in named] + list(given)


def task_env_of(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the task that created the gang, from the pod template of its Job."""
    env = template["spec"]["containers"][0].get("env") or ()
    return {item["name"]: str(item.get("value", "")) for item in env if item["name"] in keys.TASK_ENV}


def _with_env(container: Object, env: list[Object], task_env: Mapping[str, str], *, with_files: bool) -> Object:
    """Return the container with the gang's variables first, so that others can refer to them as $(RANK), and with the
    variables of the task that the user has not set."""
    path, given = container.get("terminationMessagePath", keys.RESULT_PATH), container.get("env") or []
    gang_env = [{**item, "value": path} if item["name"] == keys.ENV_RESULT_PATH else item for item in env]
    names = {item["name"] for item in given}
    added = env_list({name: value for name, value in task_env.items() if name not in names})
    result = {
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **container,
        "env": [*gang_env, *added, *given],
    }
    if with_files:
        result["volumeMounts"] = [*container.get("volumeMounts", []), FILES_MOUNT]
    return result


def _metadata(in_manifest: Object, spec: GangSpec, attempt: Attempt, main: str) -> Object:
    finalizers = [name for name in in_manifest.get("finalizers", []) if name != keys.FINALIZER_HARVEST]
    annotations = {keys.DEFAULT_CONTAINER: main, **in_manifest.get("annotations", {}), **spec.annotations}
    return {
        **{name: value for name, value in in_manifest.items() if name not in {"name", "namespace"}},
        "labels": {**attempt.claim.labels, **in_manifest.get("labels", {}), **spec.labels, **labels_of(attempt)},
        "annotations": annotations,
        "finalizers": [*finalizers, keys.FINALIZER_HARVEST],
    }
