"""Names, labels, annotations and finalizers, and the names of the queue and its priority.

The API server accepts a Job whose pod template has invalid finalizers or labels, and refuses every pod of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.identity import SLUG_MAX
from airflow_provider_gangjobs.gang.queues import MULTIKUEUE, parse_topology
from airflow_provider_gangjobs.gang.spec import GangPolicy
from airflow_provider_gangjobs.kube import names
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_PRIORITY, LABEL_KUEUE_QUEUE, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
        elif labelled not in (None, value):
            yield Problem(parameter, f"is {value}, and the label {label} is {labelled}", "Remove the label")
    if spec.queue_priority is not None and not (spec.queue_name or labels.get(LABEL_KUEUE_QUEUE)):
        yield Problem("queue_priority", "is given without queue_name", "Give queue_name, or use priority_class")
    if spec.topology is not None:
        yield from _topology(spec.topology)
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


def _topology(value: str) -> Iterator[Problem]:
    found = parse_topology(value)
    if found is None:
        yield Problem("topology", f"is {value!r}", "Give required:LABEL or preferred:LABEL")
    elif wrong := names.problem_with_qualified_name(found[1]):
        yield Problem("topology", wrong, "Give a label of nodes; in a queue, one that is a level of its Topology")


_RESERVED_POD_LABELS: Final = frozenset({"controller-uid", "job-name"})
_RESERVED_POD_PREFIX: Final = "batch.kubernetes.io/"
_PROVIDER_ANNOTATIONS_BYTES: Final = 8 * 1024
"""Space that is reserved for the annotations of the provider."""


def check_names(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that all names are valid, and that the Job's name has space for the digest and the attempt."""
    spec, metadata = parsed.spec, parsed.manifest.get("metadata", {})
    if spec.name is not None:
        yield from _slug("name", spec.name)
    elif "name" in metadata:
        yield from _slug("manifest.metadata.name", metadata["name"])
    elif "generateName" in metadata:
        yield Problem("manifest.metadata.generateName", "gives each try another name", "Use metadata.name")
    if spec.name is not None and "generateName" in metadata:
        yield Problem("manifest.metadata.generateName", "is given together with name", "Remove it")
    yield from _named(names.problem_with_dns_label, _label_names(parsed))
    yield from _named(names.problem_with_dns_subdomain, _subdomain_names(parsed))


def _slug(path: str, value: Any) -> Iterator[Problem]:
    if wrong := names.problem_with_dns_label_1035(value):
        yield Problem(path, wrong, "A Service is named after the Job, so it follows RFC 1035")
    elif len(value) > SLUG_MAX:
        yield Problem(
            path,
            f"{value!r} has {len(value)} characters",
            f"At most {SLUG_MAX}: a digest and the attempt follow, and the Job's name may have 52",
        )


def _label_names(parsed: ParsedSpec) -> Iterator[tuple[str, Any]]:
    namespace = parsed.spec.namespace or parsed.manifest.get("metadata", {}).get("namespace")
    if namespace is not None:
        yield "namespace", namespace
    for path, container in parsed.containers():
        yield f"{path}.name", container.get("name")
    for index, volume in enumerate(parsed.pod.get("volumes", [])):
        yield f"spec.template.spec.volumes[{index}].name", volume.get("name")


def _subdomain_names(parsed: ParsedSpec) -> Iterator[tuple[str, Any]]:
    for parameter in ("priority_class", "service_account"):
        if (value := getattr(parsed.spec, parameter)) is not None:
            yield parameter, value
    for index, secret in enumerate(parsed.spec.image_pull_secrets or ()):
        yield f"image_pull_secrets[{index}]", secret


def _named(rule: Callable[[Any], str | None], values: Iterator[tuple[str, Any]]) -> Iterator[Problem]:
    for path, value in values:
        if wrong := rule(value):
            yield Problem(path, wrong, "Rename it")


