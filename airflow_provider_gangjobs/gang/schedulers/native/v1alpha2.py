"""Kubernetes 1.36: a Workload must exist before a PodGroup refers to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.schedulers.base import TEMPLATE_NAME, SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.native.podgroups import PodGroupDialect

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import Object


@dataclass(frozen=True)
class V1Alpha2Dialect(PodGroupDialect):
    """The PodGroup refers to its template by `spec.podGroupTemplateRef.workload`."""

    version: str = "v1alpha2"

    def template_reference(self, group: SchedulingGroup) -> Object:
        """Return the field by which a PodGroup of 1.36 refers to its template."""
        return {
            "podGroupTemplateRef": {"workload": {"workloadName": group.name, "podGroupTemplateName": TEMPLATE_NAME}}
        }
