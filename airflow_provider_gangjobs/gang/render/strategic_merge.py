"""Applies strategic merge patches to pod templates, as `kubectl patch` does.

A list with a merge key is merged item by item. Directives (`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/x`,
`$setElementOrder/x`) express other changes. The rules follow `k8s.io/apimachinery/pkg/util/strategicpatch`. The result
shares unchanged parts with the arguments, so treat it as immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
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
