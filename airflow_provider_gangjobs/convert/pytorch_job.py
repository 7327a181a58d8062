"""A PyTorchJob: its command runs on all replicas, by torchrun if it names that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.mpi_job import main_container, other_fields, template_of
from airflow_provider_gangjobs.convert.task import Part, Task, pods, with_variables
from airflow_provider_gangjobs.parameters.shorthands import ENV_PROCESSES, PYTHONS

if TYPE_CHECKING:
    from airflow_provider_gangjobs.convert.documents import Document

_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_FLAGS: Final = ("standalone", "no_python", "use_env", "run_path")
_OF_GANG: Final = (*_FLAGS, "nnodes", "node_rank", "master_addr", "master_port")
"""Options of torchrun that the gang sets, or that have no meaning in a gang."""


def convert(document: Document) -> Task:
    """Return the workload of a PyTorchJob."""
    task, spec = Task(document, []), dict(document.data["spec"])
    replicas, policy = spec.pop("pytorchReplicaSpecs"), dict(spec.pop("runPolicy", {}))
    given = [replicas[name] for name in ("Worker", "Master") if name in replicas]
    main, *others = [each for each in given if each.get("replicas") != 0] or given or [replicas["Worker"]]
    template = template_of(main)
    if left := [name for each in others for name in other_fields(template_of(each), template)]:
        task.note(f"All ranks have the pods of the Worker: {', '.join(left)} of the Master are left out")
    size = sum(each.get("replicas", 1) for each in (main, *others))
    set_torchrun(task, template, size, spec.pop("nprocPerNode", None))
    task.take_limits(policy)
    task.leave_out({**policy, **spec})
    return task


def set_torchrun(task: Task, template: Any, workers: int, processes: Any = None) -> None:
    """Set the part and the parameters of a program that torchrun starts, or that is started as it is.

    :param processes: The number of processes of a pod, or a word of torchrun.
    """
    container, task.parts = main_container(template), [Part("", pods(workers, template))]
    words = [*container.get("command", ()), *container.get("args", ())]
    options = {} if processes in (None, "auto") else {ENV_PROCESSES: str(processes)}
    program = _without_torchrun(words, options)
    if program != words and container.get("command"):
        task.parameters["launch"] = "torchrun"
        container |= {"command": program, "args": []}
    else:
        if workers == 1:
            task.parameters["rendezvous"] = True
        task.note("The program finds the gang in MASTER_ADDR, RANK, WORLD_SIZE, and the PET_ variables of torchrun")
    added = [{"name": name, "value": value} for name, value in options.items()]
    container["env"] = with_variables(container.get("env", []), added)


def _without_torchrun(words: list[str], options: dict[str, str]) -> list[str]:
    """Return the program that the words start by torchrun, or else the words, and add its options as variables."""
    program = words[0].rpartition("/")[2] if words else ""
    if program in PYTHONS and words[1:3] in [["-m", module] for module in _MODULES]:
        words = words[3:]
    elif program == "torchrun":
        words = words[1:]
    else:
        return words
    while words and words[0].startswith("-") and words[0] not in ("-m", "--module"):
        option, equals, value = words[0].lstrip("-").partition("=")
        name, words = option.replace("-", "_"), words[1:]
        if not equals and name not in _FLAGS and words:
            value, words = words[0], words[1:]
        if name not in _OF_GANG and not name.startswith("rdzv"):
            options.setdefault(f"PET_{name.upper()}", value)
    return ["-m", *words[1:]] if words[:1] == ["--module"] else words
