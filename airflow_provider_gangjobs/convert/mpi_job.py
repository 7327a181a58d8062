"""An MPIJob of v1 or v2beta1: rank 0 runs the command of the Launcher, and all ranks have the pods of the Worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.host_names import map_texts
from airflow_provider_gangjobs.convert.task import Part, Task, pods, with_variables
from airflow_provider_gangjobs.gang.render.user_manifest import main_container_name
from airflow_provider_gangjobs.parameters.shorthands import FOLDER, KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.convert.documents import Document


_OF_LAUNCHER: Final = ("command", "args", "env", "image", "restartPolicy")
"""Fields of the Launcher that are used, or told on their own."""


def convert(document: Document) -> Task:
    """Return the workload of an MPIJob.

    Raises:
        ConversionError: the Launcher has no command.
    """
    task, spec = Task(document, []), dict(document.data["spec"])
    replicas = spec.pop("mpiReplicaSpecs")
    worker = replicas.get("Worker", replicas["Launcher"])
    slots, policy = spec.pop("slotsPerWorker", 1), dict(spec.pop("runPolicy", {}))
    workers = worker.get("replicas", 1) + spec.pop("runLauncherAsWorker", False)
    set_mpi(task, template_of(replicas["Launcher"]), template_of(worker), workers, slots)
    task.take_limits(policy)
    task.leave_out({**policy, **spec})
    return task


def set_mpi(task: Task, launcher: Any, worker: Any, workers: int, slots: Any = None) -> None:
    """Set the part and the parameters of a program that `mpirun` starts.

    Raises:
        ConversionError: the Launcher has no command.
    """
    starter, container = main_container(launcher), main_container(worker)
    if not starter.get("command") and not starter.get("args"):
        raise task.document.error("has no command for mpirun", "Give the command of the Launcher", "Launcher")
    if starter.get("image") != container.get("image"):
        task.note(f"Rank 0 runs the command of the Launcher, whose image was {starter.get('image')}", "image")
    if left := [name for name in other_fields(launcher, worker) if name not in _OF_LAUNCHER]:
        task.note(f"The pods are those of the Worker: {', '.join(left)} of the Launcher are left out")
    if starter is not container and ("command" in container or "args" in container):
        task.note("The program of the Worker is left out: the gang starts sshd on each rank", "command")
    for field in ("command", "args"):
        words = starter.get(field, [])
        container[field] = map_texts(words, lambda text: text.replace("/etc/mpi/hostfile", f"{FOLDER}/hostfile"))
    container["env"] = with_variables(container.get("env", []), starter.get("env", []))
    secret = f"{task.task_id}-ssh"
    task.parameters |= {"launch": "mpi", "ssh_secret": secret}
    if slots not in (None, 1):
        task.parameters["slots_per_worker"] = slots
    options = f"--type=kubernetes.io/ssh-auth --from-file={KEY}=mpi-key"
    create = f"kubectl create secret generic{task.in_namespace} {secret} {options}"
    task.note(f'Create it by ssh-keygen -t ed25519 -N "" -f mpi-key, and {create}', "ssh_secret")
    task.parts = [Part("", pods(workers, worker))]


def other_fields(template: Mapping[str, Any], than: Mapping[str, Any]) -> list[str]:
    """Return the fields of a pod template, of its pod, and of its main container that another template has not."""
    main, other = main_container(template), main_container(than)
    pairs = [(template, than), (template["spec"], than["spec"]), (main, other)]
    fields = [name for one, another in pairs for name, value in one.items() if value != another.get(name)]
    has_more = len(template["spec"]["containers"]) > 1
    return [name for name in fields if name not in ("spec", "name", "" if has_more else "containers")]


def template_of(replica: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod template of a replica, with the `restartPolicy` that the operator gives to it."""
    template: dict[str, Any] = replica["template"]
    given = {"restartPolicy": replica["restartPolicy"]} if "restartPolicy" in replica else {}
    return {**template, "spec": {**template["spec"], **given}}


def main_container(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container of the rank."""
    name = main_container_name(template, {}, {})
    found: dict[str, Any] = next(one for one in template["spec"]["containers"] if one["name"] == name)
    return found
