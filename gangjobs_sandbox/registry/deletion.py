"""Plans what a DELETE does to one object. Pure.

The object is removed immediately, or it is marked and waits: for its grace period (pods), for its finalizers, or for
the garbage collector, which uses the finalizers `orphan` and `foregroundDeletion`. The rules are those of
`rest.BeforeDelete` and of the generic registry's `Delete`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.clock import parse_time, timestamp
from gangjobs_sandbox.registry.metadata import FOREGROUND, ORPHAN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.resources import Resource
    from gangjobs_sandbox.store import Object

__all__ = ["DeleteOptions", "Outcome", "Propagation", "check_preconditions", "ends_with_update", "plan"]


class Propagation(StrEnum):
    """The effect of a deletion on the dependents of the object."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, kw_only=True)
class DeleteOptions:
    """The options of the request."""

    propagation: Propagation | None = None
    grace_period_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The required writes: a changed object, its removal, or both in this order."""

    obj: Object
    is_changed: bool
    is_removed: bool


def check_preconditions(resource: Resource, obj: Object, options: DeleteOptions) -> None:
    """Raise 409 if the object has another UID or resourceVersion than the preconditions."""
    uid, resource_version = options.uid, options.resource_version
    metadata = obj["metadata"]
    if uid is not None and uid != metadata["uid"]:
        detail = (
            f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise _precondition_failed(resource, metadata["name"], detail)
    if resource_version is not None and resource_version != metadata["resourceVersion"]:
        detail = (
            f"the ResourceVersion in the precondition ({resource_version}) does not match the ResourceVersion "
            f"in record ({metadata['resourceVersion']}). The object might have been modified"
        )
        raise _precondition_failed(resource, metadata["name"], detail)


def _precondition_failed(resource: Resource, name: str, detail: str) -> errors.StatusError:
    """Build the error 409. Unlike other conflicts, these two name the kind and not the resource."""
    message = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {detail}'
    details = {"name": name, "group": resource.group, "kind": resource.kind}
    return errors.StatusError(409, "Conflict", message, {key: value for key, value in details.items() if value})


def ends_with_update(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return whether an update removes the last finalizer of an object that is being deleted, and so the object."""
    return not new.get("finalizers") and old.get("deletionGracePeriodSeconds") == 0


def plan(obj: Object, options: DeleteOptions, *, default: Propagation, grace_s: int | None, now: datetime) -> Outcome:
    """Plan the deletion of this object.

    `grace_s` is None if the kind of object has no grace period. Otherwise watchers see the deletion in two steps, even
    with a grace period of 0: the object is marked, and then removed.
    """
    metadata = obj["metadata"]
    if "deletionTimestamp" in metadata and grace_s is not None:
        return _shorten(obj, options, now)
    finalizers = _finalizers(metadata.get("finalizers") or [], options.propagation, default)
    if grace_s is not None:
        marked = _mark(obj, finalizers, now, grace_s)
        return Outcome(marked, is_changed=True, is_removed=not finalizers and grace_s == 0)
    if finalizers:
        marked = obj if "deletionTimestamp" in metadata else _mark(obj, finalizers, now, 0)
        marked = _with_finalizers(marked, finalizers)
        return Outcome(marked, is_changed=marked != obj, is_removed=False)
    return Outcome(obj, is_changed=False, is_removed=True)


def _shorten(obj: Object, options: DeleteOptions, now: datetime) -> Outcome:
    """Plan a second deletion of an object. It can only shorten the grace period."""
    metadata = obj["metadata"]
    pending_s = metadata.get("deletionGracePeriodSeconds", 0)
    wanted_s = options.grace_period_s
    if wanted_s is None or wanted_s >= pending_s:
        return Outcome(obj, is_changed=False, is_removed=False)
    end = parse_time(metadata["deletionTimestamp"])
    if wanted_s > 0:
        end += timedelta(seconds=wanted_s - pending_s)
    else:
        end = min(end, now)  # an object with finalizers keeps only the new time of its deletion
    changes = {"deletionTimestamp": timestamp(end), "deletionGracePeriodSeconds": max(wanted_s, 0)}
    shortened = {**obj, "metadata": {**metadata, **changes}}
    return Outcome(shortened, is_changed=True, is_removed=wanted_s <= 0 and not metadata.get("finalizers"))


def _mark(obj: Object, finalizers: list[str], now: datetime, grace_s: int) -> Object:
    metadata = {
        **obj["metadata"],
        "deletionTimestamp": timestamp(now + timedelta(seconds=grace_s)),
        "deletionGracePeriodSeconds": grace_s,
    }
    if metadata.get("generation"):
        metadata["generation"] += 1
    return _with_finalizers({**obj, "metadata": metadata}, finalizers)


def _with_finalizers(obj: Object, finalizers: list[str]) -> Object:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "finalizers"}
    return {**obj, "metadata": metadata | ({"finalizers": finalizers} if finalizers else {})}


def _finalizers(present: list[str], wanted: Propagation | None, default: Propagation) -> list[str]:
    """Return the finalizers. The precedence of propagation policies is: request, object, kind of object."""
    kept = [name for name in present if name not in {ORPHAN, FOREGROUND}]
    propagation = wanted
    if propagation is None:
        orders = [name for name in present if name in {ORPHAN, FOREGROUND}]
        if orders:
            return kept + orders[:1]
        propagation = default
    order = {Propagation.ORPHAN: [ORPHAN], Propagation.FOREGROUND: [FOREGROUND]}.get(propagation, [])
    return kept + order
