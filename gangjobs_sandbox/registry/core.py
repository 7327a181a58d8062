"""The rules of the small resources: namespaces, nodes, services, config maps, secrets, events and leases."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import validation
from gangjobs_sandbox.errors import Cause
from gangjobs_sandbox.registry.deletion import Outcome
from gangjobs_sandbox.registry.strategies import Context, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.store import Object

__all__ = [
    "ConfigMapStrategy",
    "EventStrategy",
    "LeaseStrategy",
    "NamespaceStrategy",
    "NodeStrategy",
    "SecretStrategy",
    "ServiceStrategy",
    "terminating",
]

DATA_BYTES_MAX = 1024 * 1024


class NamespaceStrategy(Strategy):
    """The rules of namespaces. The finalizer `kubernetes` in the spec keeps a namespace until it is empty."""

    has_status = True
    returns_deleted = True

    def problems_with_name(self, name: str, context: Context) -> list[str]:
        return validation.dns_label(name)

    def default(self, obj: Object, context: Context) -> None:
        metadata = obj["metadata"]
        if name := metadata.get("name"):
            labels = metadata.get("labels") or {}
            metadata["labels"] = labels | {"kubernetes.io/metadata.name": name}

    def prepare_create(self, obj: Object, context: Context) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def prepare_update(self, new: Object, old: Object, context: Context) -> None:
        super().prepare_update(new, old, context)
        new["spec"] = old["spec"]

    def may_remove(self, obj: Object) -> bool:
        return not obj["spec"].get("finalizers")


def terminating(outcome: Outcome, now: str) -> Outcome:
    """Return the outcome of a DELETE of a namespace. A namespace that may have contents is marked, and not removed."""
    obj = outcome.obj
    if not obj["spec"].get("finalizers"):
        return outcome
    metadata = {"deletionTimestamp": now, "deletionGracePeriodSeconds": 0} | obj["metadata"]
    marked = {**obj, "metadata": metadata, "status": {**(obj.get("status") or {}), "phase": "Terminating"}}
    return Outcome(marked, is_changed=outcome.is_changed or marked != obj, is_removed=False)


class NodeStrategy(Strategy):
    """The rules of nodes. The status of a new node is kept, and its allocatable resources default to its capacity."""

    has_status = True

    def prepare_create(self, obj: Object, context: Context) -> None:
        """Keep the status of a new node, unlike other resources."""
        obj.setdefault("spec", {})
        obj.setdefault("status", {})
        _default_allocatable(obj)

    def prepare_status(self, new: Object, old: Object, context: Context) -> None:
        super().prepare_status(new, old, context)
        _default_allocatable(new)


def _default_allocatable(node: Object) -> None:
    status = node.get("status") or {}
    if "capacity" in status and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


class ServiceStrategy(Strategy):
    """The rules of services. Services get no cluster IP, because the sandbox has no proxy."""

    has_status = True
    returns_deleted = True

    def problems_with_name(self, name: str, context: Context) -> list[str]:
        """Return the errors in the name. Names that start with a digit are allowed since 1.36 (KEP-5311)."""
        return validation.dns_label(name)

    def default(self, obj: Object, context: Context) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        for port in spec.get("ports") or ():
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))
        if spec.get("clusterIP"):
            spec.setdefault("clusterIPs", [spec["clusterIP"]])

    def prepare_create(self, obj: Object, context: Context) -> None:
        obj["status"] = {"loadBalancer": {}}

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        return list(_service_causes(obj))

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        address = new["spec"].get("clusterIP")
        if address == old["spec"].get("clusterIP"):
            return []
        return [errors.invalid_value("spec.clusterIP", address, "field is immutable")]


def _service_causes(service: Object) -> Iterator[Cause]:
    spec = service["spec"]
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None":
        yield errors.required("spec.ports")
    for position, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield errors.required(f"spec.ports[{position}].name")
        number = port.get("port")
        if number is None or not 1 <= number <= 65535:
            detail = "must be between 1 and 65535, inclusive"
            yield errors.invalid_value(f"spec.ports[{position}].port", number or 0, detail)


class ConfigMapStrategy(Strategy):
    """The rules of config maps: valid keys, a limit of the size, and immutability."""

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        return list(_data_causes(obj))

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        if not old.get("immutable"):
            return []
        fields = ("immutable", "data", "binaryData")
        changed = [field for field in fields if new.get(field) != old.get(field)]
        return [errors.forbidden_field(field, "field is immutable when `immutable` is set") for field in changed]


class SecretStrategy(ConfigMapStrategy):
    """The rules of secrets. `stringData` is moved to `data`, whose values are base64."""

    def default(self, obj: Object, context: Context) -> None:
        obj.setdefault("type", "Opaque")
        for key, value in (obj.pop("stringData", None) or {}).items():
            data = obj["data"] = obj.get("data") or {}
            data[key] = base64.b64encode(str(value).encode()).decode()
        for value in (obj.get("data") or {}).values():
            _check_base64(value)

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        causes = super().validate_update(new, old, context)
        return causes if new["type"] == old["type"] else [errors.immutable("type", new["type"]), *causes]


def _check_base64(value: str) -> None:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as exc:
        message = 'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0'
        raise errors.bad_request(message) from exc


def _data_causes(obj: Object) -> Iterator[Cause]:
    size = 0
    for field in ("data", "binaryData"):
        for key, value in (obj.get(field) or {}).items():
            if complaint := _problem_with_key(key):
                yield errors.invalid_value(f"{field}[{key}]", key, complaint)
            size += len(str(value).encode())
    if size > DATA_BYTES_MAX:
        yield Cause("FieldValueTooLong", "[]", f"Too long: may not be more than {DATA_BYTES_MAX} bytes")


def _problem_with_key(key: str) -> str | None:
    if validation.is_config_map_key(key):
        return None
    return (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  "
        "or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )


class LeaseStrategy(Strategy):
    """The rules of leases. An update must name the resourceVersion."""

    unconditional_update = False


class EventStrategy(Strategy):
    """The rules of events. The sandbox keeps all events for its lifetime."""

    def default(self, obj: Object, context: Context) -> None:
        for field in ("eventTime", "firstTimestamp", "lastTimestamp"):
            obj.setdefault(field, None)
        for field in ("reportingComponent", "reportingInstance"):
            obj.setdefault(field, "")
        obj.setdefault("source", {})

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        involved, place = (obj.get("involvedObject") or {}).get("namespace", ""), obj["metadata"]["namespace"]
        if involved == place or (not involved and place == "default"):
            return []
        return [errors.invalid_value("involvedObject.namespace", involved, "does not match event.namespace")]
