"""Checks of the Job, or of the Jobs of the roles: kind, shape, numbers, containers, names, labels, and the queue.

The parameters of each role are checked as those of a gang of one Job. The API server accepts a Job whose pod template
has invalid finalizers or labels, and refuses every pod of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.identity import ROLE_NAME_MAX, SLUG_MAX
from airflow_provider_gangjobs.gang.queues import MULTIKUEUE, parse_topology
from airflow_provider_gangjobs.gang.render.placement import (
    INDEXED,
    NON_INDEXED,
    SHARED_CLAIMS,
    ineligibility_reason,
    is_single_pod,
    rendezvous_of,
    shape_of,
)
from airflow_provider_gangjobs.gang.render.user_manifest import kind_of, manifest_of, remedy_of_kind
from airflow_provider_gangjobs.gang.schedulers import (
    AUTO,
    DEFAULT_SCHEDULER,
    JOB_SCHEDULING,
    KUEUE,
    NATIVE,
    SCHEDULER_NAMES,
    YuniKorn,
    owner_of,
    select_scheduler,
)
from airflow_provider_gangjobs.gang.spec import (
    DURATION_MAX_S,
    GangPolicy,
    GangSpec,
    Rendezvous,
    RoleSpec,
    is_whole_number,
    names_of_type,
    roles_of,
    spec_of_role,
)
from airflow_provider_gangjobs.gang.validation.parsed_spec import TEMPLATE, ParsedSpec, parameter_in
from airflow_provider_gangjobs.kube import names
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.well_known import (
    DEFAULT_CONTAINER,
    LABEL_KUEUE_PRIORITY,
    LABEL_KUEUE_QUEUE,
    MAIN_CONTAINER,
    PREFIX,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

INDEXED_PARALLELISM_MAX: Final = 100_000
"""Limit of the API server for Indexed Jobs."""
JOB_BYTES_MAX: Final = 1024 * 1024
"""etcd accepts 1.5 MiB by default, which includes managedFields and status."""

_SERVER_FIELDS: Final = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
)
_AT_LEAST: Final = dict.fromkeys(names_of_type("int", "int | None"), 0) | {"workers": 1, "min_workers": 1}
_INT32_MAX: Final = 2**31 - 1
_POSITIVE: Final = names_of_type("float | None")
_PORTS: Final = range(1, 65536)


def check_kind(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that the manifest is a batch/v1 Job, and not a copy of a Job from the API server."""
    manifest = parsed.manifest
    if parsed.spec.manifest is None:
        if parsed.spec.image is None:
            yield Problem("image", "is missing", "Give image, or manifest with a whole Job")
        return
    if kind_of(manifest) != "batch/v1 Job":
        yield Problem("manifest", f"is {kind_of(manifest)}", remedy_of_kind(manifest))
        return
    copied = [name for name in _SERVER_FIELDS if name in manifest.get("metadata", {})]
    copied = [f"metadata.{name}" for name in copied] + ["status"] * bool(manifest.get("status"))
    if copied:
        yield Problem("manifest", f"has {', '.join(copied)} of a live object", "Remove what the server writes")
    for name in ("selector", "manualSelector"):
        if name in manifest.get("spec", {}):
            yield Problem(f"manifest.spec.{name}", "is chosen by the server", "Remove it")


def check_numbers(parsed: ParsedSpec) -> Iterator[Problem]:
    spec = parsed.spec
    for parameter, least in _AT_LEAST.items():
        value = getattr(spec, parameter)
        if value is not None and value < least:
            yield Problem(parameter, f"is {value}", f"Give {least} or more")
        elif value is not None and value > _INT32_MAX:
            yield Problem(parameter, f"is {value!r:.30}", f"Give {_INT32_MAX} at most")
    for parameter in _POSITIVE:
        value = getattr(spec, parameter)
        if value is not None and value <= 0:
            yield Problem(parameter, f"is {value:g} s", "Give more than 0, or leave it out for no limit")
        elif value is not None and value > DURATION_MAX_S and parameter != "execution_timeout_s":
            yield Problem(parameter, f"is {value!r:.30} s", "Leave it out for no limit")
    if parsed.shape.parallelism == 0 and spec.workers is None:
        remedy = "Give the number of pods, or suspend: true for a Job that somebody resumes later"
        yield Problem("manifest.spec.parallelism", "is 0, with which no pod ever starts", remedy)
    size = parsed.shape.size
    if spec.min_workers is not None and spec.min_workers > size:
        yield Problem("min_workers", f"is {spec.min_workers}, and the gang has {size}", "Give at most workers")
    if parsed.shape.indexed and parsed.shape.parallelism > INDEXED_PARALLELISM_MAX:
        yield Problem(
            "workers", f"is {parsed.shape.parallelism}", f"An Indexed Job has {INDEXED_PARALLELISM_MAX} at most"
        )
    if isinstance(spec.rendezvous, Rendezvous) and spec.rendezvous.port not in _PORTS:
        yield Problem("rendezvous.port", f"is {spec.rendezvous.port!r}", "Give a port from 1 to 65535")


