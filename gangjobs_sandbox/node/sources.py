"""The ConfigMaps and Secrets to which the containers and volumes of a pod refer, and their content.

The rules are pure: `environment_references` and `volume_references` return what to fetch, `fetching` fetches the
objects, and `Sources` looks values up. A missing source that is not optional raises `SourceMissingError`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Reference", "SourceMissingError", "Sources", "environment_references", "volume_references"]

Kind = Literal["configmap", "secret"]
Reference = tuple[Kind, str]


class SourceMissingError(Exception):
    """A referenced object or key does not exist. The message is the kubelet's."""


@dataclass(frozen=True)
class Sources:
    """The fetched objects. An object that is not in `found` does not exist."""

    namespace: str
    found: Mapping[Reference, Mapping[str, Any]] = field(default_factory=dict)

    def data(self, reference: Reference, *, optional: bool) -> dict[str, bytes]:
        """Return all keys of an object. An optional object that does not exist is empty."""
        stored = self.found.get(reference)
        if stored is None:
            if optional:
                return {}
            kind, name = reference
            raise SourceMissingError(f'{kind} "{name}" not found')
        return dict(_decode(reference[0], stored))

    def value(self, reference: Reference, key: str, *, optional: bool) -> bytes | None:
        """Return one key, or None if the key is optional and does not exist."""
        data = self.data(reference, optional=optional)
        if key in data:
            return data[key]
        if optional:
            return None
        kind, name = reference
        label = {"configmap": "ConfigMap", "secret": "Secret"}[kind]
        raise SourceMissingError(f"couldn't find key {key} in {label} {self.namespace}/{name}")


def environment_references(container: Mapping[str, Any]) -> set[Reference]:
    """Return the objects that the container's `env` and `envFrom` reference."""
    found: set[Reference] = set()
    for item in container.get("envFrom") or ():
        found.update(_references_in(item, "configMapRef", "secretRef", name_field="name"))
    for item in container.get("env") or ():
        found.update(_references_in(item.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef", name_field="name"))
    return found


def volume_references(spec: Mapping[str, Any]) -> set[Reference]:
    """Return the objects that the pod's volumes reference."""
    found: set[Reference] = set()
    for volume in spec.get("volumes") or ():
        found.update(_references_in(volume, "configMap", name_field="name"))
        found.update(_references_in(volume, None, "secret", name_field="secretName"))
        for part in (volume.get("projected") or {}).get("sources") or ():
            found.update(_references_in(part, "configMap", "secret", name_field="name"))
    return found


def _references_in(
    item: Mapping[str, Any], configmap: str | None, secret: str | None = None, *, name_field: str
) -> Iterator[Reference]:
    if configmap and item.get(configmap):
        yield "configmap", item[configmap].get(name_field, "")
    if secret and item.get(secret):
        yield "secret", item[secret].get(name_field, "")


def _decode(kind: Kind, stored: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    if kind == "configmap":
        yield from ((key, text.encode()) for key, text in (stored.get("data") or {}).items())
        yield from ((key, base64.b64decode(text)) for key, text in (stored.get("binaryData") or {}).items())
    else:
        yield from ((key, base64.b64decode(text)) for key, text in (stored.get("data") or {}).items())
