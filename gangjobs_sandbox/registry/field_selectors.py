"""Field selectors: the fields by which each resource can be selected, and how an object is compared with a selector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.resources import (
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

if TYPE_CHECKING:
    from gangjobs_sandbox.apimachinery.selectors import FieldSelector
    from gangjobs_sandbox.store import Object

__all__ = ["check_fields", "matches_fields"]

_COMMON = frozenset({"metadata.name", "metadata.namespace"})
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS: Mapping[Resource, frozenset[str]] = {
    PODS: frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    EVENTS: frozenset(
        {f"{prefix}.{name}" for prefix in ("involvedObject", "regarding") for name in _REFERENCE}
        | {"reason", "type", "source", "reportingComponent", "reportingController"}
    ),
    JOBS: frozenset({"status.successful"}),
    NAMESPACES: frozenset({"status.phase"}),
    NODES: frozenset({"spec.unschedulable"}),
    SECRETS: frozenset({"type"}),
    SERVICES: frozenset({"spec.clusterIP", "spec.type"}),
}
_RENAMED = {
    "status.successful": "status.succeeded",
    "source": "source.component",
    "reportingController": "reportingComponent",
}
_ZERO_VALUES = {"status.successful": "0", "spec.unschedulable": "false", "spec.hostNetwork": "false"}


def check_fields(resource: Resource, fields: Iterable[str]) -> None:
    """Raise 400 if the resource does not support one of the fields in a selector."""
    for field in fields:
        if field not in _COMMON and field not in _FIELDS.get(resource, ()):
            raise errors.bad_request(f"field label not supported: {field}")


def matches_fields(obj: Object, selector: FieldSelector) -> bool:
    """Return whether the object has the values in the selector."""
    return selector.matches(_reader(obj))


def _reader(obj: Object) -> Callable[[str], str]:
    def read(field: str) -> str:
        path = _RENAMED.get(field, field)
        if path.startswith("regarding."):
            path = "involvedObject." + path.removeprefix("regarding.")
        value: Any = obj
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            return _ZERO_VALUES.get(field, "")
        return str(value).lower() if isinstance(value, bool) else str(value)

    return read