def check_labels(parsed: ParsedSpec) -> Iterator[Problem]:
    yield from _labels(parsed, "labels", parsed.spec.labels, of_pods=True)
    yield from _annotations(parsed, "annotations", parsed.spec.annotations)
    written = [("manifest", parsed.manifest, False), *((p, t, True) for p, t in parsed.user_templates())]
    for path, thing, of_pods in written:
        metadata = thing.get("metadata") or {}
        at = f"{path}.metadata"
        yield from _labels(parsed, f"{at}.labels", metadata.get("labels") or {}, of_pods=of_pods)
        yield from _annotations(parsed, f"{at}.annotations", metadata.get("annotations") or {})
        yield from _finalizers(f"{at}.finalizers", metadata.get("finalizers") or ())


def check_placement(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that node selectors and tolerations contain text, as the labels and taints of nodes do."""
    yield from _selector(parsed, "node_selector", parsed.spec.node_selector or {})
    yield from _tolerations(parsed, "tolerations", parsed.spec.tolerations or ())
    for path, template in parsed.user_templates():
        pod = template.get("spec") or {}
        yield from _selector(parsed, f"{path}.spec.nodeSelector", pod.get("nodeSelector") or {})
        yield from _tolerations(parsed, f"{path}.spec.tolerations", pod.get("tolerations") or ())


def _labels(parsed: ParsedSpec, path: str, labels: Mapping[str, Any], *, of_pods: bool) -> Iterator[Problem]:
    for key, value in labels.items():
        if value is None:
            continue
        at = f"{path}.{key}"
        yield from _key(at, key)
        if of_pods and (key in _RESERVED_POD_LABELS or key.startswith(_RESERVED_POD_PREFIX)):
            yield Problem(at, "is set by the Job controller", "Remove it")
        if not isinstance(value, str):
            yield parsed.user_manifest.not_text_problem(at, value)
        elif wrong := names.problem_with_label_value(value):
            yield Problem(at, wrong, "Use an annotation for anything else")


def _annotations(parsed: ParsedSpec, path: str, annotations: Mapping[str, Any]) -> Iterator[Problem]:
    size = 0
    for key, value in annotations.items():
        at = f"{path}.{key}"
        yield from _key(at, key)
        if isinstance(value, str):
            size += len(key.encode()) + len(value.encode())
        elif value is not None:
            yield parsed.user_manifest.not_text_problem(at, value)
    limit = names.ANNOTATIONS_BYTES_MAX - _PROVIDER_ANNOTATIONS_BYTES
    if size > limit:
        yield Problem(path, f"has {size} bytes in total, and {limit} are allowed", "Use files for large text")


def _key(path: str, key: str) -> Iterator[Problem]:
    if key.startswith(f"{PREFIX}/"):
        yield Problem(path, f"has the prefix {PREFIX}/, which is reserved for the provider", "Use a prefix of your own")
    elif wrong := names.problem_with_qualified_name(key):
        yield Problem(path, wrong, "Rename it")


def _finalizers(path: str, finalizers: Any) -> Iterator[Problem]:
    for index, name in enumerate(finalizers):
        at = f"{path}[{index}]"
        if isinstance(name, str) and name.startswith(f"{PREFIX}/"):
            yield Problem(at, f"has the prefix {PREFIX}/, which is reserved for the provider", "Remove it")
        elif wrong := names.problem_with_finalizer(name):
            yield Problem(at, wrong, "The API server accepts the Job and then refuses every pod")


def _selector(parsed: ParsedSpec, path: str, selector: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in selector.items():
        at = f"{path}.{key}"
        if value is not None and not isinstance(value, str):
            yield parsed.user_manifest.not_text_problem(at, value)
        elif wrong := names.problem_with_qualified_name(key) or (value and names.problem_with_label_value(value)):
            yield Problem(at, wrong, "It must be a node's label")


def _tolerations(parsed: ParsedSpec, path: str, tolerations: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for index, toleration in enumerate(tolerations):
        value = toleration.get("value")
        if value is not None and not isinstance(value, str):
            yield parsed.user_manifest.not_text_problem(f"{path}[{index}].value", value)
