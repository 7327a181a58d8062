"""The environment of a container: what its spec says, on top of the little that the node gives.

A container does not inherit the sandbox's own environment. It gets a PATH that finds this Python
first, a home and a temporary folder in the pod's own folder, and the names in `PASSED_ON`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .downward_api import PodFacts, field_value, resource_value
from .expansion import expand
from .sources import Kind, SourceMissingError, Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PASSED_ON", "container_environment", "node_environment"]

PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables of the node's own process that containers see too."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def node_environment(
    *, hostname: str, home: str, temporary: str, passed_on: Iterable[str] = (), outside: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What every container has before its own variables."""
    kept = {name: outside[name] for name in (*PASSED_ON, *passed_on) if name in outside}
    path = os.pathsep.join([os.path.dirname(sys.executable), outside.get("PATH", _DEFAULT_PATH)])
    return {**kept, "PATH": path, "HOSTNAME": hostname, "HOME": home, "TMPDIR": temporary}


def container_environment(container: Mapping[str, Any], facts: PodFacts, sources: Sources) -> dict[str, str]:
    """The variables of `envFrom` and then `env`, later ones winning and able to refer to earlier ones.

    Raises:
        SourceMissingError: an object or key that is not optional is missing, or a field cannot be referred to.
    """
    variables: dict[str, str] = {}
    for item in container.get("envFrom") or ():
        variables.update(_imported(item, sources))
    for item in container.get("env") or ():
        value = _value(item, container, facts, sources, variables)
        if value is not None:
            variables[item["name"]] = value
    return variables


def _imported(item: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    kinds: tuple[tuple[str, Kind], ...] = (("configMapRef", "configmap"), ("secretRef", "secret"))
    prefix, found = item.get("prefix") or "", {}
    for field, kind in kinds:
        if reference := item.get(field):
            data = sources.data((kind, reference["name"]), optional=bool(reference.get("optional")))
            found.update({prefix + key: value.decode(errors="surrogateescape") for key, value in data.items()})
    return found


def _value(
    item: Mapping[str, Any],
    container: Mapping[str, Any],
    facts: PodFacts,
    sources: Sources,
    variables: Mapping[str, str],
) -> str | None:
    origin = item.get("valueFrom")
    if not origin:
        return expand(item.get("value") or "", variables)
    try:
        if reference := origin.get("fieldRef"):
            return field_value(facts, reference["fieldPath"])
        if reference := origin.get("resourceFieldRef"):
            return resource_value(facts, reference, container)
    except ValueError as error:
        raise SourceMissingError(str(error)) from error
    return _referred(origin, sources)


def _referred(origin: Mapping[str, Any], sources: Sources) -> str | None:
    kinds: tuple[tuple[str, Kind], ...] = (("configMapKeyRef", "configmap"), ("secretKeyRef", "secret"))
    for field, kind in kinds:
        if reference := origin.get(field):
            optional = bool(reference.get("optional"))
            value = sources.value((kind, reference["name"]), reference["key"], optional=optional)
            return None if value is None else value.decode(errors="surrogateescape")
    raise SourceMissingError(f"unsupported valueFrom: {', '.join(sorted(origin))}")
