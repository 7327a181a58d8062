"""From the manifests that people have to a DAG file.

Each kind has a module with a function from the object to a `Task`. A kind without a module is not converted, and is
named with what to write in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.convert import (
    cron_job,
    job,
    job_set,
    mpi_job,
    pod,
    pytorch_job,
    train_job,
    volcano_job,
)
from airflow_provider_gangjobs.convert.dag_source import write_dags
from airflow_provider_gangjobs.convert.documents import ConversionError, Document, read_documents
from airflow_provider_gangjobs.convert.gang import set_parameters
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.render.user_manifest import iter_scalars, lead_to
from airflow_provider_gangjobs.kube.text import pluralize, to_printable_line
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.convert.task import Task

__all__ = ["Conversion", "ConversionError", "convert"]

KINDS: Final[Mapping[str, Callable[[Document], Task]]] = {
    "batch/v1 Job": job.convert,
    "batch/v1 CronJob": cron_job.convert,
    "batch/v1beta1 CronJob": cron_job.convert,
    "batch.volcano.sh/v1alpha1 Job": volcano_job.convert,
    "jobset.x-k8s.io/v1alpha2 JobSet": job_set.convert,
    "kubeflow.org/v1 MPIJob": mpi_job.convert,
    "kubeflow.org/v1 PyTorchJob": pytorch_job.convert,
    "kubeflow.org/v2beta1 MPIJob": mpi_job.convert,
    "trainer.kubeflow.org/v1alpha1 TrainJob": train_job.convert,
    "v1 Pod": pod.convert,
}
"""What converts an object, by its version and kind."""


class Conversion(Struct, frozen=True):
    """A DAG file, and what was done."""

    source: str
    summary: Sequence[str]


def convert(texts: Mapping[str, str]) -> Conversion:
    """Return the DAG file of all workloads of some files.

    :param texts: The text of each file by its name.

    Raises:
        ConversionError: a file cannot be read, or no object can be converted.
    """
    documents = [document for file, text in texts.items() for document in read_documents(file, text)]
    beside = [each.data for each in documents]
    config_maps = {each.name: each for each in documents if each.kind == "v1 ConfigMap"}
    workloads = [each.data for each in documents if each.kind in KINDS]
    known = {f"v1 ConfigMap {name}" for path, name in iter_scalars(workloads, "") if "configMap" in path}
    names: Counter[str] = Counter()
    tasks = []
    for each in documents:
        if each.kind in KINDS:
            names[each.name] += 1
            tasks.append(_task(replace(each, beside=beside), config_maps, names[each.name]))
    if not tasks:
        first = documents[0]
        raise first.error(f"{first.kind} is not converted", lead_to(first.data))
    known |= {f"v1 Service {task.service}" for task in tasks}
    for each in documents:
        is_used = each.kind in KINDS or each.kind.endswith("TrainingRuntime") or f"{each.kind} {each.name}" in known
        if not is_used:
            where = f"{each.kind} {each.name} ({each.file}, line {each.line})"
            tasks[0].note(f"{where} is not converted. {_cure(each)}")
    return Conversion(write_dags(tasks), [line for task in tasks for line in _summary(task)])


def _cure(document: Document) -> str:
    """Return what to do with an object that stands beside the workloads."""
    spec = document.data.get("spec")
    is_of_peers = isinstance(spec, Mapping) and spec.get("clusterIP") == "None"
    serves = document.kind.startswith("apps/") or (document.kind == "v1 Service" and not is_of_peers)
    return "Create it beforehand, as with kubectl" if serves else lead_to(document.data)


def _task(document: Document, config_maps: Mapping[str, Document], number: int) -> Task:
    try:
        document.require_values()
        task = KINDS[document.kind](document)
        task.number = number
        set_parameters(task, config_maps)
        GangJobOperator(task_id=task.task_id, **task.parameters)
    except InvalidGangSpec as error:
        raise document.refusal(error.shown_problems[0]) from error
    except (LookupError, AttributeError, StopIteration, TypeError, ValueError) as error:
        wrong = (
            f"no {error.args[0]} where Kubernetes needs one"
            if isinstance(error, KeyError)
            else "a field of another type than in Kubernetes"
        )
        remedy = "Correct it: `kubectl create --dry-run=server -f FILE` names the field"
        raise document.error(f"{document.kind} has {wrong}", remedy) from error
    return task


def _summary(task: Task) -> list[str]:
    document = task.document
    what = f"a gang of {task.size}" if task.is_gang else f"{pluralize(task.size, 'pod')}, no gang"
    head = to_printable_line(f"{document.file}: line {document.line}: {document.kind} {document.name}: {what}")
    return [head, *(f"  {parameter + ': ' if parameter else ''}{text}" for parameter, text in task.notes)]
