"""Pod template: the manifest's template, the named parameters, the overrides, and the fields that a gang needs.

They are applied in this order. Named parameters apply to the main container, whose exit code and result are those of
the rank, and which is the first one of the rendered pods. All functions expect a spec that passed validation.

The ranks find each other by a headless Service, which gives each rank the name `<job>-<rank>.<service>`, also before
its pod is ready. The variables are those of torch.distributed (MASTER_ADDR, ...) and torchrun (PET_...), and NNODES and
NODE_RANK.

The overrides are a strategic merge patch, as of `kubectl patch`: a list with a merge key is merged item by item, and
directives (`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/x`, `$setElementOrder/x`) express other changes. The
rules follow `k8s.io/apimachinery/pkg/util/strategicpatch`. The result shares unchanged parts with the arguments, so
treat it as immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.checkpoints import folder_of, place_of, with_checkpoints
from airflow_provider_gangjobs.gang.render.files import FILES_ENV, files_mount, volume_of, with_supervisor
from airflow_provider_gangjobs.gang.render.placement import Shape, rendezvous_of, shape_of
from airflow_provider_gangjobs.gang.render.user_manifest import copy_without_nulls, main_container_name
from airflow_provider_gangjobs.gang.roles import spec_of_role
from airflow_provider_gangjobs.gang.spec import RESULT_HELPER_FILE
from airflow_provider_gangjobs.kube import well_known as keys
from airflow_provider_gangjobs.kube.well_known import ObjectPurpose

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import Attempt
    from airflow_provider_gangjobs.gang.roles import RoleRanks
    from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
    from airflow_provider_gangjobs.kube.views import Object


DELETE_FROM = "$deleteFromPrimitiveList/"
ELEMENT_ORDER = "$setElementOrder/"


class ListRule(Struct, frozen=True):
    """How a list field is merged: by the key of its items, or as a set of primitives if `key` is None."""

    key: str | None
    item: str = ""


# type -> field -> type of the nested object, or rule of the nested list. Other lists are replaced.
# Merge keys are those of `x-kubernetes-patch-merge-key` in the published OpenAPI.
_FIELDS: dict[str, dict[str, str | ListRule]] = {
    "PodTemplateSpec": {"metadata": "ObjectMeta", "spec": "PodSpec"},
    "ObjectMeta": {"finalizers": ListRule(None), "ownerReferences": ListRule("uid")},
    "PodSpec": {
        "containers": ListRule("name", "Container"),
        "initContainers": ListRule("name", "Container"),
        "ephemeralContainers": ListRule("name", "Container"),
        "volumes": ListRule("name", "Volume"),
        "imagePullSecrets": ListRule("name"),
        "hostAliases": ListRule("ip"),
        "schedulingGates": ListRule("name"),
        "resourceClaims": ListRule("name"),
        "topologySpreadConstraints": ListRule("topologyKey"),
        "affinity": "Affinity",
    },
    "Container": {
        "env": ListRule("name"),
        "ports": ListRule("containerPort"),
        "volumeMounts": ListRule("mountPath"),
        "volumeDevices": ListRule("devicePath"),
    },
}


def merge_pod_template(original: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Return the pod template after a strategic merge patch.

    Raises:
        ValueError: a directive or a merge key of the patch is malformed.
    """
    return _merge_object(original, patch, "PodTemplateSpec")


def _merge_object(original: Mapping[str, Any], patch: Mapping[str, Any], kind: str) -> Object:
    fields = _FIELDS.get(kind, {})
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {name: _without_directives(value) for name, value in patch.items() if not name.startswith("$")}
    if directive not in {None, "merge"}:
        raise ValueError(f"unknown $patch value {directive!r} in {kind or 'object'}: use delete, merge or replace")
    merged = _retained(original, patch)
    for name, value in patch.items():
        if not name.startswith("$"):
            _merge_field(merged, name, value, fields.get(name))
    for name, value in patch.items():
        if name.startswith(DELETE_FROM):
            _delete_primitives(merged, name.removeprefix(DELETE_FROM), value)
    for name, order in patch.items():
        if name.startswith(ELEMENT_ORDER):
            _order_list(merged, original, name.removeprefix(ELEMENT_ORDER), order, fields)
    return merged