def check_choices(parsed: ParsedSpec) -> Iterator[Problem]:
    spec, mode = parsed.spec, parsed.manifest.get("spec", {}).get("completionMode", INDEXED)
    if spec.gang not in list(GangPolicy):
        yield Problem("gang", f"is {spec.gang!r}", f"Choose one of {', '.join(GangPolicy)}")
    yield from _check_scheduler(parsed)
    if mode not in {INDEXED, NON_INDEXED}:
        yield Problem("manifest.spec.completionMode", f"is {mode!r}", f"Choose {INDEXED} or {NON_INDEXED}")
    if spec.image_pull_policy not in {None, "Always", "IfNotPresent", "Never"}:
        yield Problem("image_pull_policy", f"is {spec.image_pull_policy!r}", "Choose Always, IfNotPresent or Never")


def _check_scheduler(parsed: ParsedSpec) -> Iterator[Problem]:
    spec, scheduler_name = parsed.spec, parsed.shape.scheduler_name
    chosen = spec.gang_scheduler
    if chosen is not None and chosen not in SCHEDULER_NAMES:
        yield Problem("gang_scheduler", f"is {chosen!r}", f"Choose one of {', '.join((AUTO, *SCHEDULER_NAMES))}")
        return
    owner = owner_of(scheduler_name)
    places = {owner.name} if owner else {NATIVE, JOB_SCHEDULING} if scheduler_name == DEFAULT_SCHEDULER else {chosen}
    if chosen is not None and chosen not in places:
        yield Problem(
            "gang_scheduler",
            f"is {chosen!r}, and the pods name the scheduler {scheduler_name!r}",
            "Keep one of the two",
        )


