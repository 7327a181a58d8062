"""Parses the YAML that users write: manifests, and the files of `gangjobs submit`.

YAML 1.1, which kubectl reads, too, makes a boolean of `on`, 420 of `0644` and 45045 of `12:30:45`, so messages show the
text, the line, and the parsed value. Nulls are dropped, as the API server does. A text has one object, and messages
name the other ones that it has, and what stands for them here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.client_models import job_of_pod
from airflow_provider_gangjobs.kube.text import is_utf8
from airflow_provider_gangjobs.kube.well_known import DEFAULT_CONTAINER, MAIN_CONTAINER

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec

TEXT_CHARACTERS_MAX: Final = 1_500_000
"""etcd refuses larger requests by default."""
NODES_MAX: Final = 100_000
"""Limit of nodes in a document, because a short text with nested aliases can expand to a huge document."""
DEPTH_MAX: Final = 100
"""A Job with all its fields has 15 levels. PyYAML parses each level by calling itself."""
SCALAR_CHARACTERS_MAX: Final = 1000
"""Limit of keys and values that are no text, because Python computes slowly with long numbers."""
PATH_CHARACTERS_MAX: Final = 1000
"""Where the path of a value is cut. Each value below a long key has a path with the key."""


class _Scalar(Struct, frozen=True):
    """A scalar that YAML did not read as text."""

    text: str
    line: int


class UserManifest(Struct, frozen=True):
    """A manifest as data, with the scalars of a YAML text by their paths, or the problems why it cannot be parsed."""

    data: dict[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, _Scalar] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    line: int = 1
    """The line of a text in which the manifest begins."""

    def not_text_problem(self, path: str, value: Any) -> Problem:
        written = self.scalars.get(path)
        if written is None:
            remedy = f'Write it as text: "{_as_text(value)}"' if isinstance(value, (int, float)) else "Give text"
            return Problem(path, f"is {describe_type(value)}, not text", remedy)
        return Problem(
            path,
            f"line {written.line} has {written.text}, which YAML reads as {describe_type(value)}",
            f'Quote it: "{written.text}"',
        )


def manifest_of(spec: GangSpec) -> dict[str, Any]:
    """Return the spec's manifest as data. The manifest must be readable."""
    return parse_manifest(spec.manifest).data


def with_parsed_manifest(spec: GangSpec) -> GangSpec:
    """Return a copy of the spec with the manifest as data."""
    return replace(spec, manifest=None if spec.manifest is None else manifest_of(spec))


def main_container_name(template: Mapping[str, Any], overrides: Mapping[str, Any], annotations: Any) -> Any:
    """Return the name of the container whose logs, result and exit code are those of the rank.

    This is the container that the annotation `default-container` names, or else the first one of the manifest.

    :param template: The pod template of the manifest.
    :param overrides: What is merged into it.
    :param annotations: The annotations that are given as a parameter, which are applied last.
    """
    written = ((one.get("metadata") or {}).get("annotations") or {} for one in (template, overrides))
    for given in (annotations or {}, *reversed(list(written))):
        if name := given.get(DEFAULT_CONTAINER):
            return name
    containers = (template.get("spec") or {}).get("containers") or [{"name": MAIN_CONTAINER}]
    return containers[0].get("name")


class Change(Struct, frozen=True):
    """A field whose value in the Job of the gang is not the one that its user wrote, or the default of Kubernetes."""

    path: str
    before: Any
    after: Any
    why: str

    def __str__(self) -> str:
        after = "is left out" if self.after is None else f"becomes {self.after}"
        return f"{self.path}: {self.before} {after}, because {self.why}"


