"""Parsed spec: the input of the checks, with the manifest parsed, the types checked, and the pod template merged once.

The other checks can rely on the types.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.client_models import LISTS, MODELS, is_model
from airflow_provider_gangjobs.gang.render.placement import Shape, shape_of
from airflow_provider_gangjobs.gang.render.pod_template import user_template
from airflow_provider_gangjobs.gang.render.user_manifest import (
    UserManifest,
    copy_without_nulls,
    describe_type,
    iter_scalars,
    parse_manifest,
    path_of,
)
from airflow_provider_gangjobs.gang.spec import FIELD_TYPES, GangSpec, Rendezvous, is_whole_number
from airflow_provider_gangjobs.kube.text import is_utf8

TEMPLATE = "spec.template"


def parameter_in(path: str) -> str:
    """Return the parameter with which the path of a problem begins."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


class ParsedSpec(Struct, frozen=True, dict=True):
    """A spec with its parsed manifest. All properties except `user_manifest` require that the structural checks
    passed."""

    spec: GangSpec

    @cached_property
    def user_manifest(self) -> UserManifest:
        return parse_manifest(self.spec.manifest)

    @property
    def manifest(self) -> dict[str, Any]:
        return self.user_manifest.data

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.spec, self.manifest)

    @cached_property
    def template(self) -> dict[str, Any]:
        merged: dict[str, Any] = copy_without_nulls(user_template(self.spec, self.manifest))
        return merged

    @property
    def pod(self) -> dict[str, Any]:
        return dict(self.template.get("spec", {}))

    def containers(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for kind in ("initContainers", "containers"):
            for index, container in enumerate(self.pod.get(kind, [])):
                yield f"{TEMPLATE}.spec.{kind}[{index}]", container

    def user_templates(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield "manifest.spec.template", self.manifest.get("spec", {}).get("template", {})
        yield "pod_overrides", self.spec.pod_overrides or {}

    def user_containers(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for path, template in self.user_templates():
            for kind in ("initContainers", "containers"):
                for index, container in enumerate((template.get("spec") or {}).get(kind) or []):
                    yield f"{path}.spec.{kind}[{index}]", container


Check = Callable[[ParsedSpec], Iterator[Problem]]

INTEGER_BITS: Final = 64

# An expected type: a mapping of expected types and any other keys, a list with the expected type of its items or of any
# items, or a check of a value.
Expected = Any


def _scalar(path: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, (Mapping, list, tuple)):
        yield from _text(path, value)


_RESOURCES: Final[Expected] = {"requests": {}, "limits": {}}
_METADATA: Final[Expected] = {"labels": {}, "annotations": {}, "finalizers": [_scalar], "ownerReferences": [{}]}
_NAMED: Final = {"name": _scalar}
_MOUNT: Final = {**_NAMED, "mountPath": _scalar}
_CONTAINER: Final = {
    **_NAMED,
    "env": [_NAMED],
    "envFrom": [{}],
    "volumeMounts": [_MOUNT],
    "ports": [{}],
    "command": [],
    "args": [],
    "resources": _RESOURCES,
}
_POD: Final = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [_NAMED],
    "imagePullSecrets": [_NAMED],
    "tolerations": [{}],
    "nodeSelector": {},
    "restartPolicy": _scalar,
}
_TEMPLATE: Final = {"metadata": _METADATA, "spec": _POD}
_JOB: Final = {
    "metadata": _METADATA,
    "spec": {"template": _TEMPLATE, "scheduling": {"resourceClaims": [_NAMED]}, "completionMode": _scalar},
}


def check_structure(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that the manifest can be parsed, and that manifest, overrides and parameters have the expected types."""
    yield from _manifest(parsed)
    for parameter, expected in _PARAMETERS.items():
        value = getattr(parsed.spec, parameter)
        if value is not None or parameter not in _OPTIONAL:
            found = list(_unexpected(parameter, value, expected))
            yield from found
            # The names of a mapping `env` are checked with its values, so that all their problems are reported.
            has_checked_keys = parameter == "env" and isinstance(value, Mapping)
            yield from _not_sendable(parameter, value)
            if parameter in _WITH_ANY_VALUES or (parameter == "env" and not isinstance(value, Mapping)):
                yield from not_json_problems(UserManifest(value), parameter)
            if not has_checked_keys and all(problem.path != parameter for problem in found):
                yield from _keys_that_are_not_text(parameter, value)


def _manifest(parsed: ParsedSpec) -> Iterator[Problem]:
    if is_model(parsed.spec.manifest):
        yield _model("manifest", parsed.spec.manifest)
        return
    yield from parsed.user_manifest.problems
    if not isinstance(parsed.spec.manifest, str):  # the problems of a text have its lines
        yield from _keys_that_are_not_text("manifest", parsed.manifest)
    yield from _not_sendable("manifest", parsed.manifest)
    yield from _unexpected("manifest", parsed.manifest, _JOB)
    yield from _integers(parsed)
    yield from not_json_problems(parsed.user_manifest)


def _unexpected(path: str, value: Any, expected: Expected) -> Iterator[Problem]:
    """Check the type of a value. Values may be secret, so a problem has the type, or the words of a command."""
    if is_model(value):
        yield _model(path, value)
    elif callable(expected):
        yield from expected(path, value)
    elif value is None:
        return
    elif isinstance(expected, Mapping) and isinstance(value, Mapping):
        for name, inner in expected.items():
            yield from _unexpected(f"{path}.{name}", value.get(name), inner)
    elif _is_text_of_value(value):
        kind = "mapping" if isinstance(expected, Mapping) else "list"
        yield Problem(path, f"is the text that a template has made of a value, not a {kind}", _NATIVE)
    elif isinstance(expected, Mapping):
        yield Problem(path, f"is {type(value).__name__}, not a mapping", "Give a dict, which is key: value in YAML")
    elif not isinstance(value, (list, tuple)):
        has_dicts = bool(expected) and isinstance(expected[0], Mapping)
        if isinstance(value, str) and not has_dicts:
            what, remedy = f"is the text {value!r:.60}", f"Write it as a list: {_words(value)!r:.120}"
        else:
            what, remedy = f"is {type(value).__name__}", f"Give a list{' of dicts' * has_dicts}"
        yield Problem(path, f"{what}, not a list", remedy)
    else:
        for index, item in enumerate(value if expected else ()):
            if item is None:
                yield Problem(f"{path}[{index}]", "is null", "Remove it")
            else:
                yield from _unexpected(f"{path}[{index}]", item, expected[0])


_NATIVE: Final = (
    "Give the .output of the task, which is the XCom itself, or set render_template_as_native_obj=True for the DAG"
)


def _is_text_of_value(value: Any) -> bool:
    text = value.strip() if isinstance(value, str) else ""
    return text == "None" or (text[:1], text[-1:]) in {("[", "]"), ("(", ")"), ("{", "}")}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark without its pair
        return text.split()


def _model(path: str, value: Any) -> Problem:
    accepted = MODELS.get(parameter_in(path), {})
    wanted = " or ".join([*accepted, "dict"])
    remedy = f"Give a list, whose items are {wanted}" if path in LISTS else f"Give a {wanted}"
    return Problem(path, f"is a {type(value).__name__}", remedy)


def _keys_that_are_not_text(path: str, value: Any) -> Iterator[Problem]:
    """Yield a problem for each key that is not text, in the value and in all that it contains."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield Problem(path, f"has the key {key!r:.60}, which is not text", f'Write it as text: "{key!s:.60}"')
            yield from _keys_that_are_not_text(path_of(path, key), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _keys_that_are_not_text(f"{path}[{index}]", item)


def _not_sendable(path: str, value: Any) -> Iterator[Problem]:
    for at, scalar in iter_scalars(value, path):
        if isinstance(scalar, str) and not is_utf8(scalar):
            yield Problem(at, "has half of a surrogate pair, which UTF-8 cannot hold", "Decode it as UTF-8")
        elif isinstance(scalar, str) and "\0" in scalar and path != "files":
            # The API server stores the text, and the container runtime cannot start a container that has it.
            what = "has a NUL character, at which the kernel ends arguments, variables and paths"
            yield Problem(at, what, "Remove it, or give the text as a file in `files`")
        elif isinstance(scalar, int) and scalar.bit_length() >= INTEGER_BITS:
            yield Problem(at, "is a number of more than 64 bits, which Kubernetes does not read", "Correct it")


_INTEGERS: Final = ("parallelism", "completions", "backoffLimit", "backoffLimitPerIndex", "activeDeadlineSeconds")


def _integers(parsed: ParsedSpec) -> Iterator[Problem]:
    job = parsed.manifest.get("spec", {})
    for name in _INTEGERS if isinstance(job, Mapping) else ():
        value = job.get(name, 0)
        if not is_whole_number(value, 0):
            yield Problem(f"manifest.spec.{name}", f"is {value!r}, not a whole number of 0 or more", "Correct it")


def not_json_problems(source: UserManifest, path: str = "manifest") -> Iterator[Problem]:
    """Yield a problem for each value that JSON does not have, such as a date. It would be sent as something else."""
    for at, scalar in iter_scalars(source.data, path):
        if isinstance(scalar, float) and not math.isfinite(scalar):
            yield Problem(at, f"is {scalar}, which JSON cannot hold", "Write a number or text")
        elif scalar is None or isinstance(scalar, (str, int, float)) or is_model(scalar):
            continue  # a model in a wrong place is another problem
        elif at in source.scalars:
            yield source.not_text_problem(at, scalar)
        else:
            remedy = "Give text, a number, a boolean, a list or a dict"
            yield Problem(at, f"is {describe_type(scalar)}, which JSON cannot hold", remedy)


_DEFAULT: Final = GangSpec()
_OPTIONAL: Final = {name for name in GangSpec.__struct_fields__ if getattr(_DEFAULT, name) is None}


def _text(path: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield UserManifest().not_text_problem(path, value)


def _text_with_content(path: str, value: Any) -> Iterator[Problem]:
    yield from _text(path, value)
    if isinstance(value, str) and not value.strip():
        yield Problem(path, "is empty", "Leave it out, or give a value")


def _env(path: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, (list, tuple)):
        yield from _unexpected(path, value, [_NAMED])
    elif not isinstance(value, Mapping):
        yield Problem(path, f"is {type(value).__name__}", "Give a dict of name to text, or a list as in Kubernetes")


def _resources(path: str, value: Any) -> Iterator[Problem]:
    yield from _unexpected(path, value, _RESOURCES)
    for part in _RESOURCES if isinstance(value, Mapping) else ():
        if part in value and value[part] is None:
            yield Problem(f"{path}.{part}", "is null", "Give a dict, or leave it out")


def _whole(path: str, value: Any) -> Iterator[Problem]:
    if not is_whole_number(value):
        yield Problem(path, f"is {value!r}, not a whole number", "Give an int")


def _number(path: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        yield Problem(path, f"is {value!r}, not a number of seconds", "Give seconds, or a timedelta to the operator")


def _boolean(path: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, bool):
        yield Problem(path, f"is {value!r}, not a boolean", "Give True or False")


def _rendezvous(path: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, (bool, Rendezvous)):
        yield Problem(path, f"is {value!r}", "Give True, False or Rendezvous(port=...)")


_BY_TYPE: Final[Mapping[str, Expected]] = {
    "str | None": _text_with_content,
    "bool": _boolean,
    "int": _whole,
    "int | None": _whole,
    "float | None": _number,
    "Sequence[int]": [],
    "Sequence[str]": [_text],
    "Sequence[str] | None": [_text],
    "Sequence[Mapping[str, Any]] | None": [{}],
    "Mapping[str, str]": {},
    "Mapping[str, str | bytes]": {},
    "Mapping[str, str] | None": {},
    "Mapping[str, Any] | None": {},
}
"""What is expected of a parameter by its type."""
_WITH_ANY_VALUES: Final = {
    name
    for name, kind in FIELD_TYPES.items()
    if kind in ("Mapping[str, Any] | None", "Sequence[Mapping[str, Any]] | None") and name != "resources"
}
"""Parameters whose values no other check reads, except by name. Quantities of resources are read as numbers or text."""
_CHECKED_WITH_MEANING: Final = frozenset({"checkpoints", "gang_scheduler"})
"""Parameters for which another check says what may be given."""
_PARAMETERS: Final[Mapping[str, Expected]] = {
    **{
        name: _BY_TYPE[kind]
        for name, kind in FIELD_TYPES.items()
        if kind in _BY_TYPE and name not in _CHECKED_WITH_MEANING
    },
    "volumes": [_NAMED],
    "volume_mounts": [_MOUNT],
    "env": _env,
    "resources": _resources,
    "pod_overrides": _TEMPLATE,
    "rendezvous": _rendezvous,
}
