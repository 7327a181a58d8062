"""Parses the manifest of the user, a dict or YAML text, and keeps the text and the line of each scalar.

YAML 1.1 reads `on` as a boolean, `0644` as 420 and `12:30:45` as 45045, so messages show the text and the parsed value.
Nulls are dropped, as the API server does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml
from msgspec import Struct, field

from airflow_provider_gangjobs.exceptions import Problem

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec

TEXT_CHARACTERS_MAX: Final = 1_500_000
"""etcd refuses larger requests by default."""
NODES_MAX: Final = 100_000
"""Limit of nodes in a document, because a short text with nested aliases can expand to a huge document."""


class Scalar(Struct, frozen=True):
    """A scalar that YAML did not read as text."""

    text: str
    line: int


class UserManifest(Struct, frozen=True):
    """A manifest as data, with the scalars of a YAML text by their paths, or the problems why it cannot be parsed."""

    data: dict[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def not_text_problem(self, path: str, value: Any) -> Problem:
        written = self.scalars.get(path)
        if written is None:
            return Problem(path, f"is {_describe(value)}, not text", f'Write it as text: "{_as_text(value)}"')
        return Problem(
            path,
            f"line {written.line} has {written.text}, which YAML reads as {_describe(value)}",
            f'Quote it: "{written.text}"',
        )


def manifest_of(spec: GangSpec) -> dict[str, Any]:
    """Return the spec's manifest as data. The manifest must be readable."""
    return parse_manifest(spec.manifest).data


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
        return UserManifest(copy_without_nulls(manifest))
    if not isinstance(manifest, str):
        return _unreadable(
            f"is {type(manifest).__name__}", "Give a dict, a V1Job, YAML text, or the name of a .yaml file"
        )
    if len(manifest) > TEXT_CHARACTERS_MAX:
        return _unreadable(f"has {len(manifest)} characters", f"At most {TEXT_CHARACTERS_MAX} are accepted")
    try:
        return _read_text(manifest)
    except yaml.MarkedYAMLError as exc:
        where = f"line {exc.problem_mark.line + 1}: " if exc.problem_mark else ""
        return _unreadable(f"is not YAML: {where}{exc.problem}", "Correct the text")
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        return _unreadable(f"is not YAML: {exc}", "Correct the text")


def copy_without_nulls(value: Any) -> Any:
    """Return a copy of dicts and lists, without nulls in dicts."""
    if isinstance(value, Mapping):
        return {key: copy_without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [copy_without_nulls(item) for item in value]
    return value


def _unreadable(problem: str, remedy: str) -> UserManifest:
    return UserManifest(problems=(Problem("manifest", problem, remedy),))


def _read_text(text: str) -> UserManifest:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            return _unreadable("is not a mapping", "Give one batch/v1 Job as YAML text")
        visitor = _ManifestVisitor()
        visitor.visit(node, "manifest")
        data = loader.construct_document(node)
    finally:
        loader.dispose()
    return UserManifest(copy_without_nulls(data), visitor.scalars, tuple(visitor.problems))


class _ManifestVisitor:
    """Visits all nodes of a YAML document. Collects scalars that are not text, and duplicate keys."""

    def __init__(self) -> None:
        self.scalars: dict[str, Scalar] = {}
        self.problems: list[Problem] = []
        self._visited = 0

    def visit(self, node: yaml.Node, path: str) -> None:
        self._visited += 1
        if self._visited > NODES_MAX:
            raise ValueError(f"it has more than {NODES_MAX} values")
        match node:
            case yaml.MappingNode():
                self._visit_keys(node, path)
                for key, value in node.value:
                    self.visit(value, f"{path}.{key.value}")
            case yaml.SequenceNode():
                for index, item in enumerate(node.value):
                    self.visit(item, f"{path}[{index}]")
            case yaml.ScalarNode() if node.tag != "tag:yaml.org,2002:str":
                self.scalars[path] = Scalar(node.value, node.start_mark.line + 1)

    def _visit_keys(self, node: yaml.MappingNode, path: str) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"line {line}: a key must be text")
            if key.tag not in {"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"}:
                what = f"line {line}: YAML does not read the key {key.value} as text"
                self.problems.append(Problem(f"{path}.{key.value}", what, f'Quote it: "{key.value}"'))
            if key.value in seen:
                self.problems.append(
                    Problem(f"{path}.{key.value}", f"line {line} has this key a second time", "Keep one of the two")
                )
            seen.add(key.value)


def iter_scalars(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from iter_scalars(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from iter_scalars(item, f"{path}[{index}]")
    else:
        yield path, value


def _describe(value: Any) -> str:
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
