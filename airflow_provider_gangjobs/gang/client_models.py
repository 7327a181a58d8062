"""Converts models of the official Python client, such as `kubernetes.client.V1Volume`, into dicts.

A model is accepted wherever a parameter takes a dict, at any depth, and the client itself serializes it. A model of
another kind as a parameter is refused; deeper, the API server names its fields. This module never imports the client,
because a model exists only if the DAG file has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


def job_of_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Job of one Indexed pod by a Pod or a pod template. The name and namespace of a Pod are not those of its
    Job."""
    given_metadata = pod.get("metadata") or {}
    metadata = {name: given_metadata[name] for name in ("labels", "annotations") if given_metadata.get(name)}
    # The default of a pod is Always, which a Job refuses.
    template = {"metadata": metadata, "spec": {"restartPolicy": "Never", **(pod.get("spec") or {})}}
    job = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": job}


_PACKAGE: Final = "kubernetes.client"


def _same(converted: dict[str, Any]) -> Any:
    return converted


MODELS: Final[Mapping[str, Mapping[str, Callable[[dict[str, Any]], Any]]]] = {
    "env": {"V1EnvVar": _same},
    "env_from": {"V1EnvFromSource": _same},
    "resources": {"V1ResourceRequirements": _same},
    "manifest": {
        "V1Job": lambda job: {"apiVersion": "batch/v1", "kind": "Job"} | job,
        "V1Pod": job_of_pod,
        "V1PodTemplateSpec": job_of_pod,
    },
    "pod_overrides": {
        "V1PodTemplateSpec": _same,
        "V1PodSpec": lambda spec: {"spec": spec},
        "V1Pod": lambda pod: {name: value for name, value in pod.items() if name in ("metadata", "spec")},
    },
    "affinity": {"V1Affinity": _same},
    "tolerations": {"V1Toleration": _same},
    "volumes": {"V1Volume": _same},
    "volume_mounts": {"V1VolumeMount": _same},
    "image_pull_secrets": {"V1LocalObjectReference": lambda reference: reference.get("name")},
    "security_context": {"V1PodSecurityContext": _same},
}
"""The models that each parameter of `GangSpec` accepts, by class name, and how the converted model becomes its value.
The fields of a dict are those of the first one."""
LISTS: Final = frozenset({"env", "env_from", "tolerations", "volumes", "volume_mounts", "image_pull_secrets"})
"""The parameters of which a model is an item, and not the value itself."""


def is_model(value: Any) -> bool:
    return type(value).__module__.startswith(f"{_PACKAGE}.models")


def describe_value(value: Any) -> str:
    """Return a short description for a message. Objects, such as dicts, may have secrets, so their type is named."""
    return f"{value!r:.80}" if value is None or isinstance(value, (str, int, float)) else f"a {type(value).__name__}"


def convert_parameter(name: str, value: Any) -> Any:
    """Return the value of a parameter of `GangSpec` with dicts in place of models; itself if it has none.

    A model that the parameter does not accept stays, and the validation reports it.
    """
    if _PACKAGE not in sys.modules:
        return value
    if name in LISTS and isinstance(value, (list, tuple)):
        return _unchanged_or(value, [_convert_top(name, item) for item in value])
    if name == "env" and isinstance(value, Mapping):
        return _unchanged_or(value, {key: _convert_source(item) for key, item in value.items()})
    return value if name in LISTS else _convert_top(name, value)


def _convert_top(name: str, value: Any) -> Any:
    if not is_model(value):
        return _convert(value)
    form = MODELS[name].get(type(value).__name__)
    return value if form is None else form(_to_dict(value))


def _convert_source(value: Any) -> Any:
    """Convert the value of a variable, which may be its source."""
    return {"valueFrom": _to_dict(value)} if type(value).__name__ == "V1EnvVarSource" else _convert(value)


def _convert(value: Any) -> Any:
    if is_model(value):
        return _to_dict(value)
    if isinstance(value, Mapping):
        return _unchanged_or(value, {key: _convert(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return _unchanged_or(value, [_convert(item) for item in value])
    return value


def _unchanged_or(value: Any, converted: Any) -> Any:
    """Return the value itself if the conversion has not changed an item, so that its type and identity stay."""
    before = value.values() if isinstance(value, Mapping) else value
    after = converted.values() if isinstance(converted, Mapping) else converted
    return value if all(old is new for old, new in zip(before, after, strict=True)) else converted


def _to_dict(model: Any) -> dict[str, Any]:
    converted: dict[str, Any] = sys.modules[_PACKAGE].ApiClient().sanitize_for_serialization(model)
    return converted