def _retained(original: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    retain = patch.get("$retainKeys")
    if retain is None:
        return dict(original)
    return {name: value for name, value in original.items() if name in retain}


def _merge_field(merged: Object, name: str, value: Any, rule: str | ListRule | None) -> None:
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
    elif isinstance(value, list) and isinstance(rule, ListRule):
        merged[name] = _merge_list(merged.get(name) or [], value, rule)
    else:
        merged[name] = _without_directives(value)


def _merge_list(original: Sequence[Any], patch: Sequence[Any], rule: ListRule) -> list[Any]:
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    if rule.key is None:
        merged = list(dict.fromkeys([*original, *patch]))
    else:
        merged = list(original)
        for item in patch:
            _merge_item(merged, item, rule.key, rule.item)
    return _sorted_by(merged, patch, original, rule)


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


def _delete_primitives(merged: Object, name: str, values: Any) -> None:
    present = merged.get(name) or []
    if not isinstance(values, list) or not isinstance(present, list):
        raise ValueError(f"{DELETE_FROM}{name} must be a list")
    if name in merged:
        merged[name] = [item for item in present if item not in values]


def _order_list(
    merged: Object, original: Mapping[str, Any], name: str, order: Any, fields: Mapping[str, str | ListRule]
) -> None:
    rule = fields.get(name)
    if not isinstance(order, list) or not isinstance(rule, ListRule):
        raise ValueError(f"{ELEMENT_ORDER}{name} must be a list and belong to a list that merges")
    if items := merged.get(name):
        merged[name] = _sorted_by(items, order, original.get(name) or (), rule)


def _sorted_by(items: Sequence[Any], order: Sequence[Any], original: Sequence[Any], rule: ListRule) -> list[Any]:
    """Sort the items that `order` names by its order. The other items keep their relative place where possible."""
    identity = _identity(rule)
    ranks = _positions(identity(item) for item in order)
    named = sorted((item for item in items if identity(item) in ranks), key=lambda item: ranks[identity(item)])
    others = [item for item in items if identity(item) not in ranks]
    places = _positions(identity(item) for item in original)
    return _interleave(others, named, places, identity)


def _identity(rule: ListRule) -> Any:
    key = rule.key
    return (lambda item: item) if key is None else (lambda item: _key_of(item, key))


def _positions(keys: Iterable[Any]) -> dict[Any, int]:
    return {key: position for position, key in reversed(list(enumerate(keys)))}


def _interleave(others: list[Any], named: list[Any], places: Mapping[Any, int], identity: Any) -> list[Any]:
    result: list[Any] = []
    others, named = others[:], named[:]
    while others and named:
        left, right = places.get(identity(others[0])), places.get(identity(named[0]))
        is_before = left is not None and right is not None and left < right
        result.append((others if is_before else named).pop(0))
    return result + others + named


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


def service_of(
    rendezvous: Rendezvous, *, job: str, namespace: str, owner: dict[str, Any], ports: Sequence[Object] = ()
) -> dict[str, Any]:
    """Render the headless Service of a gang.

    :param ports: The ports besides that of the rendezvous.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job,
            "namespace": namespace,
            "labels": {keys.LABEL_GANG: job, keys.LABEL_PURPOSE: ObjectPurpose.RENDEZVOUS.value},
            "ownerReferences": [owner],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {keys.LABEL_GANG: job},
            "ports": [{"name": "rendezvous", "port": rendezvous.port}, *ports],
        },
    }


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
    """Move the main container to the first place, because a strategic merge inserts new containers before it."""
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
        result["volumeMounts"] = [*container.get("volumeMounts", []), files_mount()]
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
