"""Parsed spec: the input of the checks, with the manifest parsed and the pod template merged once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.render.placement import Shape, shape_of
from airflow_provider_gangjobs.gang.render.pod_template import user_template
from airflow_provider_gangjobs.gang.render.user_manifest import UserManifest, copy_without_nulls, parse_manifest

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec

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
