"""Jobs: defaults, the generated selector, and what may change after creation.

Follows `pkg/apis/batch/v1/defaults.go`, `pkg/registry/batch/job/strategy.go` and `pkg/apis/batch/validation`.
The rules for status are in `job_status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import selectors, validation
from gangjobs_sandbox.registry import pod_defaults
from gangjobs_sandbox.registry.deletion import Propagation
from gangjobs_sandbox.registry.job_scheduling import (
    require_fixed_parallelism,
    scheduling_causes,
    scheduling_update_causes,
)
from gangjobs_sandbox.registry.job_status import status_causes
from gangjobs_sandbox.registry.pod_defaults import default_pod_spec
from gangjobs_sandbox.registry.pod_validation import template_causes
from gangjobs_sandbox.registry.strategies import Context, Strategy, count_generation
from gangjobs_sandbox.store import Object, objects_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gangjobs_sandbox.errors import Cause

__all__ = ["JobStrategy"]

_INT32_MAX = 2**31 - 1
_PARALLELISM_MAX = 100_000
_COMPLETIONS_SOFT_LIMIT = 100_000
_PARALLELISM_MAX_ABOVE = 10_000
_UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")
_NAME_LABELS = ("job-name", "batch.kubernetes.io/job-name")
_COUNTS = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
)
_IMMUTABLE = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)
_SUSPENDED_MUTABLE = ("nodeSelector", "tolerations", "schedulingGates")


class JobStrategy(Strategy):
    """The rules of Jobs. The deletion of a Job orphans its pods by default, as in `batch/v1`."""

    has_status = True
    propagation = Propagation.ORPHAN

    def default(self, obj: Object, context: Context) -> None:
        spec = obj.setdefault("spec", {})
        if spec.get("completions") is None and spec.get("parallelism") is None:
            spec["completions"] = spec["parallelism"] = 1
        _set_default(spec, "parallelism", 1)
        _set_default(spec, "backoffLimit", 6 if spec.get("backoffLimitPerIndex") is None else _INT32_MAX)
        _set_default(spec, "completionMode", "NonIndexed")
        _set_default(spec, "suspend", False)
        _set_default(spec, "podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
        _set_default(spec, "manualSelector", False)
        template = spec.setdefault("template", {})
        pod_spec = template.setdefault("spec", {})
        pod_defaults.drop_from_job(spec, context.release)
        default_pod_spec(pod_spec)
        labels = (template.get("metadata") or {}).get("labels")
        if labels and not obj["metadata"].get("labels"):
            # The template and the Job share this dict, so that labels generated for the template become labels of the
            # Job.
            obj["metadata"]["labels"] = labels

    def prepare_create(self, obj: Object, context: Context) -> None:
        obj["metadata"]["generation"] = 1
        if not obj["spec"]["manualSelector"]:
            _generate_selector(obj)
        obj["status"] = {}

    def canonicalize(self, obj: Object) -> None:
        """Give a Job without labels the labels of its template, including the generated ones."""
        labels = (obj["spec"]["template"].get("metadata") or {}).get("labels")
        if labels and not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)

    def prepare_update(self, new: Object, old: Object, context: Context) -> None:
        super().prepare_update(new, old, context)
        if context.release.schema == "1.36":
            require_fixed_parallelism(new, old, context)
        count_generation(new, old)

    def validate_create(self, obj: Object, context: Context) -> list[Cause]:
        return list(_selector_causes(obj))

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        return [*_spec_causes(obj["spec"]), *_name_causes(obj)]

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        spec, before = new["spec"], old["spec"]
        causes = list(_completions_causes(spec, before))
        causes += [
            errors.immutable(f"spec.{field}", spec.get(field))
            for field in _IMMUTABLE
            if spec.get(field) != before.get(field)
        ]
        causes += _template_causes(spec["template"], old)
        causes += scheduling_update_causes(spec.get("scheduling"), before.get("scheduling"))
        return causes

    def validate_status(self, new: Object, old: Object, context: Context) -> list[Cause]:
        return status_causes(new, old)

    def warnings(self, obj: Object) -> list[str]:
        name = obj["metadata"]["name"]
        if not (complaints := validation.dns_label(name)):
            return []
        text = "this is used in Pod names and hostnames, which can result in surprising behavior"
        return [f"metadata.name: {text}; a DNS label is recommended: [{' '.join(complaints)}]"]


def _set_default(spec: Object, field: str, value: Any) -> None:
    if spec.get(field) is None:
        spec[field] = value


def _generate_selector(job: Object) -> None:
    """Generate labels with which a Job selects its own pods and no others."""
    metadata, spec = job["metadata"], job["spec"]
    template_metadata = spec["template"].get("metadata") or {}
    spec["template"]["metadata"] = template_metadata
    labels = template_metadata.get("labels") or {}
    template_metadata["labels"] = labels
    for label in _UID_LABELS:
        labels.setdefault(label, metadata["uid"])
    for label in _NAME_LABELS:
        labels.setdefault(label, metadata["name"])
    selector = spec.get("selector") or {}
    spec["selector"] = selector
    wanted = selector.get("matchLabels") or {}
    selector["matchLabels"] = wanted
    wanted.setdefault("batch.kubernetes.io/controller-uid", metadata["uid"])


def _selector_causes(job: Object) -> Iterator[Cause]:
    metadata, spec = job["metadata"], job["spec"]
    if spec.get("manualSelector"):
        return
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    expected = dict.fromkeys(_UID_LABELS, metadata["uid"]) | dict.fromkeys(_NAME_LABELS, metadata["name"])
    for label, value in expected.items():
        path = f"spec.template.metadata.labels[{label}]"
        if label not in labels:
            yield errors.required(path, f"must be '{value}'")
        elif labels[label] != value:
            yield errors.invalid_value(path, labels, f"must be '{value}'")
    if not selectors.from_object(spec.get("selector")).matches(expected):
        yield errors.invalid_value("spec.selector", spec.get("selector"), "`selector` not auto-generated")


def _spec_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    for field in _COUNTS:
        if (number := spec.get(field)) is not None and number < 0:
            yield errors.invalid_value(f"spec.{field}", number, "must be greater than or equal to 0")
    yield from _mode_causes(spec)
    yield from _policy_causes(spec)
    yield from scheduling_causes(spec)
    yield from template_causes(spec["template"], "spec.template")
    yield from _restart_causes(spec)
    selector, labels = spec.get("selector"), (spec["template"].get("metadata") or {}).get("labels")
    if selector is None:
        yield errors.required("spec.selector")
    if selector is None or not selectors.from_object(selector).matches(labels):
        yield errors.invalid_value(
            "spec.template.metadata.labels", labels, "`selector` does not match template `labels`"
        )


def _mode_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    mode = spec["completionMode"]
    if mode not in {"NonIndexed", "Indexed"}:
        yield errors.not_supported("spec.completionMode", mode, ("NonIndexed", "Indexed"))
    elif mode == "NonIndexed":
        for field in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if (value := spec.get(field)) is not None:
                yield errors.invalid_value(f"spec.{field}", value, "requires indexed completion mode")
    else:
        yield from _indexed_causes(spec)


def _indexed_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    completions, parallelism = spec.get("completions"), spec["parallelism"]
    if completions is None:
        yield errors.required("spec.completions", "when completion mode is Indexed")
    if parallelism > _PARALLELISM_MAX:
        detail = f"must be less than or equal to {_PARALLELISM_MAX} when completion mode is Indexed"
        yield errors.invalid_value("spec.parallelism", parallelism, detail)
    allowed_failures = spec.get("maxFailedIndexes")
    if allowed_failures is not None:
        if spec.get("backoffLimitPerIndex") is None:
            yield errors.required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
        if completions is not None and allowed_failures > completions:
            detail = "must be less than or equal to completions"
            yield errors.invalid_value("spec.maxFailedIndexes", allowed_failures, detail)
    if (completions or 0) > _COMPLETIONS_SOFT_LIMIT and spec.get("backoffLimitPerIndex") is not None:
        if allowed_failures is None:
            detail = f"must be specified when completions is above {_COMPLETIONS_SOFT_LIMIT}"
            yield errors.required("spec.maxFailedIndexes", detail)
        if parallelism > _PARALLELISM_MAX_ABOVE:
            detail = (
                f"must be less than or equal to {_PARALLELISM_MAX_ABOVE} when completions are above "
                f"{_COMPLETIONS_SOFT_LIMIT} and used with backoff limit per index"
            )
            yield errors.invalid_value("spec.parallelism", parallelism, detail)


def _policy_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    replacement = spec["podReplacementPolicy"]
    if spec.get("podFailurePolicy") is not None and replacement != "Failed":
        yield errors.not_supported("spec.podReplacementPolicy", replacement, ("Failed",))
    elif replacement not in {"Failed", "TerminatingOrFailed"}:
        yield errors.not_supported("spec.podReplacementPolicy", replacement, ("Failed", "TerminatingOrFailed"))


def _restart_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    path, policy = "spec.template.spec.restartPolicy", spec["template"]["spec"].get("restartPolicy")
    if policy in {"Always", None}:
        yield errors.required(path, 'valid values: "OnFailure", "Never"')
    elif policy not in {"OnFailure", "Never"}:
        yield errors.not_supported(path, policy, ("OnFailure", "Never"))
    elif spec.get("podFailurePolicy") is not None and policy != "Never":
        yield errors.invalid_value(path, policy, 'only "Never" is supported when podFailurePolicy is specified')


def _name_causes(job: Object) -> Iterator[Cause]:
    """Return the errors in the name of an Indexed Job. The host names of its pods are the name and the index."""
    spec, name = job["spec"], job["metadata"]["name"]
    if spec["completionMode"] == "Indexed" and spec.get("completions"):
        last = f"{name}-{spec['completions'] - 1}"
        if validation.dns_label(last):
            detail = f"will not able to create pod with invalid DNS label: {last}"
            yield errors.invalid_value("metadata.name", name, detail)


def _completions_causes(spec: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Cause]:
    """Return the errors in changed completions.

    Only an Indexed Job may change them, with its parallelism (elastic Jobs).
    """
    wanted, present = spec.get("completions"), before.get("completions")
    if wanted == present:
        return
    if before["completionMode"] != "Indexed":
        yield errors.immutable("spec.completions", wanted)
    elif wanted is not None and wanted != spec.get("parallelism"):
        detail = "can only be modified in tandem with spec.parallelism"
        yield errors.invalid_value("spec.completions", wanted, detail)


def _template_causes(template: Mapping[str, Any], old: Object) -> Iterator[Cause]:
    """Return the errors in a changed template.

    Only node placement, resources and metadata may change, and only while the Job has no pods.
    """
    before = old["spec"]["template"]
    if not _is_template_mutable(old):
        if template != before:
            yield errors.immutable("spec.template", template)
        return
    frozen: Object = objects_copy(dict(template["spec"]))
    for field in _SUSPENDED_MUTABLE:
        _restore(frozen, before["spec"], field)
    _restore_node_affinity(frozen, before["spec"])
    for field in ("containers", "initContainers"):
        for container, original in zip(frozen.get(field) or (), before["spec"].get(field) or (), strict=False):
            _restore(container, original, "resources")
    if frozen != before["spec"]:
        yield errors.immutable("spec.template.spec", template["spec"])


def _is_template_mutable(job: Object) -> bool:
    """Return whether parts of the template may change: the Job is suspended and has no pods (KEP-2926, KEP-5440)."""
    status = job.get("status") or {}
    stopped = any(c["type"] == "Suspended" and c["status"] == "True" for c in status.get("conditions") or ())
    return bool(job["spec"].get("suspend")) and (stopped or "startTime" not in status) and not status.get("active")


def _restore_node_affinity(spec: Object, before: Mapping[str, Any]) -> None:
    """Set the node part of the affinity, which may change, to its old value. An affinity without parts equals none."""
    affinity: Object = spec.pop("affinity", None) or {}
    _restore(affinity, before.get("affinity") or {}, "nodeAffinity")
    if affinity or "affinity" in before:
        spec["affinity"] = affinity


def _restore(obj: Object, before: Mapping[str, Any], field: str) -> None:
    if field in before:
        obj[field] = before[field]
    else:
        obj.pop(field, None)
