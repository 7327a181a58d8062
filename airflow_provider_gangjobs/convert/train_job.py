"""A TrainJob of Kubeflow: its trainer, in the pods of its runtime if that is among the files."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.job_set import template_of
from airflow_provider_gangjobs.convert.mpi_job import set_mpi
from airflow_provider_gangjobs.convert.pytorch_job import set_torchrun
from airflow_provider_gangjobs.convert.task import Task, with_variables

if TYPE_CHECKING:
    from airflow_provider_gangjobs.convert.documents import Document

_NODE: Final = "node"
"""The name of the replicated Job, and of the container, in which a runtime runs the trainer."""
_LAUNCHER: Final = "launcher"
"""The same for the program of MPI."""
_TRAINER: Final = {"image": "image", "command": "command", "args": "args", "resourcesPerNode": "resources"}
"""The field of the container by that of the trainer."""


def convert(document: Document) -> Task:
    """Return the workload of a TrainJob.

    Raises:
        ConversionError: the image is that of a runtime that is not among the files.
    """
    task, spec = Task(document, []), dict(document.data["spec"])
    name, trainer = spec.pop("runtimeRef")["name"], dict(spec.pop("trainer", {}))
    runtimes = [each for each in document.beside if str(each["kind"]).endswith("TrainingRuntime")]
    found: Any = next((each["spec"] for each in runtimes if each["metadata"]["name"] == name), {})
    runtime = deepcopy(found)  # other TrainJobs may have the same
    jobs = runtime.get("template", {}).get("spec", {}).get("replicatedJobs", ())
    templates = {each["name"]: template_of(each["template"]) for each in jobs}
    template = templates.get(_NODE, {"spec": {"containers": [{"name": _NODE}]}})
    container = next(one for one in template["spec"]["containers"] if one["name"] == _NODE)
    container |= {field: trainer.pop(name) for name, field in _TRAINER.items() if name in trainer}
    container["env"] = with_variables(trainer.pop("env", []), container.get("env", []))
    if "image" not in container:
        remedy = f"Add what this prints to the files: kubectl get clustertrainingruntime {name} -o yaml"
        raise document.error(f"has no image, and its runtime {name} is not among the files", remedy, "runtimeRef")
    if not runtime:
        task.note(f"Runtime {name} is not among the files: compare its pod template")
    policy = runtime.get("mlPolicy", {})
    kind = "mpi" if "mpi" in policy or "mpi" in name else "torch"
    workers = trainer.pop("numNodes", policy.get("numNodes", 1))
    processes = trainer.pop("numProcPerNode", policy.get(kind, {}).get("numProcPerNode"))
    if kind == "mpi":
        set_mpi(task, template if "command" in container else templates[_LAUNCHER], template, workers, processes)
    else:
        set_torchrun(task, template, workers, processes)
    for scheduler in runtime.get("podGroupPolicy", {}) if workers > 1 else ():
        task.parameters["gang_scheduler"] = scheduler
    for each in templates.keys() - {_NODE, _LAUNCHER}:
        task.note(f"{each} of the runtime {name} is left out: let a task before this one do its work")
    task.take_limits(spec)
    task.leave_out({**spec, **trainer})
    return task