def check_shape(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that a required gang has a valid shape (KEP-5547), and that a rendezvous has ranks."""
    shape, job = parsed.shape, parsed.manifest.get("spec", {})
    must_be_gang = parsed.spec.gang == GangPolicy.REQUIRED and not shape.user_gang_link and not is_single_pod(shape)
    if must_be_gang and (reason := ineligibility_reason(shape)):
        yield Problem(
            "workers" if parsed.spec.manifest is None else "manifest.spec",
            f"cannot be a gang: {reason}",
            'Give workers, completionMode: Indexed and backoffLimit: 0, or set gang="preferred" or "off"',
        )
    for claim in shape.shared_claims:
        if claim not in (parsed.pod.get("resourceClaims") or ()):
            yield Problem(
                SHARED_CLAIMS,
                f"has {claim.get('name')!r:.80}, and the pods have no equal claim, so they would not share its devices",
                f"Give the same entry in {TEMPLATE}.spec.resourceClaims",
            )
    if "scheduling" in job and parsed.pod.get("schedulingGroup"):
        yield Problem(
            "manifest.spec.scheduling", "is given together with the pods' schedulingGroup", "Keep one of the two"
        )
    if rendezvous_of(parsed.spec, shape) and not shape.indexed:
        yield Problem("rendezvous", "needs ranks, and completionMode is NonIndexed", "Set completionMode: Indexed")


def check_restart_policy(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that the kubelet does not restart one rank of a gang alone."""
    policy = parsed.pod.get("restartPolicy", "Never")
    path = f"{TEMPLATE}.spec.restartPolicy"
    if policy not in {"Never", "OnFailure"}:
        yield Problem(path, f"is {policy!r}, which a Job may not have", "Set it to Never")
    elif policy == "OnFailure" and parsed.spec.gang == GangPolicy.REQUIRED and not is_single_pod(parsed.shape):
        yield Problem(path, "is OnFailure, and a rank that restarts alone has lost its peers", "Set it to Never")


def check_containers(parsed: ParsedSpec) -> Iterator[Problem]:
    if not parsed.pod.get("containers"):
        yield Problem(f"{TEMPLATE}.spec.containers", "has none left", "Do not remove all of them by pod_overrides")
    seen: set[object] = set()
    written, added = ((each.get("spec") or {}).get("containers") or [] for _, each in parsed.user_templates())
    known = [one.get("name") for one in (written or [{"name": MAIN_CONTAINER}]) + added]
    main = parsed.pod["containers"][0].get("name") if parsed.pod.get("containers") else None
    if main not in (None, *known):
        what = f"names the container {main!r:.80}, which the pods do not have"
        yield Problem(f"annotations.{DEFAULT_CONTAINER}", what, f"Name one of {', '.join(map(str, known))}")
        return  # otherwise the image of this container is missing, too
    for path, container in parsed.containers():
        if not container.get("image"):
            yield Problem(f"{path}.image", "is missing", _image_remedy(parsed, container))
        elif re.search(r"\s", str(container["image"])):
            # The API server accepts such a name, and the kubelet does not.
            where = "image" if container["image"] == parsed.spec.image else f"{path}.image"
            yield Problem(
                where, f"is {container['image']!r:.80}, which has white space", "Correct the name of the image"
            )
        name = container.get("name")
        if name in seen:
            yield Problem(f"{path}.name", f"{name!r} is given twice", "Rename one of the containers")
        seen.add(name)


def _image_remedy(parsed: ParsedSpec, container: Mapping[str, Any]) -> str:
    """Return what to do about a container without an image, by which `pod_overrides` may mean that of the rank."""
    ranks = parsed.pod["containers"][0].get("name")
    if container.get("name") == ranks:
        return "Give image"
    return f"Give image, or name the container {ranks} if you mean that of the rank"


def check_size(parsed: ParsedSpec) -> Iterator[Problem]:
    size = len(json.dumps([parsed.manifest, parsed.template], default=str))
    if size > JOB_BYTES_MAX:
        yield Problem(
            "manifest", f"makes a Job of about {size} bytes", f"At most {JOB_BYTES_MAX}: use files or a volume"
        )


ROLES_MIN: Final = 2
ROLES_MAX: Final = 8
"""Each role is a Job, which costs two requests, and pods of one gang have few kinds."""
_ROLE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ROLE_PARAMETERS: Final = RoleSpec.__struct_fields__
_GANG_PARAMETERS: Final = frozenset(GangSpec.__struct_fields__) - {*_ROLE_PARAMETERS, "roles"}
_REFUSED_WITH_ROLES: Final = {
    "manifest": "describes one Job only",
    "min_workers": "does not say which roles may start with fewer ranks",
    "topology": "applies to each role separately",
}
"""Parameters that a gang with roles cannot have, and why."""

ValidateGang = Callable[[GangSpec], tuple[Problem, ...]]


def validate_roles(spec: GangSpec, validate: ValidateGang) -> tuple[Problem, ...]:
    """Return all problems of the spec of a gang with roles, by the check of a gang of one Job."""
    problems = [*_form_of_roles(spec.roles), *_refused_with_roles(spec)]
    if problems:
        return tuple(problems)
    problems += [*_scheduler_of_roles(spec), *_size_of_roles(spec)]
    for name in spec.roles or {}:
        role = spec_of_role(spec, name)
        found = validate(role)
        problems += [_of_role(problem, name) for problem in found]
        if not found:
            problems += _pods_of_role(role, name)
    return tuple(dict.fromkeys(problems))


def _form_of_roles(roles: Any) -> Iterator[Problem]:
    if not isinstance(roles, Mapping):
        yield Problem("roles", f"is {type(roles).__name__}, not a mapping", 'Give {"leader": {...}, "worker": {...}}')
        return
    if not ROLES_MIN <= len(roles) <= ROLES_MAX:
        remedy = f"Give {ROLES_MIN} to {ROLES_MAX} roles, or leave roles out for a gang whose ranks are all alike"
        yield Problem("roles", f"has {pluralize(len(roles), 'role')}", remedy)
    for name, role in roles.items():
        yield from _name_of_role(name)
        if not isinstance(role, Mapping):
            yield Problem(
                f"roles.{name}", f"is {type(role).__name__}, not a mapping", "Give the parameters of the role"
            )
        else:
            yield from _keys_of_role(name, role)


def _name_of_role(name: Any) -> Iterator[Problem]:
    if not isinstance(name, str) or not _ROLE_NAME.fullmatch(name):
        yield Problem(
            "roles", f"has the role {name!r}", "Use lower-case letters, digits and hyphens, and begin with a letter"
        )
    elif len(name) > ROLE_NAME_MAX:
        what = f"has the role {name}, whose name has {len(name)} characters"
        yield Problem("roles", what, f"Use at most {ROLE_NAME_MAX}: host names contain the name")


def _keys_of_role(name: Any, role: Mapping[Any, Any]) -> Iterator[Problem]:
    for key in role:
        path = f"roles.{name}.{key}"
        if key in _GANG_PARAMETERS:
            yield Problem(path, "belongs to the whole gang", f"Give {key} as a parameter of the gang")
        elif key not in _ROLE_PARAMETERS:
            import difflib  # imports regular expressions, which a valid gang does not need

            similar = difflib.get_close_matches(str(key), _ROLE_PARAMETERS, n=1)
            choice = similar[0] if similar else f"one of {', '.join(_ROLE_PARAMETERS)}"
            yield Problem(path, "is no parameter of a role", f"Choose {choice}")


def _refused_with_roles(spec: GangSpec) -> Iterator[Problem]:
    for parameter in _ROLE_PARAMETERS:
        if getattr(spec, parameter) is not None:
            yield Problem(parameter, "is given together with roles", f"Give {parameter} in each role that needs it")
    for parameter, why in _REFUSED_WITH_ROLES.items():
        value = getattr(spec, parameter)
        if value is not None and value is not False:
            yield Problem(parameter, f"is given together with roles, and {why}", f"Leave {parameter} out")


def _scheduler_of_roles(spec: GangSpec) -> Iterator[Problem]:
    labels: Any = spec.labels  # the checks of the roles report what is no mapping
    queue = spec.queue_name or (labels.get(LABEL_KUEUE_QUEUE) if isinstance(labels, Mapping) else None)
    if queue is not None and spec.gang_scheduler not in (None, AUTO, KUEUE):
        what = f"is {spec.gang_scheduler}, and the gang is in the queue {queue}, where only Kueue places roles"
        yield Problem("gang_scheduler", what, "Leave out gang_scheduler or the queue")
    if spec.gang_scheduler == JOB_SCHEDULING:
        what = f"is {JOB_SCHEDULING}, with which each Job makes a group of its own"
        yield Problem("gang_scheduler", what, "Choose native, volcano or coscheduling for a gang with roles")
    if isinstance(select_scheduler(spec.gang_scheduler, spec.scheduler_name), YuniKorn):
        what = "is yunikorn, whose task group has pods of one kind only"
        yield Problem("gang_scheduler", what, "Choose native, volcano or coscheduling for a gang with roles")


def _size_of_roles(spec: GangSpec) -> Iterator[Problem]:
    workers = [role.get("workers") for role in (spec.roles or {}).values()]
    if all(number is None or is_whole_number(number, 1) for number in workers):
        size = sum(role.size for role in roles_of(spec))
        if size > INDEXED_PARALLELISM_MAX:
            yield Problem("roles", f"have {size} ranks together", f"A gang has {INDEXED_PARALLELISM_MAX} at most")


def _pods_of_role(role: GangSpec, name: str) -> Iterator[Problem]:
    path = f"roles.{name}.pod_overrides"
    shape = shape_of(role, manifest_of(role))
    overrides = (role.pod_overrides or {}).get("spec") or {}
    if shape.user_gang_link:
        yield Problem(path, f"sets {shape.user_gang_link}", "Remove it: the provider links the pods of all roles")
    if shape.scheduler_name != role.scheduler_name:
        yield Problem(
            path, f"sets schedulerName to {shape.scheduler_name}", "Give scheduler_name as a parameter of the gang"
        )
    for field, parameter in {"priorityClassName": "priority_class", "subdomain": "rendezvous"}.items():
        if field in overrides:
            yield Problem(
                path, f"sets {field}, which all pods of a gang share", f"Give {parameter} as a parameter of the gang"
            )


def _of_role(problem: Problem, name: str) -> Problem:
    """Return the problem with the path of the role, unless the parameter belongs to the gang."""
    if parameter_in(problem.path) in _GANG_PARAMETERS:
        return problem
    return Problem(f"roles.{name}.{problem.path}", problem.what, problem.remedy)


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
