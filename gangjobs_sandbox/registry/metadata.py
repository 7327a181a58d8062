"""`ObjectMeta`: the fields that the server sets, keeps and rejects.

The rules are those of `ValidateObjectMeta`, `BeforeCreate` and `BeforeUpdate` of the API server.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import validation
from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.errors import Cause

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from gangjobs_sandbox.resources import Resource
    from gangjobs_sandbox.store import Object

__all__ = [
    "FOREGROUND",
    "ORPHAN",
    "SUFFIX_ALPHABET",
    "complete",
    "keep_server_fields",
    "label_causes",
    "validate",
    "validate_update",
]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_STANDARD_FINALIZERS = frozenset({FOREGROUND, ORPHAN, "kubernetes"})
SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of generated parts of names. There are no vowels, so the names contain no words."""
_GENERATED_PREFIX_MAX = 58
_ANNOTATIONS_BYTES_MAX = 256 * 1024
_SERVER_FIELDS = ("managedFields", "selfLink", "resourceVersion")
_CREATED_FIELDS = ("deletionTimestamp", "deletionGracePeriodSeconds", "generation")


def complete(
    obj: Object, resource: Resource, namespace: str | None, *, now: datetime, rng: random.Random
) -> dict[str, Any]:
    """Set the name, namespace, UID and creation time of a new object.

    Raises:
        StatusError: the namespace of the object is not the one of the request, or the object has a resourceVersion.
    """
    metadata: dict[str, Any] = obj.setdefault("metadata", {})
    if metadata.get("resourceVersion"):
        raise errors.StatusError(500, "InternalError", "resourceVersion should not be set on objects to be created")
    for field in (*_SERVER_FIELDS, *_CREATED_FIELDS):
        metadata.pop(field, None)
    _set_namespace(metadata, resource, namespace)
    if not metadata.get("name") and (prefix := metadata.get("generateName")):
        suffix = "".join(rng.choice(SUFFIX_ALPHABET) for _ in range(5))
        metadata["name"] = prefix[:_GENERATED_PREFIX_MAX] + suffix
    metadata["uid"] = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    metadata["creationTimestamp"] = timestamp(now)
    _drop_empty(metadata)
    return metadata


def keep_server_fields(new: Object, old: Object, resource: Resource) -> dict[str, Any]:
    """Keep the fields that an update cannot change: creation, deletion, generation, and the UID if none was sent."""
    metadata: dict[str, Any] = new.setdefault("metadata", {})
    before = old["metadata"]
    for field in _SERVER_FIELDS:
        metadata.pop(field, None)
    _set_namespace(metadata, resource, before.get("namespace"))
    metadata.setdefault("name", before["name"])
    metadata["uid"] = metadata.get("uid") or before["uid"]
    metadata["creationTimestamp"] = before["creationTimestamp"]
    metadata.pop("generation", None)
    for field in _CREATED_FIELDS:
        if field in before:
            metadata[field] = before[field]
    metadata["resourceVersion"] = before["resourceVersion"]
    _drop_empty(metadata)
    return metadata


def _set_namespace(metadata: dict[str, Any], resource: Resource, namespace: str | None) -> None:
    if not resource.namespaced:
        metadata.pop("namespace", None)
    elif metadata.get("namespace", namespace) not in {namespace, "", None}:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    else:
        metadata["namespace"] = namespace or "default"


def _drop_empty(metadata: dict[str, Any]) -> None:
    for field in [name for name, value in metadata.items() if value is None or value in ({}, [], "")]:
        del metadata[field]


def validate(metadata: Mapping[str, Any], name_rule: Callable[[str], list[str]]) -> list[Cause]:
    """Return all errors in the metadata of an object. `name_rule` returns the errors in a name."""
    causes: list[Cause] = []
    name = metadata.get("name") or ""
    if not name:
        causes.append(errors.required("metadata.name", "name or generateName is required"))
    causes.extend(errors.invalid_value("metadata.name", name, text) for text in (name_rule(name) if name else ()))
    causes.extend(label_causes(metadata.get("labels"), "metadata.labels"))
    causes.extend(_annotation_causes(metadata.get("annotations") or {}))
    causes.extend(_owner_causes(metadata.get("ownerReferences") or ()))
    causes.extend(_finalizer_causes(metadata.get("finalizers") or ()))
    return causes


def label_causes(labels: Mapping[str, str] | None, path: str) -> Iterable[Cause]:
    """Return the errors in the keys and values of labels."""
    for key, value in (labels or {}).items():
        yield from (errors.invalid_value(path, key, text) for text in validation.qualified_name(key, "valid label key"))
        yield from (errors.invalid_value(path, value, text) for text in validation.label_value(value))


def _annotation_causes(annotations: Mapping[str, str]) -> Iterable[Cause]:
    for key in annotations:
        for text in validation.qualified_name(key.lower()):
            yield errors.invalid_value("metadata.annotations", key, text)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS_BYTES_MAX:
        limit = _ANNOTATIONS_BYTES_MAX
        yield Cause("FieldValueTooLong", "metadata.annotations", f"Too long: may not be more than {limit} bytes")


def _owner_causes(owners: Iterable[Mapping[str, Any]]) -> Iterable[Cause]:
    path = "metadata.ownerReferences"
    controllers = []
    for position, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield errors.required(f"{path}[{position}].{field}", "must not be empty")
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        detail = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {controllers[1]}"
        )
        yield errors.invalid_value(path, list(owners), detail)


def _finalizer_causes(finalizers: Iterable[str]) -> Iterable[Cause]:
    path = "metadata.finalizers"
    for position, name in enumerate(finalizers):
        yield from (errors.invalid_value(path, name, text) for text in validation.qualified_name(name))
        if "/" not in name and name not in _STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            yield errors.invalid_value(f"{path}[{position}]", name, detail)
    if {FOREGROUND, ORPHAN} <= set(finalizers):
        yield errors.invalid_value(path, list(finalizers), f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set")


def validate_update(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[Cause]:
    """Return the errors in an update of the metadata."""
    causes: list[Cause] = []
    if old.get("deletionTimestamp"):
        added = sorted(set(new.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if added:
            listed = "[]string{" + ", ".join(f'"{name}"' for name in added) + "}"
            detail = f"no new finalizers can be added if the object is being deleted, found new finalizers {listed}"
            causes.append(errors.forbidden_field("metadata.finalizers", detail))
    causes.extend(
        errors.immutable(f"metadata.{field}", new.get(field))
        for field in ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")
        if new.get(field) != old.get(field)
    )
    return causes
