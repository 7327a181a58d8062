"""Workloads, PodGroups and PriorityClasses of each release (KEP-4671, KEP-5547).

The releases differ in how a PodGroup names its Workload, and in the mutable
fields. Decoding removes the fields that a release does not have (see `fields`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import validation
from gangjobs_sandbox.errors import Cause
from gangjobs_sandbox.registry.strategies import Context, Strategy
from gangjobs_sandbox.resources import PODGROUPS, PRIORITYCLASSES, WORKLOADS
from gangjobs_sandbox.store import Object, objects_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["PROTECTION_FINALIZER", "PodGroupStrategy", "PriorityClassStrategy", "WorkloadStrategy"]

PROTECTION_FINALIZER = "scheduling.k8s.io/podgroup-protection"
TEMPLATES_MAX = 8
USER_PRIORITY_MAX = 1_000_000_000
_CONDITION_STATUSES = ("False", "True", "Unknown")


class PriorityClassStrategy(Strategy):
    """The rules of PriorityClasses, whose value and preemption policy are immutable."""

    def default(self, obj: Object, context: Context) -> None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        obj.setdefault("value", 0)

    def prepare_create(self, obj: Object, context: Context) -> None:
        obj["metadata"]["generation"] = 1

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        if obj["value"] > USER_PRIORITY_MAX and not obj["metadata"]["name"].startswith("system-"):
            detail = f"maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}"
            return [errors.forbidden_field("value", detail)]
        return []

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        return [
            errors.forbidden_field(field, "may not be changed in an update.")
            if field == "value"
            else (errors.immutable(field, new.get(field)))
            for field in ("value", "preemptionPolicy")
            if new.get(field) != old.get(field)
        ]


class WorkloadStrategy(Strategy):
    """The rules of Workloads in each release."""

    def default(self, obj: Object, context: Context) -> None:
        for template in (obj.get("spec") or {}).get("podGroupTemplates") or ():
            _drop_disabled(template, context)

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        spec = obj.get("spec") or {}
        templates = spec.get("podGroupTemplates") or []
        if not templates and context.release.schema == "1.37":
            detail = "must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`"
            return [errors.invalid_value("spec", "", detail)]
        return list(_template_list_causes(templates, "spec.podGroupTemplates"))

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        path = "spec.podGroupTemplates"
        templates, before = ((obj.get("spec") or {}).get("podGroupTemplates") or [] for obj in (new, old))
        if not context.release.min_count_mutable or len(templates) == len(before):
            return _changes(new, old, context)
        if len(templates) > len(before):
            return [
                errors.forbidden_field(f"{path}[{position}]", "item may not be added")
                for position in range(len(before), len(templates))
            ]
        return [errors.forbidden_field(path, "item may not be removed")]


def _drop_disabled(group: Object, context: Context) -> None:
    """Remove the fields of disabled feature gates silently: clients of newer releases send them to all servers."""
    for field in context.release.disabled_group_fields:
        group.pop(field, None)


def _template_list_causes(templates: list[Any], path: str) -> Iterator[Cause]:
    if not templates:
        yield errors.required(path)
    if len(templates) > TEMPLATES_MAX:
        yield Cause("FieldValueTooMany", path, f"Too many: {len(templates)}: must have at most {TEMPLATES_MAX} items")
    names = [template.get("name") or "" for template in templates]
    for position, name in enumerate(names):
        if name in names[:position]:
            yield errors.duplicate(f"{path}[{position}]", templates[position])
    for position, template in enumerate(templates):
        at = f"{path}[{position}]"
        name = names[position]
        if not name:
            yield errors.required(f"{at}.name")
        yield from (
            errors.invalid_value(f"{at}.name", name, text) for text in (validation.dns_label(name) if name else ())
        )
        yield from _policy_causes(template.get("schedulingPolicy"), f"{at}.schedulingPolicy")


def _policy_causes(policy: Mapping[str, Any] | None, path: str) -> Iterator[Cause]:
    chosen = [name for name in ("basic", "gang") if (policy or {}).get(name) is not None]
    if not chosen:
        yield errors.invalid_value(path, "", "must specify one of: `basic`, `gang`")
    elif len(chosen) > 1:
        listed = "{" + ", ".join(chosen) + "}"
        yield errors.invalid_value(path, listed, "must specify exactly one of: `basic`, `gang`")
    if policy and (gang := policy.get("gang")) is not None:
        least = gang.get("minCount")
        if not least:
            yield errors.required(f"{path}.gang.minCount")
        elif least < 1:
            yield errors.invalid_value(f"{path}.gang.minCount", least, "must be greater than or equal to 1")


def _immutable_part(spec: Mapping[str, Any], *, mutable: bool) -> Object:
    """Return the spec without its mutable fields."""
    fixed: Object = objects_copy(dict(spec))
    if mutable:
        for group in (fixed, *(fixed.get("podGroupTemplates") or ())):
            ((group.get("schedulingPolicy") or {}).get("gang") or {}).pop("minCount", None)
    return fixed


def _changes(new: Object, old: Object, context: Context) -> list[Cause]:
    """Return the errors in a changed spec. In some releases minCount may change, and otherwise nothing."""
    mutable = context.release.min_count_mutable
    spec, before = (_immutable_part(obj.get("spec") or {}, mutable=mutable) for obj in (new, old))
    return [
        errors.immutable(f"spec.{field}", None)
        for field in sorted({*spec, *before})
        if spec.get(field) != before.get(field)
    ]


class PodGroupStrategy(Strategy):
    """The rules of PodGroups. A finalizer protects a PodGroup while pods that may run refer to it."""

    has_status = True

    def default(self, obj: Object, context: Context) -> None:
        spec = obj.setdefault("spec", {})
        _drop_disabled(spec, context)
        spec.setdefault("disruptionMode", "Pod" if context.release.schema == "1.36" else {"single": {}})

    def prepare_create(self, obj: Object, context: Context) -> None:
        super().prepare_create(obj, context)
        finalizers = obj["metadata"].setdefault("finalizers", [])
        if PROTECTION_FINALIZER not in finalizers:
            finalizers.append(PROTECTION_FINALIZER)
        _require_workload(obj, context)
        if context.release.schema == "1.37":
            _admit_priority(obj, context)

    def prepare_status(self, new: Object, old: Object, context: Context) -> None:
        super().prepare_status(new, old, context)
        new["metadata"] = dict(old["metadata"])

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        spec = obj.get("spec") or {}
        causes = list(_policy_causes(spec.get("schedulingPolicy"), "spec.schedulingPolicy"))
        if (priority := spec.get("priority", 0)) > USER_PRIORITY_MAX:
            detail = f"must be less than or equal to {USER_PRIORITY_MAX}"
            causes.append(errors.invalid_value("spec.priority", priority, detail))
        return causes

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        return _changes(new, old, context)

    def validate_status(self, new: Object, old: Object, context: Context) -> list[Cause]:
        return list(_condition_causes((new.get("status") or {}).get("conditions") or []))


def _condition_causes(conditions: list[Any]) -> Iterator[Cause]:
    """Return the errors by the rules of `metav1.Condition`, which the conditions of older kinds need not follow."""
    for position, condition in enumerate(conditions):
        at = f"status.conditions[{position}]"
        if condition.get("status") not in _CONDITION_STATUSES:
            yield errors.not_supported(f"{at}.status", condition.get("status"), _CONDITION_STATUSES)
        for field in ("lastTransitionTime", "reason"):
            if not condition.get(field):
                yield errors.required(f"{at}.{field}")


def _require_workload(group: Object, context: Context) -> None:
    """Refuse a PodGroup whose Workload does not exist, as 1.36 does (admission plugin PodGroupWorkloadExists)."""
    reference = ((group.get("spec") or {}).get("podGroupTemplateRef") or {}).get("workload")
    if context.release.schema != "1.36" or not reference:
        return
    metadata, name = group["metadata"], reference.get("workloadName")
    workload = context.find(WORKLOADS, metadata["namespace"], name)
    template = reference.get("podGroupTemplateName")
    if workload is None:
        why = f'PodGroup rejected: Workload "{name}" not found'
    elif "deletionTimestamp" in workload["metadata"]:
        why = f'PodGroup rejected: Workload "{name}" is being deleted'
    elif all(item.get("name") != template for item in workload["spec"].get("podGroupTemplates") or ()):
        why = f'PodGroup rejected: PodGroupTemplate "{template}" not found in Workload "{name}"'
    else:
        return
    raise errors.forbidden(PODGROUPS, metadata["name"], why)


def _admit_priority(group: Object, context: Context) -> None:
    spec = group["spec"]
    name = spec.get("priorityClassName")
    found = context.find(PRIORITYCLASSES, "", name) if name else {"value": 0}
    if found is None:
        why = f"no PriorityClass with name {name} was found"
        raise errors.forbidden(PODGROUPS, group["metadata"]["name"], why)
    spec["priority"] = found.get("value", 0)
