"""What the checks look at: a spec with its manifest read and its template merged, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.render.manifest import UserManifest, copy_without_nulls, parse_manifest
from airflow_provider_gangjobs.gang.render.pod_template import user_template
from airflow_provider_gangjobs.gang.render.shape import Shape, shape_of

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec

TEMPLATE = "spec.template"


@dataclass(frozen=True)
class ParsedSpec:
    """A spec on its way to becoming a Job. All but `source` expect that the structure was found sound."""

    spec: GangSpec

    @cached_property
    def user_manifest(self) -> UserManifest:
        """The manifest as it was written."""
        return parse_manifest(self.spec.manifest)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as data; empty without one."""
        return self.user_manifest.data

    @cached_property
    def shape(self) -> Shape:
        """How many pods, and in what form."""
        return shape_of(self.spec, self.manifest)

    @cached_property
    def template(self) -> dict[str, Any]:
        """The pod template as the user asked for it: manifest, parameters and overrides together."""
        merged: dict[str, Any] = copy_without_nulls(user_template(self.spec, self.manifest))
        return merged

    @property
    def pod(self) -> dict[str, Any]:
        """The pods' spec as the user asked for it."""
        return dict(self.template.get("spec", {}))

    def containers(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every container of the merged template, with its path."""
        for kind in ("initContainers", "containers"):
            for index, container in enumerate(self.pod.get(kind, [])):
                yield f"{TEMPLATE}.spec.{kind}[{index}]", container

    def written_templates(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The pod templates as they were written, each with its path: the manifest's and the overrides."""
        yield "manifest.spec.template", self.manifest.get("spec", {}).get("template", {})
        yield "pod_overrides", self.spec.pod_overrides or {}

    def written_containers(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The containers as they were written, each with its path."""
        for path, template in self.written_templates():
            for kind in ("initContainers", "containers"):
                for index, container in enumerate((template.get("spec") or {}).get(kind) or []):
                    yield f"{path}.spec.{kind}[{index}]", container


Check = Callable[[ParsedSpec], Iterator[Problem]]
