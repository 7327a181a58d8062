"""What a DELETE does to one object, as a pure function.

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
    """What happens to the objects that the deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, kw_only=True)
class DeleteOptions:
    """What the request asks for."""

    propagation: Propagation | None = None
    grace_period_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What has to be written: a changed object, its removal, or both in this order."""

    obj: Object
    is_changed: bool
    is_removed: bool


def check_preconditions(resource: Resource, obj: Object, options: DeleteOptions) -> None:
    """Refuse (409) if the object is not the one, or not in the version, that the client means."""
    uid, resource_version = options.uid, options.resource_version
    metadata = obj["metadata"]
    if uid is not None and uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise _unmet(resource, metadata["name"], why)
    if resource_version is not None and resource_version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({resource_version}) does not match the ResourceVersion "
            f"in record ({metadata['resourceVersion']}). The object might have been modified"
        )
        raise _unmet(resource, metadata["name"], why)


def _unmet(resource: Resource, name: str, why: str) -> errors.StatusError:
    """409; these two, unlike other conflicts, name the kind and not the resource."""
    message = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}'
    details = {"name": name, "group": resource.group, "kind": resource.kind}
    return errors.StatusError(409, "Conflict", message, {key: value for key, value in details.items() if value})


def ends_with_update(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether an update of an object that waits to be deleted takes its last finalizer, and so removes it."""
    return not new.get("finalizers") and old.get("deletionGracePeriodSeconds") == 0


def plan(obj: Object, options: DeleteOptions, *, default: Propagation, grace_s: int | None, now: datetime) -> Outcome:
    """What deleting this object comes to.

    `grace_s` is the grace period to give if the kind of object has one (then deletion is two steps for
    watchers even with no grace: marked, then gone), else None.
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
    """A second deletion can only bring the end nearer."""
    metadata = obj["metadata"]
    pending_s = metadata.get("deletionGracePeriodSeconds", 0)
    wanted_s = options.grace_period_s
    if wanted_s is None or wanted_s >= pending_s:
        return Outcome(obj, is_changed=False, is_removed=False)
    end = parse_time(metadata["deletionTimestamp"])
    if wanted_s > 0:
        end += timedelta(seconds=wanted_s - pending_s)
    else:
        end = min(end, now)  # what is held by finalizers forgets when its deletion was asked for
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
    """The finalizers with the order to the garbage collector: the request's, else the object's, else the kind's."""
    kept = [name for name in present if name not in {ORPHAN, FOREGROUND}]
    propagation = wanted
    if propagation is None:
        orders = [name for name in present if name in {ORPHAN, FOREGROUND}]
        if orders:
            return kept + orders[:1]
        propagation = default
    order = {Propagation.ORPHAN: [ORPHAN], Propagation.FOREGROUND: [FOREGROUND]}.get(propagation, [])
    return kept + order
