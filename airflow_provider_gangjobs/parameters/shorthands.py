"""Parameters that stand for other parameters, such as `secrets` for `env_from` and `launch` for a command. Pure.

With `launch="mpi"`, rank 0 runs the command, such as `mpirun`, and the other ranks run sshd: MPI launchers start
processes on other hosts by ssh. So each rank runs the script `gangjobs_mpi.sh`, which is mounted with the files of the
gang. The key of ssh is in a Secret of the user. The variables of Open MPI and Intel MPI are the ones that the MPI
Operator of Kubeflow sets (mpi-operator, pkg/controller/mpi_job_controller.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.container_programs import PROGRAMS
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.client_models import describe_value
from airflow_provider_gangjobs.gang.identity import digest_of
from airflow_provider_gangjobs.gang.spec import GangSpec, WaitUntil, find_supervised, is_whole_number
from airflow_provider_gangjobs.kube import quantity
from airflow_provider_gangjobs.kube.names import problem_with_dns_label, problem_with_dns_subdomain
from airflow_provider_gangjobs.kube.well_known import COMPLETION_INDEX, FILES_PATH
from airflow_provider_gangjobs.parameters.checks import (
    add_env,
    append_item,
    is_templated,
    parse_whole_number,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def role_problems(roles: Any, wait_until: WaitUntil | str, launch: str) -> Iterator[Problem]:
    """Yield the problems of the parameters of a task whose gang has roles; none without roles.

    :param roles: The parameter of the same name.
    """
    if roles is None:
        return
    if wait_until in (WaitUntil.SUBMITTED, WaitUntil.RUNNING):
        # The API server fails one Job only, and somebody who follows the gang ends the others.
        what = f'is "{WaitUntil(wait_until)}" and roles are given: nobody would end the gang when one role fails'
        yield Problem("wait_until", what, 'Leave wait_until out, which means "ended"')
    if launch != "plain":
        yield Problem("launch", f"is {launch!r} and roles are given", "Start the program by the command of each role")


LAUNCHES: Final = ("mpi", "plain", "shards", "torchrun")
PYTHONS: Final = ("python", "python3")
ENV_SHARD_INDEX: Final = "SHARD_INDEX"
ENV_SHARD_COUNT: Final = "SHARD_COUNT"
ENV_PROCESSES: Final = "PET_NPROC_PER_NODE"
"""The variable by which torchrun reads its option `--nproc-per-node`."""


def launch_problems(name: str, launch: Any) -> Iterator[Problem]:
    """Yield a problem if the value is no way to start the program."""
    if launch not in LAUNCHES:
        yield Problem(name, f"is {launch!r}", f"Choose one of {', '.join(LAUNCHES)}")


def restart_problems(spec: Mapping[str, Any], launch: Any) -> Iterator[Problem]:
    """Yield the problem of ranks that would restart alone although nobody has said that they are independent.

    :param spec: The parameters of the `GangSpec`.
    """
    if find_supervised(spec.get) is not None and spec.get("rendezvous") is False and launch != "shards":
        remedy = 'Leave it out, or give launch="shards" if the ranks are independent, so that each restarts alone'
        yield Problem("rendezvous", "is False, and ranks restart together", remedy)


def expand(
    spec: Mapping[str, Any],
    *,
    secrets: Sequence[Any] | None,
    launch: str,
    ssh_secret: Any = None,
    slots_per_worker: Any = None,
) -> dict[str, Any]:
    """Return the parameters of a `GangSpec` that the parameters with their shorthands stand for.

    :param spec: The parameters of the `GangSpec` that were given.
    :param secrets: Names of Secrets whose items become environment variables, or `Secret` objects of the
        cncf.kubernetes provider.
    :param launch: One of `LAUNCHES`.
    :param ssh_secret: Name of the Secret with the SSH key, for `launch="mpi"`.
    :param slots_per_worker: Number of MPI processes of a rank, for `launch="mpi"`.

    Raises:
        InvalidGangSpec: shorthands contradict other parameters.
    """
    expanded = dict(spec)
    for secret in _names(secrets):
        _add_secret(expanded, secret)
    if launch == "shards":
        _launch_shards(expanded)
    if launch == "torchrun":
        _launch_torchrun(expanded)
    if launch == "mpi":
        _launch_mpi(expanded, ssh_secret=ssh_secret, slots_per_worker=slots_per_worker)
    return expanded


def _names(given: Any) -> Sequence[Any]:
    """Return one name, or several, as a list. A value that is known only when the task runs has no names yet.

    Raises:
        InvalidGangSpec: the value is neither.
    """
    if isinstance(given, str):
        return [given]
    if given is None or isinstance(given, (list, tuple)):
        return given or ()
    if is_templated(given):
        return ()
    raise InvalidGangSpec((Problem("secrets", f"is {describe_value(given)}, not a list", "Give a list of names"),))


def _launch_shards(spec: dict[str, Any]) -> None:
    """Each rank works on its share alone, so the ranks need no Service and no common address."""
    if spec.get("rendezvous") is None:
        spec["rendezvous"] = False
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{COMPLETION_INDEX}']"}}
    count = spec.get("workers") or _workers_of(spec.get("manifest"))
    add_env(spec, {ENV_SHARD_INDEX: {"valueFrom": index}, ENV_SHARD_COUNT: str(count)})


def _workers_of(manifest: Any) -> Any:
    """Return the number of ranks that a manifest names; 1 if it names none, or is known only when the task runs."""
    job = _job_spec(manifest)
    return job.get("completions") or job.get("parallelism") or 1


def _job_spec(manifest: Any) -> Mapping[str, Any]:
    from airflow_provider_gangjobs.gang.render.user_manifest import parse_manifest

    spec = parse_manifest(manifest).data.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _launch_torchrun(spec: dict[str, Any]) -> None:
    """Run torchrun on every rank. It reads the number of nodes, its own number and the address of rank 0 from PET_...

    The provider sets these variables with the rendezvous. The number of processes is the number of GPUs of a rank.
    """
    given = [spec.get("command") or (), spec.get("args") or ()]
    if not all(isinstance(words, (list, tuple)) for words in given):
        return  # known only when the task runs, or refused by the validation
    words = [word for words in given for word in words]
    if spec.get("rendezvous") is False or not words:
        name, what = ("rendezvous", "is False") if words else ("command", "is missing")
        remedy = "torchrun needs a program and, with several ranks, the rendezvous"
        raise InvalidGangSpec((Problem(name, f'{what} with launch="torchrun"', remedy),))
    is_python = words[0] == "-m" or str(words[0]).endswith(".py")
    if words[0] in PYTHONS and words[1:] and (words[1] == "-m" or not str(words[1]).startswith("-")):
        is_python = bool(words.pop(0))  # torchrun itself starts Python, without other options
    spec["command"] = ["torchrun", *([] if is_python else ["--no-python"]), *words]
    spec["args"] = None
    add_env(spec, {ENV_PROCESSES: str(_gpus(spec) or 1)})


def _gpus(spec: Mapping[str, Any]) -> int:
    """Return the number of GPUs of a rank; 0 if it has none, it is known only when the task runs, or it is refused.

    A part of a GPU (MIG) counts as one: a process of NCCL uses one of them.
    """
    from airflow_provider_gangjobs.gang.render.pod_template import user_template
    from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of

    with suppress(LookupError, TypeError, AttributeError, ValueError):  # the validation refuses another structure
        names = ("manifest", "resources", "pod_overrides", "annotations")
        given: dict[str, Any] = {name: spec.get(name) for name in names}
        gang = GangSpec(**given)
        resources = user_template(gang, manifest_of(gang))["spec"]["containers"][0]["resources"]
        amounts = (resources.get("limits") or resources["requests"]).items()
        return sum(int(quantity.parse(amount)) for name, amount in amounts if name.endswith("/gpu") or "/mig-" in name)
    return 0


def _add_secret(spec: dict[str, Any], secret: Any) -> None:
    """Add the variables of a Secret by its name, or what a `Secret` object of the cncf.kubernetes provider says."""
    if isinstance(secret, str):
        append_item(spec, "env_from", {"secretRef": {"name": secret}})
        return
    try:
        kind, target, name, key = secret.deploy_type, secret.deploy_target, secret.secret, secret.key
    except AttributeError:
        remedy = "Give names, or Secret objects of the cncf.kubernetes provider"
        raise InvalidGangSpec((Problem("secrets", f"has {describe_value(secret)}", remedy),)) from None
    if kind == "volume":
        volume = _volume_of(spec, name, target)
        items = getattr(secret, "items", None)
        source = {"secretName": name, **({"items": list(items)} if items else {})}
        append_item(spec, "volumes", {"name": volume, "secret": source})
        append_item(spec, "volume_mounts", {"name": volume, "mountPath": target, "readOnly": True})
    elif key is None:
        append_item(spec, "env_from", {"secretRef": {"name": name}})
    else:
        add_env(spec, {target: {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}})


def _volume_of(spec: Mapping[str, Any], secret: str, path: str) -> str:
    """Return the name of a volume with a Secret. It has a digest if the plain name is no label, or is in use."""
    name, volumes = f"secret-{secret}", spec.get("volumes")
    given = volumes if isinstance(volumes, (list, tuple)) else ()
    is_in_use = any(isinstance(each, Mapping) and each.get("name") == name for each in given)
    return f"secret-{digest_of(secret, path)}" if is_in_use or problem_with_dns_label(name) else name


SCRIPT_FILE: Final = "gangjobs_mpi.sh"
SCRIPT: Final = PROGRAMS / SCRIPT_FILE
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


def mpi_problems(launch: Any, ssh_secret: Any, slots_per_worker: Any) -> Iterator[Problem]:
    """Yield the problems of `ssh_secret` and `slots_per_worker` that rendering their templates cannot resolve."""
    if launch != "mpi":
        for name, value in (("ssh_secret", ssh_secret), ("slots_per_worker", slots_per_worker)):
            if value is not None:
                yield Problem(name, f"is given with launch={launch!r}", 'Give it with launch="mpi"')
        return
    if ssh_secret is None:
        remedy = f'Name a Secret of the namespace with a private SSH key as the item "{KEY}"'
        yield Problem("ssh_secret", 'is missing with launch="mpi"', remedy)
    elif not is_templated(ssh_secret) and (wrong := problem_with_dns_subdomain(ssh_secret)):
        yield Problem("ssh_secret", wrong, "Give the name of a Secret")
    if slots_per_worker is not None and not _is_positive(slots_per_worker) and not is_templated(slots_per_worker):
        what = f"is {slots_per_worker!r}, not a positive whole number"
        yield Problem("slots_per_worker", what, "Give the number of MPI processes of a rank")


def _launch_mpi(spec: dict[str, Any], *, ssh_secret: Any, slots_per_worker: Any) -> None:
    refuse((*mpi_problems("mpi", ssh_secret, slots_per_worker), *_mpi_spec_problems(spec)))
    given = [spec.get("command") or (), spec.get("args") or ()]
    if all(isinstance(words, (list, tuple)) for words in given):  # otherwise known only when the task runs, or refused
        spec["command"] = ["/bin/sh", f"{FILES_PATH}/{SCRIPT_FILE}", "run", *given[0], *given[1]]
        spec["args"] = None
    files = spec.get("files") or {}
    if isinstance(files, Mapping):
        spec["files"] = {**files, SCRIPT_FILE: SCRIPT.read_text("utf-8")}
    add_env(spec, _mpi_environment(1 if slots_per_worker is None else parse_whole_number(slots_per_worker)))
    key = {"secretName": ssh_secret, "items": [{"key": KEY, "path": KEY}]}
    append_item(spec, "volumes", {"name": "gang-ssh", "secret": key})
    append_item(spec, "volumes", {"name": "gang-mpi", "emptyDir": {"medium": "Memory"}})
    append_item(spec, "volume_mounts", {"name": "gang-ssh", "mountPath": KEY_FOLDER, "readOnly": True})
    append_item(spec, "volume_mounts", {"name": "gang-mpi", "mountPath": FOLDER})
    if spec.get("rendezvous") is None:
        spec["rendezvous"] = True  # also for a single rank, whose host file has one line


def _mpi_spec_problems(spec: Mapping[str, Any]) -> Iterator[Problem]:
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
    if isinstance(env, Mapping):
        yield from ((name, value) for name, value in env.items() if not isinstance(value, Mapping))
    elif isinstance(env, (list, tuple)):
        yield from ((item.get("name"), item["value"]) for item in env if isinstance(item, Mapping) and "value" in item)


def _is_positive(value: Any) -> bool:
    return is_whole_number(parse_whole_number(value), 1)


def _mpi_environment(slots: Any) -> dict[str, Any]:
    return {
        "GANG_MPI_FOLDER": FOLDER,
        "GANG_MPI_SSH_KEY": f"{KEY_FOLDER}/{KEY}",
        "GANG_MPI_ADDRESS": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        "GANG_MPI_SLOTS": str(slots),
        ENV_PORT: str(PORT),
        ENV_WAIT_S: str(WAIT_S),
        **LAUNCHER_ENV,
    }
