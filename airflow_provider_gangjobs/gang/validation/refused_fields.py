"""Where a field that the API server refuses is in what the user wrote, and which field the user may have meant.

The server names a field by its path in the Job. The user wrote it in `pod_overrides`, in a named parameter, or in the
manifest. The known fields are those of Kubernetes 1.37; a test compares them with the official client. They only serve
suggestions: whether a field exists is decided by the server. This module is imported after a refusal only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.render.pod_template import CONTAINER_FIELDS, POD_FIELDS, user_template
from airflow_provider_gangjobs.gang.render.user_manifest import iter_scalars, manifest_of

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec

FIELDS: Final[Mapping[str, str]] = {
    "": "apiVersion kind metadata spec status",
    "metadata": "annotations finalizers generateName labels name namespace ownerReferences",
    "spec": (
        "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy "
        "manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector "
        "successPolicy suspend template ttlSecondsAfterFinished"
    ),
    "spec.template": "metadata spec",
    "spec.template.metadata": "annotations finalizers generateName labels name namespace ownerReferences",
    "spec.template.spec": (
        "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy "
        "enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
        "hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy "
        "priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName "
        "schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName "
        "setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations "
        "topologySpreadConstraints volumes"
    ),
    "spec.template.spec.containers[]": (
        "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe "
        "resizePolicy resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce "
        "terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
    ),
    "spec.template.spec.containers[].env[]": "name value valueFrom",
    "spec.template.spec.containers[].env[].valueFrom": (
        "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef"
    ),
    "spec.template.spec.containers[].envFrom[]": "configMapRef prefix secretRef",
    "spec.template.spec.containers[].ports[]": "containerPort hostIP hostPort name protocol",
    "spec.template.spec.containers[].resources": "claims limits requests",
    "spec.template.spec.containers[].securityContext": (
        "allowPrivilegeEscalation appArmorProfile capabilities privileged procMount readOnlyRootFilesystem "
        "runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile windowsOptions"
    ),
    "spec.template.spec.containers[].volumeMounts[]": (
        "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr"
    ),
    "spec.template.spec.affinity": "nodeAffinity podAffinity podAntiAffinity",
    "spec.template.spec.securityContext": (
        "appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seLinuxChangePolicy "
        "seLinuxOptions seccompProfile supplementalGroups supplementalGroupsPolicy sysctls windowsOptions"
    ),
    "spec.template.spec.tolerations[]": "effect key operator tolerationSeconds value",
    "spec.template.spec.volumes[]": (
        "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir ephemeral "
        "fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs "
        "persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret "
        "storageos vsphereVolume"
    ),
}
"""The fields of a Job by the path of the object that has them. Init containers have the fields of containers."""
_TEMPLATE: Final = "spec.template."
_POD: Final = f"{_TEMPLATE}spec."
_MAIN: Final = f"{_POD}containers[0]."
_PARAMETERS: Final = {
    **{f"{_POD}{field}": parameter for parameter, field in POD_FIELDS.items()},
    **{f"{_MAIN}{field}": parameter for parameter, field in CONTAINER_FIELDS.items()},
    f"{_POD}volumes": "volumes",
    f"{_POD}imagePullSecrets": "image_pull_secrets",
    f"{_MAIN}env": "env",
    f"{_MAIN}resources": "resources",
    f"{_MAIN}volumeMounts": "volume_mounts",
    "spec.completions": "workers",
}
"""The named parameter by the path of its field in the Job."""
_STRICT: Final = re.compile(r'(unknown|duplicate) field "([^"]+)"')
_WRONG_TYPE: Final = re.compile(r"cannot unmarshal (\w+)(?: \S+)? into Go struct field \w+\.(\S+) of type (\S+)")
_TOKEN: Final = re.compile(r"\[\d*\]|[^.\[\]]+")
_EMBEDDED: Final = re.compile(r"\.[A-Z]\w*")
"""A struct of Go, such as `LocalObjectReference`, whose fields JSON has one level higher."""
_ITEM_OF_POD: Final = re.compile(r"spec\.template\.spec\.(containers|initContainers|volumes)\[(\d{1,6})\]")
_JOB_SET: Final = re.compile(r"^spec\.replicatedJobs\[\d+\]\.template\.")
_TYPES: Final = {
    "bool": "true or false",
    "string": "text",
    "int32": "a whole number of 32 bits",
    "int64": "a whole number of 64 bits",
}
_JSON_TYPES: Final[Mapping[str, Any]] = {
    "bool": bool,
    "number": (int, float),
    "string": str,
    "object": Mapping,
    "array": (list, tuple),
}
SIMILAR_MIN: Final = 0.75
"""How similar a field must be to be suggested, from 0 to 1."""


def refused_fields(message: str, causes: Sequence[Mapping[str, Any]], spec: GangSpec) -> tuple[Problem, ...]:
    """Return a problem for each field that a refusal names, at its place in the parameters; none if it names none.

    :param message: The message of the server's Status.
    :param causes: The causes in the details of the Status.
    """
    found = [_explain_strict(kind, path, spec) for kind, path in _STRICT.findall(message)]
    found += [_explain_type(given, at, wanted, spec) for given, at, wanted in _WRONG_TYPE.findall(message)]
    found += [
        Problem(place_of(str(cause["field"]), spec)[0], str(cause.get("message") or "is refused"))
        for cause in causes
        if cause.get("field")
    ]
    return tuple(found)


def _explain_strict(kind: str, path: str, spec: GangSpec) -> Problem:
    place, root = place_of(path, spec)
    if kind == "duplicate":
        return Problem(place, "is given twice", "Keep one of the two")
    similar = similar_field(path, root)
    remedy = f"Did you mean {similar}?" if similar else "Remove it, or look its name up in the reference of Kubernetes"
    return Problem(place, "is no field that the API server knows", remedy)


def _explain_type(given: str, path: str, wanted: str, spec: GangSpec) -> Problem:
    place, _ = place_of(_EMBEDDED.sub("", path), spec, given)
    kind = "a list" if wanted.startswith("[]") else "a mapping" if wanted.startswith("map[") else "an object"
    if kind == "an object" and given != "string":  # the Go type is perhaps one of texts, such as v1.RestartPolicy
        kind = f"a {wanted} of Kubernetes"
    return Problem(place, f"is of type {given}", f"Give {_TYPES.get(wanted.removeprefix('*'), kind)}")


def place_of(path: str, spec: GangSpec, json_type: str = "") -> tuple[str, str]:
    """Return where the user wrote a field of the Job, and the path of the object in the Job that the place begins with.

    A field that the user did not write, such as one that is missing, keeps its path in the Job.

    :param json_type: The JSON type of the refused value, if it has a wrong one. Its path has no indexes then.
    """
    path = _JOB_SET.sub("", path)
    tokens, item = _TOKEN.findall(path), _name_of_item(path, spec)
    for prefix, root, value in _sources(spec):
        below = _below(tokens, root)
        name = None if "[" in root else item
        if below is not None and (found := _find(value, below, name, json_type)) is not None:
            return f"{prefix}{found}", root
    return path, ""


def _name_of_item(path: str, spec: GangSpec) -> str | None:
    """Return the name of the container or volume in a path. The provider adds its own ones after those of the user."""
    match = _ITEM_OF_POD.match(path)
    if match is None or spec.roles is not None:
        return None
    items = user_template(spec, manifest_of(spec))["spec"].get(match[1]) or []
    number = int(match[2])
    return items[number].get("name") if number < len(items) else None


def _below(tokens: Sequence[str], root: str) -> Sequence[str] | None:
    """Return what follows the path of an object in a path; `None` if the path does not begin with it."""
    wanted = _TOKEN.findall(root)
    if not any(token.startswith("[") for token in tokens):
        wanted = [token for token in wanted if not token.startswith("[")]
    if len(tokens) < len(wanted):
        return None
    begins = all(one in (token, "[]") for token, one in zip(tokens, wanted, strict=False))
    return tokens[len(wanted) :] if begins else None


def _sources(spec: GangSpec) -> Iterator[tuple[str, str, Any]]:
    """Yield what the user wrote, the last applied first: its name, the path of its object in the Job, and its value."""
    for name, role in (spec.roles or {}).items():
        yield f"roles.{name}.pod_overrides", _TEMPLATE, role.get("pod_overrides")
        yield from _named(role.get, f"roles.{name}.")
    yield "pod_overrides", _TEMPLATE, spec.pod_overrides
    yield from _named(lambda parameter: getattr(spec, parameter), "")
    yield "manifest", "", manifest_of(spec)


def _named(get: Any, prefix: str) -> Iterator[tuple[str, str, Any]]:
    for path, parameter in _PARAMETERS.items():
        value = get(parameter)
        if parameter == "env" and isinstance(value, Mapping):
            for name, variable in value.items():
                yield f"{prefix}env.{name}", f"{path}[]", variable
        elif value is not None:
            yield f"{prefix}{parameter}", path, value


def _find(value: Any, tokens: Sequence[str], name: str | None, json_type: str) -> str | None:
    """Return the path of a field in a value, with the indexes of the value; `None` if the value does not have it.

    Lists are merged by key, so an item may have another index than in the Job.

    :param name: The name of the item in the first list; `None` if it is not known.
    :param json_type: The JSON type of the field, or of one of its items; empty for any type.
    """
    if not tokens:
        return _typed(value, json_type)
    if isinstance(value, Mapping):
        below = _find(value[tokens[0]], tokens[1:], name, json_type) if tokens[0] in value else None
        return None if below is None else f".{tokens[0]}{below}"
    if not isinstance(value, (list, tuple)):
        return None
    rest = tokens[1:] if tokens[0].startswith("[") else tokens
    named = ((number, item) for number, item in enumerate(value) if name is None or item.get("name") == name)
    found = ((number, _find(item, rest, None, json_type)) for number, item in named)
    return next((f"[{number}]{below}" for number, below in found if below is not None), None)


def _typed(value: Any, json_type: str) -> str | None:
    """Return the path of the first value of this type: empty for the value itself, or that of one of its items."""
    types = _JSON_TYPES.get(json_type, object)
    if isinstance(value, types):
        return ""
    items = iter_scalars(value, "value")
    return next((path.removeprefix("value") for path, item in items if isinstance(item, types)), None)


def similar_field(path: str, root: str = "") -> str | None:
    """Return the field that an unknown field may stand for: a similar one beside it, or one in another object.

    :param root: The path of the object in the Job from which the returned path begins, if the object is another one.
    """
    *parents, leaf = _TOKEN.findall(_JOB_SET.sub("", path))
    parent = _normalize(parents)
    if beside := _closest(leaf, FIELDS.get(parent, "").split()):
        return beside
    others = sorted(
        (kind for kind in FIELDS if kind != parent and kind.startswith(root.rstrip("."))),
        key=lambda kind: kind.count("."),
    )
    for closest in (_same, _closest):
        for kind in others:
            if name := closest(leaf, FIELDS[kind].split()):
                return f"{kind}.{name}".replace("[]", "[0]").removeprefix(root).lstrip(".")
    return None


def _same(leaf: str, names: Sequence[str]) -> str | None:
    return leaf if leaf in names else None


def _closest(leaf: str, names: Sequence[str]) -> str | None:
    """Return the most similar name. Case and underscores do not count, so that `init_containers` is found."""
    by_form = {name.lower(): name for name in names}
    similar = difflib.get_close_matches(leaf.lower().replace("_", ""), by_form, n=1, cutoff=SIMILAR_MIN)
    return by_form[similar[0]] if similar else None


def _normalize(tokens: Sequence[str]) -> str:
    joined = "".join("[]" if token.startswith("[") else f".{token}" for token in tokens).lstrip(".")
    return re.sub(r"\b(?:init|ephemeral)Containers\b", "containers", joined)
