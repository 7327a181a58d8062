"""Kubernetes 1.36: the Workload must exist before a PodGroup that refers to it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_gangjobs.gang.render.dialects.base import TEMPLATE_NAME, Object, SchedulingGroup
from airflow_provider_gangjobs.gang.render.dialects.podgroups import PodGroupDialect


@dataclass(frozen=True)
class V1Alpha2Dialect(PodGroupDialect):
    """`spec.podGroupTemplateRef.workload` of the PodGroup names its template."""

    version: str = "v1alpha2"

    def template_reference(self, group: SchedulingGroup) -> Object:
        """The form of 1.36."""
        return {
            "podGroupTemplateRef": {"workload": {"workloadName": group.name, "podGroupTemplateName": TEMPLATE_NAME}}
        }
