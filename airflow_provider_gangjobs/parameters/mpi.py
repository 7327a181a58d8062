"""The parameter `launch="mpi"`: rank 0 runs the command, such as `mpirun`, and the other ranks run sshd. Pure.

MPI launchers start processes on other hosts by ssh. So each rank runs the script `gangjobs_mpi.sh`, which is mounted
with the files of the gang. The key of ssh is in a Secret of the user. The variables of Open MPI and Intel MPI are the
ones that the MPI Operator of Kubeflow sets (mpi-operator, pkg/controller/mpi_job_controller.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.labels import FILES_PATH
from airflow_provider_gangjobs.kube import names
from airflow_provider_gangjobs.parameters.checks import add_env, append_item, is_templated, parse_whole_number

SCRIPT_FILE: Final = "gangjobs_mpi.sh"
SCRIPT: Final = Path(__file__).with_name(SCRIPT_FILE)
FOLDER: Final = "/gang/mpi"
"""Where a rank keeps its copy of the key, its host files, and the configuration of ssh and sshd."""
KEY_FOLDER: Final = "/gang/ssh"
KEY: Final = "ssh-privatekey"
"""The key of a Secret of the type `kubernetes.io/ssh-auth`."""
ENV_PORT: Final = "GANG_MPI_PORT"
PORT: Final = 2222
ENV_WAIT_S: Final = "GANG_MPI_WAIT_S"
WAIT_S: Final = 900
"""How long the ranks wait for each other. The images of some ranks may still be pulled when the first rank runs."""
_SSH_OPTIONS: Final = f"-F {FOLDER}/ssh_config"

LAUNCHER_ENV: Final = {
    # Open MPI up to 4. Without the full names, it shortens the names of the host file, and no other pod knows those.
    "OMPI_MCA_orte_default_hostfile": f"{FOLDER}/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_plm_rsh_args": _SSH_OPTIONS,
    # `mpirun` of Open MPI 4 and 5 needs these two, and `prterun` of Open MPI 5 needs the two of PRRTE.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Open MPI 5, whose launcher is PRRTE. It connects to the full names, and compares the short names with its own.
    # With "keep_fqdn_hostnames", it does not recognize its own host, and connects to it too.
    "PRTE_MCA_prte_default_hostfile": f"{FOLDER}/hostfile",
    "PRTE_MCA_plm_ssh_args": _SSH_OPTIONS,
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # MPICH and MVAPICH.
    "HYDRA_HOST_FILE": f"{FOLDER}/machinefile",
    "HYDRA_LAUNCHER_EXEC": f"{FOLDER}/ssh",
    "HYDRA_LAUNCHER_EXTRA_ARGS": _SSH_OPTIONS,
    # Intel MPI.
    "I_MPI_HYDRA_HOST_FILE": f"{FOLDER}/machinefile",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _SSH_OPTIONS,
}
"""Variables by which the launchers find the host file and the configuration of ssh."""


def mpi_problems(launch: Any, ssh_secret: Any, slots_per_worker: Any) -> tuple[Problem, ...]:
    """Return the problems of `ssh_secret` and `slots_per_worker` that rendering their templates cannot resolve."""
    given = {"ssh_secret": ssh_secret, "slots_per_worker": slots_per_worker}
    if launch != "mpi":
        what = f"is given with launch={launch!r}"
        remedy = 'Give it with launch="mpi"'
        return tuple(Problem(name, what, remedy) for name, value in given.items() if value is not None)
    return (*_secret_problems(ssh_secret), *_slots_problems(slots_per_worker))


def _secret_problems(name: Any) -> tuple[Problem, ...]:
    if name is None:
        remedy = f'Name a Secret of the namespace with a private SSH key as the item "{KEY}"'
        return (Problem("ssh_secret", 'is missing with launch="mpi"', remedy),)
    wrong = None if is_templated(name) else names.problem_with_dns_subdomain(name)
    return (Problem("ssh_secret", wrong, "Give the name of a Secret"),) if wrong else ()


def _slots_problems(given: Any) -> tuple[Problem, ...]:
    if given is None or _is_positive(given) or is_templated(given):
        return ()
    what = f"is {given!r}, not a positive whole number"
    return (Problem("slots_per_worker", what, "Give the number of MPI processes of a rank"),)


def launch_mpi(spec: dict[str, Any], *, ssh_secret: Any, slots_per_worker: Any) -> None:
    """Change the parameters of a `GangSpec` so that rank 0 runs the command as an MPI launcher.

    :param spec: The parameters that were given.
    :param ssh_secret: Name of the Secret with the SSH key.
    :param slots_per_worker: Number of MPI processes of a rank. `None` means 1.

    Raises:
        InvalidGangSpec: parameters are missing, wrong, or contradict each other.
    """
    if problems := (*mpi_problems("mpi", ssh_secret, slots_per_worker), *_spec_problems(spec)):
        raise InvalidGangSpec(problems)
    given = [spec.get("command") or (), spec.get("args") or ()]
    if all(isinstance(words, (list, tuple)) for words in given):  # otherwise known only when the task runs, or refused
        spec["command"] = ["/bin/sh", f"{FILES_PATH}/{SCRIPT_FILE}", "run", *given[0], *given[1]]
        spec["args"] = None
    files = spec.get("files") or {}
    if isinstance(files, Mapping):
        spec["files"] = {**files, SCRIPT_FILE: SCRIPT.read_text("utf-8")}
    add_env(spec, _environment(1 if slots_per_worker is None else parse_whole_number(slots_per_worker)))
    key = {"secretName": ssh_secret, "items": [{"key": KEY, "path": KEY}]}
    append_item(spec, "volumes", {"name": "gang-ssh", "secret": key})
    append_item(spec, "volumes", {"name": "gang-mpi", "emptyDir": {"medium": "Memory"}})
    append_item(spec, "volume_mounts", {"name": "gang-ssh", "mountPath": KEY_FOLDER, "readOnly": True})
    append_item(spec, "volume_mounts", {"name": "gang-mpi", "mountPath": FOLDER})
    if spec.get("rendezvous") is None:
        spec["rendezvous"] = True  # also for a single rank, whose host file has one line


def _spec_problems(spec: Mapping[str, Any]) -> Iterator[Problem]:
    if not spec.get("command") and not spec.get("args"):
        remedy = "Give the command of rank 0, such as ['mpirun', './program']"
        yield Problem("command", 'is missing with launch="mpi"', remedy)
    if spec.get("rendezvous") is False:
        remedy = "Leave it out: the host file has the names of the ranks"
        yield Problem("rendezvous", 'is False with launch="mpi"', remedy)
    files = spec.get("files")
    if isinstance(files, Mapping) and SCRIPT_FILE in files:
        yield Problem(f"files.{SCRIPT_FILE}", "is a file of the provider", "Choose another name")
    for name, value in _literal_env(spec.get("env")):
        if name in (ENV_PORT, ENV_WAIT_S) and not _is_positive(value) and not is_templated(value):
            yield Problem(f"env.{name}", f"is {value!r}, not a positive whole number", "Give a number as text")


def _literal_env(env: Any) -> Iterator[tuple[Any, Any]]:
    """Yield name and value of the variables of `env`, in either of its forms, that have a value."""
    if isinstance(env, Mapping):
        yield from ((name, value) for name, value in env.items() if not isinstance(value, Mapping))
    elif isinstance(env, (list, tuple)):
        yield from ((item.get("name"), item["value"]) for item in env if isinstance(item, Mapping) and "value" in item)


def _is_positive(value: Any) -> bool:
    number = parse_whole_number(value)
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _environment(slots: Any) -> dict[str, Any]:
    """Return the variables of the script and of the MPI launchers."""
    return {
        "GANG_MPI_FOLDER": FOLDER,
        "GANG_MPI_SSH_KEY": f"{KEY_FOLDER}/{KEY}",
        "GANG_MPI_ADDRESS": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        "GANG_MPI_SLOTS": str(slots),
        ENV_PORT: str(PORT),
        ENV_WAIT_S: str(WAIT_S),
        **LAUNCHER_ENV,
    }


__all__ = ["launch_mpi", "mpi_problems"]
