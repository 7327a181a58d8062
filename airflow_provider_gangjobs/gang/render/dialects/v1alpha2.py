"""Kubernetes 1.36: the Workload must exist before a PodGroup that refers to it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_gangjobs.gang.render.dialects.base import TEMPLATE_NAME, Group, Object
from airflow_provider_gangjobs.gang.render.dialects.podgroups import PodGroups


@dataclass(frozen=True)
class NamedTemplates(PodGroups):
    """`spec.podGroupTemplateRef.workload` of the PodGroup names its template."""

    version: str = "v1alpha2"

    def template_reference(self, group: Group) -> Object:
        """The form of 1.36."""
        return {
            "podGroupTemplateRef": {"workload": {"workloadName": group.name, "podGroupTemplateName": TEMPLATE_NAME}}
        }
