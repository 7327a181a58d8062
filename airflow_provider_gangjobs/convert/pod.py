"""A Pod is a task of one pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.convert.task import Part, Task
from airflow_provider_gangjobs.gang.client_models import job_of_pod

if TYPE_CHECKING:
    from airflow_provider_gangjobs.convert.documents import Document


def convert(document: Document) -> Task:
    """Return the workload of a Pod."""
    return Task(document, [Part("", {**job_of_pod(document.data)["spec"], "backoffLimit": 0})])
