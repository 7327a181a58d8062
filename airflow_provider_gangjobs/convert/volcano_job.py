"""A Job of Volcano: each of its tasks is a role, and Volcano places the gang."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.convert.mpi_job import set_mpi
from airflow_provider_gangjobs.convert.task import Part, Task, merged, pods
from airflow_provider_gangjobs.gang.schedulers import DEFAULT_QUEUE, VOLCANO_QUEUE

if TYPE_CHECKING:
    from airflow_provider_gangjobs.convert.documents import Document

_MPI: Final = re.compile(r"mpi(?:run|exec)\b")
_OF_TASK: Final = ("name", "replicas", "template")


def convert(document: Document) -> Task:
    """Return the workload of a Job of Volcano."""
    spec = dict(document.data["spec"])
    name = document.name
    tasks = [{"name": f"default{index}", **each} for index, each in enumerate(spec.pop("tasks"))]  # as its webhook does
    parts = [
        Part(each["name"], pods(each.get("replicas", 1), each["template"]), f"{name}-{each['name']}") for each in tasks
    ]
    task = Task(document, merged(parts), name)
    launchers = [part for part in parts if part.size == 1 and _MPI.search(str(part.spec))]
    workers = [part for part in parts if part not in launchers]
    if "ssh" in spec.get("plugins", {}) and len(launchers) == len(workers) == 1:
        set_mpi(task, launchers[0].spec["template"], workers[0].spec["template"], workers[0].size)
    if task.size > 1 and spec.pop("schedulerName", "volcano") == "volcano":
        task.parameters["gang_scheduler"] = "volcano"
    if (queue := spec.pop("queue", DEFAULT_QUEUE)) != DEFAULT_QUEUE:
        task.parameters["annotations"] = {VOLCANO_QUEUE: queue}
    if priority := spec.pop("priorityClassName", None):
        task.parameters["priority_class"] = priority
    least = spec.pop("minAvailable", task.size)
    if least < task.size and len(task.parts) == 1:
        task.parameters["min_workers"] = least
    elif least < task.size:
        spec["minAvailable"] = least
    spec["backoffLimit"] = spec.pop("maxRetry", 0)
    task.take_limits(spec)
    for each in ({field: value for field, value in each.items() if field not in _OF_TASK} for each in tasks):
        task.leave_out(each)
    task.leave_out(spec)
    task.warn_about(
        r"/etc/volcano/[\w.-]*|\bV[CK]_\w+", 'a gang with launch="mpi" has the host file /gang/mpi/hostfile'
    )
    return task