_SUBDOMAIN: Final = "manifest.spec.template.spec.subdomain"
_REASONS: Final = {
    "manifest.metadata.name": "each attempt is a Job of its own. No selector may select the pods by the Job's name",
    "manifest.spec.backoffLimit": "the ranks of a gang need each other, so the first failure ends them all",
    "manifest.spec.podReplacementPolicy": "the outcome of a pod counts when the pod has ended",
    "manifest.spec.template.metadata.name": "the Job controller names the pods",
    "manifest.spec.template.metadata.namespace": "the pods are in the namespace of their Job",
    "manifest.spec.template.spec.containers[0].name": "the container that default-container names is that of the rank",
    _SUBDOMAIN: "the gang has a Service of its own for the host names of its ranks",
}
"""Why the Job has another value, by the path of the field. All other fields are kept, or refused by the validation."""
_DEFAULTS: Final = {"manifest.spec.backoffLimit": 6}
"""What Kubernetes takes if the manifest leaves out a field, and the gang may have another value."""


def changes_of(spec: GangSpec, job: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return what the Job of a valid spec has otherwise than the manifest, besides what parameters set.

    :param job: The Job, as it is rendered or stored.
    """
    overridden = ((spec.pod_overrides or {}).get("spec") or {}).get("subdomain")
    defaults = _DEFAULTS if spec.manifest is not None else {}
    asked = {_SUBDOMAIN: overridden} | defaults | dict(iter_scalars(manifest_of(spec), "manifest"))
    rendered = defaults | dict(iter_scalars(job, "manifest"))
    return tuple(
        Change(path, asked[path], rendered.get(path), why)
        for path, why in _REASONS.items()
        if asked.get(path) is not None and asked[path] != rendered.get(path)
    )


def requested_name(spec: GangSpec) -> str | None:
    """Return the start of the Job's name that the user gave, as a parameter or in the manifest."""
    return spec.name or manifest_of(spec).get("metadata", {}).get("name")


def requested_namespace(spec: GangSpec) -> str | None:
    return spec.namespace or manifest_of(spec).get("metadata", {}).get("namespace")


def parse_manifest(manifest: object) -> UserManifest:
    """Parse a manifest. The function never raises, and returns what it cannot parse as `problems`."""
    if manifest is None:
        return UserManifest()
    if isinstance(manifest, Mapping):
        return _as_job(UserManifest(copy_without_nulls(manifest)))
    if not isinstance(manifest, str):
        return _unreadable(
            f"is {type(manifest).__name__}", "Give a dict, a V1Job, YAML text, or the name of a .yaml file"
        )
    return _as_job(parse_text(manifest))


def _as_job(manifest: UserManifest) -> UserManifest:
    """Return a manifest, with the Job of its pod if it is a Pod or a PodTemplate."""
    data, kind = manifest.data, manifest.data.get("kind")
    if kind not in ("Pod", "PodTemplate"):
        return manifest
    try:
        return replace(manifest, data=job_of_pod(data if kind == "Pod" else data.get("template", {})))
    except (AttributeError, TypeError):
        return _unreadable("has a template, metadata or a spec that is not a mapping", f"Correct the {kind}")


def parse_text(text: str, *, parameter: str = "manifest", kinds: Collection[str | None] = ("Job",)) -> UserManifest:
    """Parse YAML text with one object. Empty documents are ignored.

    :param parameter: The begin of the paths of problems; empty for a text that has the parameters themselves.
    :param kinds: The kinds of the object, of several in the text, that the parameter means.
    """
    found = parse_documents(text, parameter=parameter)
    meant = next((index for index, each in enumerate(found) if each.data.get("kind") in kinds), 0)
    others = [
        Problem(parameter, f"line {each.line} begins another object, {kind_of(each.data)}", remedy_of_kind(each.data))
        for index, each in enumerate(found)
        if index != meant
    ]
    return replace(found[meant], problems=(*found[meant].problems, *others))


def parse_documents(text: str, *, parameter: str = "") -> tuple[UserManifest, ...]:
    """Parse YAML text with one object or several. Empty documents are ignored.

    A text that cannot be parsed is one manifest with its problem.

    :param parameter: The begin of the paths of problems.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        what = f"has {len(text)} characters"
        return (_unreadable(what, f"At most {TEXT_CHARACTERS_MAX} are accepted", parameter),)
    try:
        return _read_text(text, parameter)
    except yaml.YAMLError as exc:
        mark, problem = getattr(exc, "problem_mark", None), getattr(exc, "problem", exc)
        where = f"line {mark.line + 1}: " if mark else ""
        return (_unreadable(f"is not YAML: {where}{problem}", "Correct the text", parameter),)
    except ValueError as exc:
        return (_unreadable(f"is not YAML: {exc}", "Correct the text", parameter),)


def copy_without_nulls(value: Any) -> Any:
    """Return a copy of dicts and lists, without nulls in dicts."""
    if isinstance(value, Mapping):
        return {key: copy_without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [copy_without_nulls(item) for item in value]
    return value


def _unreadable(problem: str, remedy: str, parameter: str = "manifest") -> UserManifest:
    return UserManifest(problems=(Problem(parameter, problem, remedy),))


class _Loader(yaml.SafeLoader):
    """Reads what kubectl reads, and refuses what is nested too deeply before Python's own limit ends the process.

    Each error has its line.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"line {self.line + 1} has more than {DEPTH_MAX} levels")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def scan_to_next_token(self) -> None:
        """Skip what separates tokens. A tab may do so within a line, as YAML says, and PyYAML does not know it."""
        super().scan_to_next_token()
        while (self.flow_level or not self.allow_simple_key) and self.peek() == "\t":
            self.forward()
            super().scan_to_next_token()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as exc:  # each reader of a tag has errors of its own
            written = f"{node.value:.60}" if isinstance(node, yaml.ScalarNode) else "a collection"
            what = f"{written} is no {node.tag.rpartition(':')[2]}. Quote it, if it is text"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from exc

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Return a text. JSON writes a character as two escapes if it has more than 16 bits."""
        text = str(self.construct_scalar(node))
        if is_utf8(text):
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


for _tag in ("str", "value"):  # PyYAML has no reader for a plain `=`
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_text)


def _read_text(text: str, parameter: str) -> tuple[UserManifest, ...]:
    loader = _Loader(text)
    found: list[UserManifest] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node says so"
            if node.tag == "tag:yaml.org,2002:null":
                continue
            if not isinstance(node, yaml.MappingNode):
                return (_unreadable("is not a mapping", "Write the fields of one object, as key: value", parameter),)
            visitor = _ManifestVisitor()
            visitor.visit(node, parameter)
            data = copy_without_nulls(loader.construct_document(node))
            line = node.start_mark.line + 1
            found.append(UserManifest(data, visitor.scalars, tuple(visitor.problems), line))
    finally:
        loader.dispose()
    return tuple(found) or (_unreadable("is empty", "Write the fields of one object, as key: value", parameter),)


class _ManifestVisitor:
    """Visits all nodes of a YAML document. Collects scalars that are not text, and duplicate keys."""

    def __init__(self) -> None:
        self.scalars: dict[str, _Scalar] = {}
        self.problems: list[Problem] = []
        self._visited = 0

    def visit(self, node: yaml.Node, path: str, depth: int = 0) -> None:
        self._visited += 1
        if self._visited > NODES_MAX or depth > DEPTH_MAX:
            what = f"it has more than {NODES_MAX} values or {DEPTH_MAX} levels, also by its aliases"
            raise ValueError(f"line {node.start_mark.line + 1}: {what}")
        match node:
            case yaml.MappingNode():
                self._visit_keys(node, path)
                for key, value in node.value:
                    self.visit(value, path_of(path, key.value), depth + 1)
            case yaml.SequenceNode():
                for index, item in enumerate(node.value):
                    self.visit(item, f"{path}[{index}]", depth + 1)
            case yaml.ScalarNode() if node.tag != "tag:yaml.org,2002:str":
                _require_short(node)
                self.scalars[path] = _Scalar(node.value, node.start_mark.line + 1)

    def _visit_keys(self, node: yaml.MappingNode, path: str) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {line}: a key must be text")
            if key.tag not in {"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"}:
                _require_short(key)
                what = f"line {line}: YAML does not read the key {key.value} as text"
                self.problems.append(Problem(path_of(path, key.value), what, f'Quote it: "{key.value}"'))
            if key.value in seen:
                self.problems.append(
                    Problem(path_of(path, key.value), f"line {line} has this key a second time", "Keep one of the two")
                )
            seen.add(key.value)


def path_of(parent: str, key: object) -> str:
    """Return the path of an item of a mapping."""
    return (f"{parent}.{key}" if parent else str(key))[:PATH_CHARACTERS_MAX]


def _require_short(node: yaml.ScalarNode) -> None:
    if len(node.value) > SCALAR_CHARACTERS_MAX:
        what = f"has a key or a number of more than {SCALAR_CHARACTERS_MAX} characters"
        raise ValueError(f"line {node.start_mark.line + 1} {what}")


_BEFOREHAND: Final = "Create it beforehand, as with kubectl"
LEADS: Final[Mapping[str, str]] = {
    "batch.volcano.sh/Job": 'Give each of its tasks as a role (roles), with gang_scheduler="volcano"',
    "batch/v1/Job": "Give one Job: several that run together are the roles (roles) of one gang",
    "ConfigMap": f"{_BEFOREHAND}, or give its items as files or env",
    "CronJob": "Give its spec.jobTemplate as a Job (apiVersion: batch/v1, kind: Job), and its schedule to the DAG",
    "JobSet": "Give the Job template of its only replicated Job as a Job, or each replicated Job as a role (roles)",
    "Kustomization": "Give what `kubectl kustomize` prints",
    "LeaderWorkerSet": "Give its leader and its workers as roles (roles)",
    "List": "Give the one Job of its items",
    "MPIJob": 'Give the template of its Worker in an Indexed Job with launch="mpi", and the command of its Launcher',
    "PyTorchJob": 'Give the template of its Worker in an Indexed Job with launch="torchrun" for all its replicas',
    "Service": "Leave it out: the gang has a headless Service, by which its ranks find each other",
    "TrainJob": 'Give the template of its runtime in an Indexed Job, with launch="torchrun" or "mpi"',
    **dict.fromkeys(("Pod", "PodTemplate"), "Give one Job or one Pod: several are the roles (roles) of one gang"),
    **dict.fromkeys(("PodGroup", "Workload"), "Leave it out: the provider makes the group of the gang"),
    **dict.fromkeys(
        ("JAXJob", "PaddleJob", "RayCluster", "RayJob", "TFJob", "XGBoostJob"),
        "Give each kind of its replicas as a role (roles), or the only one with workers",
    ),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"), "Give its spec.template in a Job whose program ends"
    ),
}
"""What to write in place of an object of another kind, by the kind, or the API group and the kind."""


def kind_of(document: Mapping[str, Any]) -> str:
    """Return the version and the kind of an object, as text for messages."""
    return f"{document.get('apiVersion', 'no apiVersion')!s:.80} {document.get('kind', 'no kind')!s:.80}"


def lead_to(document: Mapping[str, Any]) -> str:
    """Return what to write in place of an object that is not the Job of the gang."""
    kind, version = str(document.get("kind", "Job")), str(document.get("apiVersion"))
    names = (f"{version}/{kind}", f"{version.partition('/')[0]}/{kind}", kind)
    lead = next((LEADS[name] for name in names if name in LEADS), None)
    if lead is None:
        return "Give apiVersion: batch/v1 and kind: Job" if kind == "Job" else _BEFOREHAND
    return f"{lead} (docs/manifests.md)"


def remedy_of_kind(document: Mapping[str, Any]) -> str:
    """Return what to do about an object of another kind where one Job is expected."""
    return f"{lead_to(document)}. `gangjobs convert FILE` writes a DAG of the whole file"


def iter_scalars(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from iter_scalars(item, path_of(path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from iter_scalars(item, f"{path}[{index}]")
    else:
        yield path, value


def describe_type(value: Any) -> str:
    """Return what a value is, for a message. Of texts and objects, which may be secret, that is only the type."""
    match value:
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case None:
            return "null"
        case _ if type(value).__module__ == "datetime":
            return f"the date {value}"
        case _:
            return f"a {type(value).__name__}"


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
