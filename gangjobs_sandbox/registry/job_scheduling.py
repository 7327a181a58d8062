"""`Job.spec.scheduling` of 1.37: how the Job controller groups the pods (KEP-5547, "API Validation")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.resources import JOBS, PODGROUPS
from gangjobs_sandbox.store import objects_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gangjobs_sandbox.errors import Cause
    from gangjobs_sandbox.registry.strategies import Context
    from gangjobs_sandbox.store import Object

__all__ = ["require_fixed_parallelism", "scheduling_causes", "scheduling_update_causes"]

_PATH = "spec.scheduling"
_POLICY = f"{_PATH}.schedulingPolicy"
_VARIANT_IS_FIXED = (
    "the basic/gang policy variant is immutable after creation; only schedulingPolicy.gang.minCount may be updated"
)


def require_fixed_parallelism(new: Object, old: Object, context: Context) -> None:
    """Refuse a changed parallelism of a Job whose group is a gang, as 1.36 does (admission plugin JobValidation)."""
    if new["spec"].get("parallelism") == old["spec"].get("parallelism"):
        return
    metadata = old["metadata"]
    link = old["spec"]["template"]["spec"].get("schedulingGroup")
    if link is not None:
        found = context.find(PODGROUPS, metadata["namespace"], link.get("podGroupName", ""))
        groups = [] if found is None else [found]
    else:
        groups = [group for group in context.items(PODGROUPS, metadata["namespace"]) if _is_controlled_by(group, old)]
    for group in groups:
        if group["spec"]["schedulingPolicy"].get("gang") is not None:
            name = group["metadata"]["name"]
            why = f'cannot change parallelism for a Job referencing gang-scheduled PodGroup "{name}"'
            raise errors.forbidden(JOBS, metadata["name"], why)


def _is_controlled_by(group: Object, job: Object) -> bool:
    owners = group["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["uid"] == job["metadata"]["uid"] for owner in owners)


def scheduling_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    """Return the errors in the field itself."""
    scheduling = spec.get("scheduling")
    if scheduling is None:
        return
    policy = scheduling.get("schedulingPolicy")
    least = ((policy or {}).get("gang") or {}).get("minCount")
    if least is not None and least > spec["parallelism"]:
        detail = f"must not be greater than parallelism ({spec['parallelism']})"
        yield errors.invalid_value(f"{_POLICY}.gang.minCount", least, detail)
    # The absence of a policy means the Basic policy.
    if "gang" not in (policy or {}) and "all" in (scheduling.get("disruptionMode") or {}):
        detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
        yield errors.invalid_value(f"{_PATH}.disruptionMode", "", detail)
    if policy is not None and len(policy) != 1:
        detail = "must specify exactly one of: `basic`, `gang`" if policy else "must specify one of: `basic`, `gang`"
        yield errors.invalid_value(_POLICY, "{basic, gang}" if policy else "", detail)
    if least is not None and least < 1:
        yield errors.invalid_value(f"{_POLICY}.gang.minCount", least, "must be greater than or equal to 1")


def scheduling_update_causes(new: Any, old: Any) -> Iterator[Cause]:
    """Return the errors in an update, which may change only minCount of the gang."""
    if new is None and old is not None:
        yield errors.invalid_value(_PATH, None, "field cannot be cleared once set")
    elif old is None and new is not None:
        yield errors.invalid_value(_PATH, None, "field cannot be set once created")
    elif old is not None and new is not None:
        yield from _changes(_without_min_count(new), _without_min_count(old))


def _changes(new: Object, old: Object) -> Iterator[Cause]:
    if ("basic" in (old.get("schedulingPolicy") or {})) != ("basic" in (new.get("schedulingPolicy") or {})):
        yield errors.invalid_value(_POLICY, None, _VARIANT_IS_FIXED)
    for field in sorted({*new, *old} - {"schedulingPolicy"}):
        if new.get(field) != old.get(field):
            yield errors.immutable(f"{_PATH}.{field}", None)


def _without_min_count(scheduling: Mapping[str, Any]) -> Object:
    copied: Object = objects_copy(dict(scheduling))
    ((copied.get("schedulingPolicy") or {}).get("gang") or {}).pop("minCount", None)
    return copied
