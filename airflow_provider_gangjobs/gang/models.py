"""Converts models of the official Python client, such as `kubernetes.client.V1Volume`, into dicts.

A model is accepted wherever a parameter takes a dict, at any depth. The serialization of the official client converts
the model, so the result is what that client would send. This module never imports the official client: a model exists
only if the DAG file has imported the client.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

_PACKAGE: Final = "kubernetes.client"


def _same(converted: dict[str, Any]) -> Any:
    return converted


MODELS: Final[Mapping[str, Mapping[str, Callable[[dict[str, Any]], Any]]]] = {
    "env": {"V1EnvVar": _same},
    "env_from": {"V1EnvFromSource": _same},
    "resources": {"V1ResourceRequirements": _same},
    "manifest": {"V1Job": lambda job: {"apiVersion": "batch/v1", "kind": "Job"} | job},
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
"""The models that each parameter of `GangSpec` accepts, by class name, and how the converted model becomes the value of
the parameter."""


def is_model(value: Any) -> bool:
    """Return whether the value is a model of the official client."""
    return type(value).__module__.startswith(f"{_PACKAGE}.models")


def convert_parameter(name: str, value: Any) -> Any:
    """Return the value of a parameter of `GangSpec` with dicts in place of models.

    A value without models is returned as it is. A model that the parameter does not accept stays in the value, and the
    validation reports the model.

    :param name: The name of the parameter, one of `MODELS`.
    """
    if _PACKAGE not in sys.modules:
        return value
    accepted = MODELS[name]
    if is_model(value):
        form = accepted.get(type(value).__name__)
        return value if form is None else form(_to_dict(value))
    if isinstance(value, (list, tuple)):
        return _unchanged_or(value, [convert_parameter(name, item) for item in value])
    return _convert_nested(name, value)


def _convert_nested(name: str, value: Any) -> Any:
    """Convert the models in a mapping, where any model may stand."""
    if is_model(value):
        converted = _to_dict(value)
        return {"valueFrom": converted} if name == "env" and type(value).__name__ == "V1EnvVarSource" else converted
    if isinstance(value, Mapping):
        return _unchanged_or(value, {key: _convert_nested(name, item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return _unchanged_or(value, [_convert_nested(name, item) for item in value])
    return value


def _unchanged_or(value: Any, converted: Any) -> Any:
    """Return the value itself if the conversion has not changed an item, so that its type and identity stay."""
    before = value.values() if isinstance(value, Mapping) else value
    after = converted.values() if isinstance(converted, Mapping) else converted
    return value if all(old is new for old, new in zip(before, after, strict=True)) else converted


def _to_dict(model: Any) -> dict[str, Any]:
    converted: dict[str, Any] = sys.modules[_PACKAGE].ApiClient().sanitize_for_serialization(model)
    return converted
