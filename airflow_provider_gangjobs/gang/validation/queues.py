"""Checks of the queue of a gang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.labels import LABEL_KUEUE_PRIORITY, LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.gang.queues.kueue import MULTIKUEUE, parse_topology
from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.kube import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.gang.validation.parsed_spec import ParsedSpec

PARTIAL_ADMISSION: Final = "kueue.x-k8s.io/job-min-parallelism"
"""Annotation with which Kueue may start a Job with fewer pods."""
_PARAMETERS: Final = {"queue_name": LABEL_KUEUE_QUEUE, "queue_priority": LABEL_KUEUE_PRIORITY}


def check_queue_parameters(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check the names, and refuse what would run another gang than the one that was described."""
    spec, metadata = parsed.spec, parsed.manifest.get("metadata", {})
    labels = {**(metadata.get("labels") or {}), **spec.labels}
    annotations = {**(metadata.get("annotations") or {}), **spec.annotations}
    for parameter, label in _PARAMETERS.items():
        value, labelled = getattr(spec, parameter), labels.get(label)
        if value is None:
            continue
        if wrong := names.problem_with_dns_subdomain(value) or names.problem_with_label_value(value):
            yield Problem(parameter, wrong, "Rename it")
        elif labelled not in {None, value}:
            yield Problem(parameter, f"is {value}, and the label {label} is {labelled}", "Remove the label")
    if spec.queue_priority is not None and not (spec.queue_name or labels.get(LABEL_KUEUE_QUEUE)):
        yield Problem("queue_priority", "is given without queue_name", "Give queue_name, or use priority_class")
    if spec.topology is not None:
        yield from _topology(spec.topology, has_queue=bool(spec.queue_name or labels.get(LABEL_KUEUE_QUEUE)))
    if PARTIAL_ADMISSION in annotations and spec.gang != GangPolicy.OFF:
        yield Problem(
            f"annotations.{PARTIAL_ADMISSION}",
            "lets Kueue start fewer ranks than the gang has",
            'Remove it, or set gang="off"',
        )
    if parsed.manifest.get("spec", {}).get("managedBy") == MULTIKUEUE:
        yield Problem(
            "manifest.spec.managedBy",
            f"is {MULTIKUEUE}: the pods run in another cluster, where nobody records their outcomes",
            "Remove it, and name a queue that does not dispatch its Jobs to other clusters",
        )


def _topology(value: str, *, has_queue: bool) -> Iterator[Problem]:
    found = parse_topology(value)
    if found is None:
        yield Problem("topology", f"is {value!r}", "Give required:LABEL or preferred:LABEL")
    elif wrong := names.problem_with_qualified_name(found[1]):
        yield Problem("topology", wrong, "Give the label of nodes that is a level of the Topology")
    elif not has_queue:
        yield Problem("topology", "is given without queue_name", "Give queue_name, or use affinity")
