"""Validates a pod spec, for pods and for the template of a Job.

The checks are those of `ValidatePodSpec` that matter to a submission: names, images, environment, volumes, resources,
policies and the reference to the group. The sandbox accepts what is not checked here, although a real API server may
reject it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import quantity, validation
from gangjobs_sandbox.errors import Cause
from gangjobs_sandbox.registry.metadata import label_causes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from decimal import Decimal

    from gangjobs_sandbox.store import Object

__all__ = ["pod_spec_causes", "template_causes"]

_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("restartPolicy", ("Always", "OnFailure", "Never")),
    ("dnsPolicy", ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")),
)
_CONTAINER_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("terminationMessagePolicy", ("File", "FallbackToLogsOnError")),
    ("imagePullPolicy", ("Always", "IfNotPresent", "Never")),
)
_OVERCOMMIT = frozenset({"cpu", "memory", "ephemeral-storage"})
"""The resources whose request may be below the limit. For all other resources, request and limit must be equal."""
_NOT_A_RESOURCE = ("must be a standard resource type or fully qualified", "must be a standard resource for containers")
_NOT_A_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_TWO_SOURCES = "may not have more than one field specified at a time"
_NO_SOURCE = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
_INT32_MAX = 2**31 - 1
_STANDARD_RESOURCES = _OVERCOMMIT | {"storage"}


def template_causes(template: Mapping[str, Any], path: str) -> list[Cause]:
    """Return the errors in the labels and the spec of a pod template. Finalizers are checked in pods only."""
    metadata = template.get("metadata") or {}
    causes = label_causes(metadata.get("labels"), f"{path}.labels")
    return [*causes, *pod_spec_causes(template.get("spec") or {}, f"{path}.spec")]


def pod_spec_causes(spec: Mapping[str, Any], path: str) -> list[Cause]:
    """Return the errors in a pod spec that has its defaults."""
    causes = list(_volume_causes(spec.get("volumes") or (), f"{path}.volumes"))
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    seen: set[str] = set()
    if not spec.get("containers"):
        causes.append(errors.required(f"{path}.containers"))
    for field in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(field) or ()):
            causes.extend(_container_causes(container, f"{path}.{field}[{position}]", volumes, seen))
    causes.extend(_choice_causes(spec, _CHOICES, path))
    causes.extend(_number_causes(spec, path))
    causes.extend(_group_causes(spec, path))
    return causes


def _choice_causes(obj: Mapping[str, Any], choices: Iterable[tuple[str, Sequence[str]]], path: str) -> Iterator[Cause]:
    for field, allowed in choices:
        if field in obj and obj[field] not in allowed:
            yield errors.not_supported(f"{path}.{field}", obj[field], allowed)


def _number_causes(spec: Mapping[str, Any], path: str) -> Iterator[Cause]:
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _INT32_MAX:
        detail = f"must be between 1 and {_INT32_MAX}, inclusive"
        yield errors.invalid_value(f"{path}.activeDeadlineSeconds", deadline, detail)


def _group_causes(spec: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if (group := spec.get("schedulingGroup")) is not None:
        name = group.get("podGroupName")
        field = f"{path}.schedulingGroup.podGroupName"
        if not name:
            yield errors.invalid_value(field, None, "must specify one of: `podGroupName`")
        else:
            yield from (errors.invalid_value(field, name, text) for text in validation.dns_subdomain(name))


def _volume_causes(volumes: Iterable[Mapping[str, Any]], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for position, volume in enumerate(volumes):
        yield from _name_causes(volume, f"{path}[{position}].name", seen)


def _name_causes(obj: Mapping[str, Any], path: str, seen: set[str]) -> Iterator[Cause]:
    name = obj.get("name") or ""
    if not name:
        yield errors.required(path)
        return
    yield from (errors.invalid_value(path, name, text) for text in validation.dns_label(name))
    if name in seen:
        yield errors.duplicate(path, name)
    seen.add(name)


def _container_causes(container: Object, path: str, volumes: set[Any], seen: set[str]) -> Iterator[Cause]:
    yield from _name_causes(container, f"{path}.name", seen)
    image = container.get("image") or ""
    if not image:
        yield errors.required(f"{path}.image")
    elif image != image.strip():
        yield errors.invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")
    yield from _environment_causes(container.get("env") or (), f"{path}.env")
    yield from _mount_causes(container.get("volumeMounts") or (), f"{path}.volumeMounts", volumes)
    yield from _port_causes(container.get("ports") or (), f"{path}.ports")
    yield from _resource_causes(container.get("resources") or {}, f"{path}.resources")
    yield from _choice_causes(container, _CONTAINER_CHOICES, path)


def _environment_causes(variables: Iterable[Mapping[str, Any]], path: str) -> Iterator[Cause]:
    for position, variable in enumerate(variables):
        at = f"{path}[{position}]"
        name = variable.get("name") or ""
        if not name:
            yield errors.required(f"{at}.name")
        elif not validation.is_env_name(name):
            detail = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            yield errors.invalid_value(f"{at}.name", name, detail)
        source = variable.get("valueFrom")
        if source is None:
            continue
        if variable.get("value"):
            detail = "may not be specified when `value` is not empty"
            yield errors.invalid_value(f"{at}.valueFrom", "", detail)
        if len(source) != 1:
            yield errors.invalid_value(f"{at}.valueFrom", "", _TWO_SOURCES if source else _NO_SOURCE)


def _mount_causes(mounts: Iterable[Mapping[str, Any]], path: str, volumes: set[Any]) -> Iterator[Cause]:
    seen: set[str] = set()
    for position, mount in enumerate(mounts):
        at = f"{path}[{position}]"
        name, target = mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            yield errors.required(f"{at}.name")
        if name not in volumes:
            yield Cause("FieldValueNotFound", f"{at}.name", f'Not found: "{name}"')
        if not target:
            yield errors.required(f"{at}.mountPath")
        elif target in seen:
            yield errors.invalid_value(f"{at}.mountPath", target, "must be unique")
        seen.add(target)


def _port_causes(ports: Iterable[Mapping[str, Any]], path: str) -> Iterator[Cause]:
    for position, port in enumerate(ports):
        at = f"{path}[{position}]"
        number = port.get("containerPort")
        if not number:
            yield errors.required(f"{at}.containerPort")
        elif not 1 <= number <= 65535:
            yield errors.invalid_value(f"{at}.containerPort", number, "must be between 1 and 65535, inclusive")
        yield from _choice_causes(port, [("protocol", ("SCTP", "TCP", "UDP"))], at)


def _resource_causes(resources: Mapping[str, Any], path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            at = f"{path}.{part}[{name}]"
            if "/" not in name and name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
                for detail in _NOT_A_RESOURCE:
                    yield errors.invalid_value(at, name, detail)
            if (value := _number(amount)) is None:
                yield errors.invalid_value(at, str(amount), _NOT_A_QUANTITY)
            elif value < 0:
                yield errors.invalid_value(at, str(amount), "must be greater than or equal to 0")
    for name, amount in sorted(requests.items()):
        yield from _request_causes(name, amount, limits.get(name), path)


def _number(amount: Any) -> Decimal | None:
    try:
        return quantity.parse(amount)
    except ValueError:
        return None


def _request_causes(name: str, amount: Any, limit: Any, path: str) -> Iterator[Cause]:
    if limit is None:
        if name not in _STANDARD_RESOURCES:
            yield errors.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        return
    asked, allowed = _number(amount), _number(limit)
    if asked is None or allowed is None:
        return
    if name in _OVERCOMMIT and asked > allowed:
        detail = f"must be less than or equal to {name} limit of {limit}"
        yield errors.invalid_value(f"{path}.requests", str(amount), detail)
    elif name not in _OVERCOMMIT and asked != allowed:
        detail = f"must be equal to {name} limit of {limit}"
        yield errors.invalid_value(f"{path}.requests", str(amount), detail)
