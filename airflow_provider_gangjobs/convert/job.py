"""A Job is a gang if all its pods run at once and have an index, or else one pod, or pods that are placed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.convert.task import Part, Task

if TYPE_CHECKING:
    from airflow_provider_gangjobs.convert.documents import Document


def convert(document: Document) -> Task:
    """Return the workload of a Job."""
    spec = document.data["spec"]
    service = spec["template"]["spec"].get("subdomain", "")
    return Task(document, [Part("", spec, document.name)], service)
