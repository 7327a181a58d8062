"""The environment of a container: the variables of its spec, and a few defaults of the node.

A container does not inherit the sandbox's own environment. It receives a PATH that starts with the folder of this
Python, a home and a temporary folder in the pod's own folder, and the variables in `PASSED_VARIABLES`.

`$(VAR)` is expanded in commands, arguments and values as Kubernetes does. A reference to an unknown variable stays as
it is, and `$$` is a dollar sign. Inserted values are not expanded again
(`k8s.io/kubernetes/third_party/forked/golang/expansion`).

Mount paths become host paths if the operating system cannot give a container its own root. Only whole path components
are replaced, in the texts of the pod's spec (command, arguments, working directory, values). A path that a program
constructs itself is not rewritten.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.node.downward_api import PodFacts, field_value, resource_value
from gangjobs_sandbox.node.sources import Kind, SourceMissingError, Sources

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PASSED_VARIABLES", "Rewriter", "container_environment", "expand", "node_environment"]


_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


_BEFORE = r"(?<![\w./-])"
_AFTER = r"(?![\w.-])"
PASSED_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""The variables of the node's own process that all containers receive."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with its references replaced."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] else variables.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


class Rewriter:
    """Replaces each path of a table, and the paths below it. The longest matching path is used."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = {path.rstrip("/"): real for path, real in folders.items() if path.rstrip("/")}
        longest_first = sorted(self._folders, key=len, reverse=True)
        choices = "|".join(re.escape(path) for path in longest_first)
        self._pattern = re.compile(f"{_BEFORE}({choices}){_AFTER}") if choices else None

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._folders[match[1]], text)


def node_environment(
    *,
    hostname: str,
    home: str,
    temporary: str,
    host_env: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the variables that every container has in addition to its own."""
    kept = {name: host_env[name] for name in PASSED_VARIABLES if name in host_env}
    path = os.pathsep.join([os.path.dirname(sys.executable), host_env.get("PATH", _DEFAULT_PATH)])
    return {**kept, "PATH": path, "HOSTNAME": hostname, "HOME": home, "TMPDIR": temporary}


def container_environment(container: Mapping[str, Any], facts: PodFacts, sources: Sources) -> dict[str, str]:
    """Return the variables of `envFrom`, then of `env`. Later ones override earlier ones and can refer to them.

    Raises:
        SourceMissingError: a required object or key is missing, or a field cannot be referenced.
    """
    variables: dict[str, str] = {}
    for item in container.get("envFrom") or ():
        variables.update(_env_from(item, sources))
    for item in container.get("env") or ():
        value = _env_value(item, container, facts, sources, variables)
        if value is not None:
            variables[item["name"]] = value
    return variables


def _env_from(item: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    kinds: tuple[tuple[str, Kind], ...] = (("configMapRef", "configmap"), ("secretRef", "secret"))
    prefix, found = item.get("prefix") or "", {}
    for field, kind in kinds:
        if reference := item.get(field):
            data = sources.data((kind, reference["name"]), optional=bool(reference.get("optional")))
            found.update({prefix + key: value.decode(errors="surrogateescape") for key, value in data.items()})
    return found


def _env_value(
    item: Mapping[str, Any],
    container: Mapping[str, Any],
    facts: PodFacts,
    sources: Sources,
    variables: Mapping[str, str],
) -> str | None:
    value_from = item.get("valueFrom")
    if not value_from:
        return expand(item.get("value") or "", variables)
    try:
        if reference := value_from.get("fieldRef"):
            return field_value(facts, reference["fieldPath"])
        if reference := value_from.get("resourceFieldRef"):
            return resource_value(facts, reference, container)
    except ValueError as error:
        raise SourceMissingError(str(error)) from error
    return _key_reference(value_from, sources)


def _key_reference(value_from: Mapping[str, Any], sources: Sources) -> str | None:
    kinds: tuple[tuple[str, Kind], ...] = (("configMapKeyRef", "configmap"), ("secretKeyRef", "secret"))
    for field, kind in kinds:
        if reference := value_from.get(field):
            optional = bool(reference.get("optional"))
            value = sources.value((kind, reference["name"]), reference["key"], optional=optional)
            return None if value is None else value.decode(errors="surrogateescape")
    raise SourceMissingError(f"unsupported valueFrom: {', '.join(sorted(value_from))}")
