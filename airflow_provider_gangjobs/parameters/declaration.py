"""The parameters of a task that runs a gang. Each is declared once: in the signature and the docstring of
`gang_job_parameters`.

The signature has the name, the type, the default and, as a `Parameter`, what else is true of the value: whether Airflow
renders it, how it is converted, what is checked, and whether it limits how long a trigger waits. The docstring has the
text. `GangJobOperator` gets its signature, its attributes, its template fields and its docstring from here, the trigger
its time limits, and the reference its lists.

To add a parameter, declare it, and use its attribute where it acts. A parameter that shapes the Job also needs a
field of `GangSpec`, which has its type after the conversion. The rules that concern several parameters are in
`task_parameters`.
"""

# Without `from __future__ import annotations`: the annotations are read when this module is imported.

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.configuration import (
    default_deferrable,
    ends_from_trigger,
    starts_from_trigger,
)
from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.client_models import MODELS, convert_parameter
from airflow_provider_gangjobs.gang.spec import (
    LOG_LIMIT_BYTES,
    RESULTS_LIMIT_BYTES,
    GangPolicy,
    Logs,
    OnFinish,
    OnKill,
    Rendezvous,
    Results,
    RoleSpec,
    WaitUntil,
)
from airflow_provider_gangjobs.parameters.checks import (
    callback_paths,
    callback_problems,
    choice_problems,
    conn_id_problems,
    disruption_problems,
    duration_problems,
    exit_code_problems,
    flag_problems,
    results_limit_problems,
    storage_problems,
    to_exit_codes,
    to_names,
    to_seconds,
    to_url,
    to_whole_seconds,
)
from airflow_provider_gangjobs.parameters.shorthands import launch_problems

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    from airflow_provider_gangjobs.triggers.callbacks import GangJobCallback

    StoragePath = str | os.PathLike[str] | ObjectStoragePath
    Callback = type[GangJobCallback] | str
else:
    # The import of Airflow's storage is too expensive for a DAG file.
    StoragePath = str | os.PathLike[str]
    Callback = type | str

P = ParamSpec("P")


class Parameter(Struct, frozen=True, kw_only=True):
    """What is true of a parameter besides its name, type, default and text."""

    attribute: str = ""
    """The attribute of the operator. The default is the name of the parameter."""
    is_template: bool = False
    """Whether Airflow renders the value."""
    renderer: str | None = None
    """How Airflow's UI shows the rendered value."""
    convert: Callable[[Any], Any] | None = None
    """Returns the value of the attribute. A value that it does not know stays as it is, for the check."""
    check: Callable[[str, Any], Iterable[Problem]] | None = None
    """Yields the problems of a converted value that rendering its template cannot resolve, by the parameter's name."""
    is_duration: bool = False
    """Whether the value is a number of seconds. The attribute has the suffix `_s`."""
    limits_wait: bool = False
    """Whether the trigger, or the worker, that waits for the gang gets the value."""
    default: Any = None


def choice(kind: type[StrEnum]) -> Parameter:
    """Return the parameter whose value is one of an enumeration, or its text."""
    values: dict[Any, Any] = {each.value: each for each in kind}

    def convert(given: Any) -> Any:
        return values.get(given, given) if isinstance(given, str) else given

    return Parameter(convert=convert, check=partial(choice_problems, kind))


def or_default(read: Callable[[], bool]) -> Parameter:
    """Return the parameter whose default is an option of Airflow."""
    return Parameter(convert=lambda given: read() if given is None else given, check=flag_problems)


TEMPLATE: Final = Parameter(is_template=True)
BASH: Final = replace(TEMPLATE, renderer="bash")
JSON: Final = replace(TEMPLATE, renderer="json")
PYTHON: Final = replace(TEMPLATE, renderer="py")
YAML: Final = replace(TEMPLATE, renderer="yaml")

_DURATION: Final = Parameter(is_duration=True, convert=to_seconds, check=duration_problems)
Duration = Annotated[timedelta | float | None, _DURATION]
"""`None` means no limit."""
TimeLimit = Annotated[timedelta | float | None, replace(_DURATION, limits_wait=True)]
"""A duration that whoever waits for the gang keeps (`gang.state.gang_state`)."""
WholeSeconds = Annotated[timedelta | int | None, Parameter(is_duration=True, convert=to_whole_seconds)]
"""A duration of Kubernetes. The submission checks it."""


def gang_job_parameters(
    *,
    image: Annotated[str | None, TEMPLATE] = None,
    command: Annotated[Sequence[str] | None, BASH] = None,
    args: Annotated[Sequence[str] | None, BASH] = None,
    env: Annotated[Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, JSON] = None,
    env_from: Annotated[Sequence[Mapping[str, Any]] | None, TEMPLATE] = None,
    secrets: Annotated[Sequence[Any] | None, TEMPLATE] = None,
    resources: Annotated[Mapping[str, Any] | None, replace(JSON, attribute="rank_resources")] = None,
    workers: Annotated[int | str | None, TEMPLATE] = None,
    min_workers: Annotated[int | str | None, TEMPLATE] = None,
    roles: Annotated[Mapping[str, Mapping[str, Any]] | None, JSON] = None,
    files: Annotated[Mapping[str, str | bytes | os.PathLike[str]] | None, PYTHON] = None,
    working_dir: Annotated[str | None, TEMPLATE] = None,
    launch: Annotated[str, Parameter(check=launch_problems)] = "plain",
    rendezvous: bool | Rendezvous | None = None,
    ssh_secret: Annotated[str | None, TEMPLATE] = None,
    slots_per_worker: Annotated[int | str | None, TEMPLATE] = None,
    manifest: Annotated[Mapping[str, Any] | str | None, YAML] = None,
    pod_overrides: Annotated[Mapping[str, Any] | None, YAML] = None,
    kubernetes_conn_id: Annotated[str, replace(TEMPLATE, check=conn_id_problems)] = "kubernetes_default",
    namespace: Annotated[str | None, TEMPLATE] = None,
    name: Annotated[str | None, TEMPLATE] = None,
    labels: Annotated[Mapping[str, str] | None, JSON] = None,
    annotations: Annotated[Mapping[str, str] | None, JSON] = None,
    gang: GangPolicy | str = GangPolicy.REQUIRED,
    gang_scheduler: str | None = None,
    scheduler_name: str | None = None,
    priority_class: Annotated[str | None, TEMPLATE] = None,
    service_account: Annotated[str | None, TEMPLATE] = None,
    node_selector: Annotated[Mapping[str, str] | None, TEMPLATE] = None,
    affinity: Annotated[Mapping[str, Any] | None, TEMPLATE] = None,
    tolerations: Annotated[Sequence[Mapping[str, Any]] | None, JSON] = None,
    volumes: Annotated[Sequence[Mapping[str, Any]] | None, JSON] = None,
    volume_mounts: Annotated[Sequence[Mapping[str, Any]] | None, JSON] = None,
    image_pull_secrets: Annotated[Sequence[str] | None, TEMPLATE] = None,
    image_pull_policy: str | None = None,
    security_context: Mapping[str, Any] | None = None,
    queue_name: Annotated[str | None, TEMPLATE] = None,
    queue_priority: Annotated[str | None, TEMPLATE] = None,
    topology: Annotated[str | None, TEMPLATE] = None,
    queue_timeout: TimeLimit = None,
    assemble_timeout: TimeLimit = None,
    run_timeout: TimeLimit = None,
    progress_timeout: Duration = None,
    restarts: int = 0,
    no_restart_on_exit_codes: Annotated[int | Sequence[int] | None, Parameter(convert=to_exit_codes)] = None,
    checkpoints: Annotated[StoragePath | Mapping[str, str] | None, replace(TEMPLATE, convert=to_url)] = None,
    keep_checkpoints: bool = True,
    termination_grace: WholeSeconds = None,
    max_disruptions: Annotated[int, Parameter(check=disruption_problems)] = 0,
    durable: Annotated[bool, Parameter(check=flag_problems)] = True,
    skip_on_exit_code: Annotated[
        int | Sequence[int] | None, Parameter(convert=to_exit_codes, check=exit_code_problems)
    ] = None,
    results: Annotated[Results | str, choice(Results)] = Results.RANK0,
    results_limit: Annotated[int, Parameter(check=results_limit_problems)] = RESULTS_LIMIT_BYTES,
    result_storage: Annotated[StoragePath | None, replace(TEMPLATE, convert=to_url, check=storage_problems)] = None,
    logs: Annotated[Logs | str, choice(Logs)] = Logs.RANK0_AND_FAILED,
    log_containers: Annotated[Sequence[str] | str, Parameter(convert=to_names)] = (),
    log_limit: int = LOG_LIMIT_BYTES,
    stream_logs: bool | int | Sequence[int] = True,
    callbacks: Annotated[
        Callback | Sequence[Callback] | None, Parameter(convert=callback_paths, check=callback_problems)
    ] = None,
    deferrable: Annotated[bool | None, or_default(default_deferrable)] = None,
    start_from_trigger: Annotated[
        bool | None, replace(or_default(starts_from_trigger), attribute="wants_triggerer")
    ] = None,
    end_from_trigger: Annotated[
        bool | None, replace(or_default(ends_from_trigger), attribute="wants_trigger_end")
    ] = None,
    wait_until: Annotated[WaitUntil | str, choice(WaitUntil)] = WaitUntil.ENDED,
    on_kill: Annotated[OnKill | str, replace(choice(OnKill), attribute="kill_policy")] = OnKill.DELETE,
    on_finish: Annotated[OnFinish | str, choice(OnFinish)] = OnFinish.DELETE_SUCCEEDED,
    ttl_after_finished: WholeSeconds = None,
    **kwargs: Any,
) -> None:
    """Run a gang of pods on Kubernetes, and return its results.

    The pods start together or, with `gang="required"`, not at all. The gang runs once however often workers,
    triggerers and the scheduler are restarted: a retry adopts the gang of an earlier try (`durable`).

    A duration is a `timedelta` or a number of seconds. A parameter that is `None` leaves the value of the manifest
    in place or, without a manifest, the default of Kubernetes.

    What runs

    :param image: Image of every rank.
    :param command: Entrypoint of the container, as a list of words. Defaults to the entrypoint of the image.
    :param args: Arguments of the entrypoint, as a list of words.
    :param env: Environment variables: name -> text, name -> `{"valueFrom": ...}`, or the `env` list of Kubernetes.
    :param env_from: Sources of further environment variables: the `envFrom` list of Kubernetes.
    :param secrets: Names of Secrets whose items become environment variables, or `Secret` objects of the
        cncf.kubernetes provider.
    :param resources: Resources of each rank, as both requests and limits: `{"cpu": "4", "memory": "16Gi",
        "nvidia.com/gpu": 1}`; or `{"requests": ..., "limits": ...}`.
    :param workers: Number of ranks. Defaults to the `completions` of the manifest or, without a manifest, to 1.
    :param min_workers: Number of ranks that must be placed together, if the gang may start with fewer than all ranks.
        Defaults to `workers`.
    :param roles: Roles of a gang whose pods are not all alike, such as a leader and its workers: name -> the parameters
        of the role, of {role_parameters}. These parameters are then not given beside `roles`. Each role is a Job of its
        own; the pods of all roles start together. The order of the roles counts: rank 0 is in the first one.
    :param files: Files for the ranks: name -> path relative to the folder of the DAG, or the content itself, as text
        with a line end or as bytes. They are submitted with the gang and mounted read-only at /gang/files, and may have
        900 KiB in total.
    :param working_dir: Working directory of the container. Defaults to the working directory of the image.
    :param launch: How the program is started: `plain` (the default) runs the command. `torchrun` runs it by torchrun,
        with one process for each GPU. `shards` gives each rank SHARD_INDEX and SHARD_COUNT, and no rendezvous. `mpi`
        runs the command, such as `mpirun`, on rank 0, with a host file of all ranks. The other ranks run sshd.
    :param rendezvous: Whether the gang gets a headless Service and MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and
        further variables: a bool, or `Rendezvous(port=...)`. Defaults to on if there are several ranks. The default
        port is 29500.
    :param ssh_secret: Name of the Secret of the namespace whose item `ssh-privatekey` is the key by which the ranks
        reach each other with `launch="mpi"`.
    :param slots_per_worker: Number of MPI processes of a rank with `launch="mpi"`. Defaults to 1.
    :param manifest: A whole `batch/v1` Job: a dict, a `V1Job`, YAML text, or the path of a .yaml, .yml or .json
        template file; or the pod of each rank, as a Pod in each of these forms or a `V1PodTemplateSpec`. The other
        parameters override the manifest.
    :param pod_overrides: Fields of a PodTemplateSpec. They are merged into the pod template last, by a strategic merge
        as in `kubectl patch`.

    Where it runs

    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`. Defaults to `kubernetes_default`.
    :param namespace: Namespace of the gang. Defaults to the namespace of the connection.
    :param name: First part of the Job's name. Defaults to a name made from the DAG id and the task id.
    :param labels: Labels of the Job and its pods.
    :param annotations: Annotations of the Job and its pods.
    :param gang: What to do if the cluster cannot schedule a gang: `required` (the default) refuses the task,
        `preferred` runs plain pods and logs the reason, and `off` always runs plain pods.
    :param gang_scheduler: What places the gang: `native` (the Workload API of Kubernetes), `job-scheduling` (its field
        `Job.spec.scheduling`), `kueue` (the Topology of its queue), `volcano`, `coscheduling` or `yunikorn`. Defaults
        to `auto`: the scheduler to which `scheduler_name` belongs, else the scheduler that the extra `gang_scheduler`
        of the connection names, else `kueue` in a queue that keeps gangs together, else `native`.
    :param scheduler_name: Name of the scheduler that places the pods. Defaults to the default scheduler.
    :param priority_class: Name of the PriorityClass of the pods.
    :param service_account: Name of the ServiceAccount of the pods.
    :param node_selector: Labels that a node must have: name -> value.
    :param affinity: Affinity of the pods, as in a PodSpec.
    :param tolerations: Tolerations of the pods, as in a PodSpec.
    :param volumes: Volumes of the pods, as in a PodSpec.
    :param volume_mounts: Volume mounts of the ranks' container, as in a Container.
    :param image_pull_secrets: Names of the Secrets with which the image is pulled.
    :param image_pull_policy: `Always`, `IfNotPresent` or `Never`.
    :param security_context: Security context of the pods, as in a PodSpec.

    Queues

    :param queue_name: Name of the Kueue LocalQueue that decides when the gang may run. Defaults to the label of the
        manifest, else to the extra `queue_name` of the connection, else to no queue.
    :param queue_priority: Name of the Kueue WorkloadPriorityClass that orders the gangs of a queue. Defaults to the
        priority of the pods.
    :param topology: `required:LABEL` or `preferred:LABEL`: all pods get nodes with the same value of this node label.
        In a queue, Kueue chooses the nodes, and the label must be a level of the Topology of the queue. Without a
        queue, the Workload API does, if its gate `TopologyAwareWorkloadScheduling` is on; it knows `required` only.
        Defaults to any nodes.

    Time limits and failures

    :param queue_timeout: How long a queue may hold the gang. `None` (the default) means no limit.
    :param assemble_timeout: How long it may take until all ranks run, from the end of the queue. `None` (the default)
        means no limit.
    :param run_timeout: How long all ranks may run. `None` (the default) means no limit.
    :param progress_timeout: How long a rank that has begun to report progress may be silent. Then it counts as failed,
        and Python programs write the stack of every thread. Defaults to no limit.
    :param restarts: How often the programs of all ranks are stopped and started again in the same pods, after the
        program of one rank has failed. With `launch="shards"` each rank restarts alone, and has as many restarts. From
        0 (the default) to 1000. Needs `command`, and Python 3.8 or later in the image. Not for a lost pod or node,
        which `max_disruptions` answers.
    :param no_restart_on_exit_codes: An exit code, or several, after which the gang fails without a further restart.
    :param checkpoints: Where the ranks keep their checkpoints: a PersistentVolumeClaim as `pvc://CLAIM/PATH` or
        `{"claim": ..., "path": ...}`, a volume of the pods as `volume://NAME/PATH` or `{"volume": ..., "path": ...}`,
        an absolute path on a volume that the ranks mount, or an `ObjectStoragePath` or its URL. The task has a folder
        there in each run, which `GANG_CHECKPOINT_DIR` or, in an object store, `GANG_CHECKPOINT_URL` names. It is the
        same for restarts, retries and a task that was cleared. Defaults to none.
    :param keep_checkpoints: Whether the folder stays after success. False lets rank 0 remove it when the programs of
        all ranks have succeeded. Defaults to true.
    :param termination_grace: How long a rank may take to end after SIGTERM: a `timedelta`, or whole seconds.
    :param max_disruptions: How often in a row a gang that was lost to a disruption (preempted, evicted, or its node
        lost) is submitted again within the same try, without spending a retry. From 0 (the default) to 100. Each
        timeout starts again with each attempt.
    :param durable: Whether a retry adopts the gang of an earlier try that runs, or that succeeded and was not
        delivered. Defaults to true; false submits a new gang.
    :param skip_on_exit_code: An exit code, or several. If every rank that failed has one of them, the task is skipped.

    Results and logs

    :param results: What the task returns: `rank0` (the default), `all` (a list of results, by rank; with `roles`, a
        mapping of each role to its list) or `none`. The result of a rank is what the rank writes to the file that
        `GANG_RESULT_PATH` names, as JSON or text.
    :param results_limit: How many bytes the results of all ranks may have together with `results="all"`. With more the
        task fails, and the gang is kept with its results. Defaults to 1048576 (1 MiB).
    :param result_storage: An `ObjectStoragePath` or its URL: a folder into which the ranks write results of more than
        4095 bytes, through the file `gangjobs_result.py` that they find in `GANG_FILES`. The result is then a dict with
        the address, which `hooks.results.read_result` reads. A folder with the protocol `file` is on a volume that the
        ranks mount. Defaults to none.
    :param logs: The ranks whose logs are copied into the log of the task: `rank0+failed` (the default), `all` or
        `none`.
    :param log_containers: Names of init containers and sidecars whose logs are copied too, or `all`. By default only
        the log of each rank's main container is copied.
    :param log_limit: How many bytes of logs are copied into the log of the task at most, over all ranks. Of a log that
        is too long the beginning and the end are copied, and the log says how much is missing between them. Defaults to
        33554432 (32 MiB).
    :param stream_logs: The ranks whose logs appear in the log of the task while the gang runs: true (the default) for
        rank 0, false, a rank, or a list of at most eight ranks. Only the logs of main containers are streamed. At most
        half of `log_limit` is streamed, and nothing if `logs` is `none` or the gang runs for less than three seconds.
    :param callbacks: A subclass of `triggers.callbacks.GangJobCallback` or its dotted path, or a list of them. They are
        called when the phase of the gang changes, in the triggerer or in the worker that waits, and change nothing.

    How the task waits and ends

    :param deferrable: Whether the task waits in the triggerer, without a worker. Defaults to Airflow's `[operators]
        default_deferrable` if that option was set, else to true.
    :param start_from_trigger: Whether the triggerer also starts the gang, so that the task needs no worker before the
        gang has ended, and no slot. Only with Airflow 3.3, and only the first try. A task that only a worker can start
        starts in a worker, and its log says why. Defaults to `[gangjobs] start_from_trigger`, which is false.
    :param end_from_trigger: Whether the success of the gang ends the task in the triggerer, without a worker. Defaults
        to `[gangjobs] end_from_trigger`, which is true. A worker ends a task with `outlets`, `post_execute`,
        `on_success_callback`, `multiple_outputs`, extra links, or another `wait_until`, for which true is refused here.
        A worker also ends the task after a failure, after logs of more than 256 KiB at the end, with an XCom backend of
        your own, a listener such as that of OpenLineage, or traces, and before Airflow 3.3. The log of the task says
        why.
    :param wait_until: When the task ends: `ended` (the default) with the gang, or earlier, when the gang is `submitted`
        or `running`. The gang then runs on without its task, and the task returns its `namespace`, `name` and `uid`.
    :param on_kill: What happens to the gang if the task is killed: `delete` (the default) or `keep`.
    :param on_finish: Which Jobs are deleted at the end: `keep` none, `delete` all, and `delete_succeeded` (the default)
        the ones that succeeded.
    :param ttl_after_finished: How long Kubernetes keeps a Job that has finished, even if its results were not read: a
        `timedelta`, or whole seconds. Defaults to the value of the manifest, or else to one week.

    Everything else

    :param kwargs: Parameters of `BaseOperator`. `execution_timeout` also applies while the task is deferred.
    """


def _read() -> dict[str, Parameter]:
    """Return the declared parameters by name, each with its default and its attribute."""
    declared = inspect.signature(gang_job_parameters).parameters
    return {name: _parameter(name, one) for name, one in declared.items() if one.kind is one.KEYWORD_ONLY}


def _parameter(name: str, declared: inspect.Parameter) -> Parameter:
    (said,) = getattr(declared.annotation, "__metadata__", (Parameter(),))
    attribute = said.attribute or (f"{name}_s" if said.is_duration else name)
    return replace(said, default=declared.default, attribute=attribute)


PARAMETERS: Final = _read()
"""The declared parameters by name."""


def convert(name: str, given: Any) -> Any:
    """Return the value of the attribute of a parameter. A value that is not known stays as it is, for the checks.

    Models of the official Python client become dicts, so that Airflow renders the templates in them.
    """
    by_parameter = PARAMETERS[name].convert
    value = given if by_parameter is None else by_parameter(given)
    return convert_parameter(name, value) if name in MODELS else value


def documentation() -> str:
    """Return the text of the declaration, with a mark at each parameter that Airflow renders, and those of a role."""
    *others, last = (f"`{name}`" for name in RoleSpec.__struct_fields__)
    text = (inspect.getdoc(gang_job_parameters) or "").replace("{role_parameters}", f"{', '.join(others)} and {last}")
    head, *entries = re.split(r"^(?=:param )", text, flags=re.MULTILINE)
    return head + "".join(map(_marked, entries))


def _marked(entry: str) -> str:
    name = entry.removeprefix(":param ").partition(":")[0]
    if name not in PARAMETERS or not PARAMETERS[name].is_template:
        return entry
    text, end, heading = entry.partition("\n\n")
    return f"{text} (templated){end}{heading}" if end else f"{text.rstrip()} (templated)\n"


def takes(declaration: Callable[P, None]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the parameters of a declaration, for type checkers, editors, `help()` and Airflow.

    Airflow reads from the signature to which parameters `default_args` apply, and which parameters `partial` may have.
    """

    def give(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        of_task = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        declared = inspect.signature(declaration).parameters.values()
        plain = [one.replace(annotation=_type(one.annotation)) for one in declared]
        constructor.__signature__ = inspect.Signature([of_task, *plain])  # type: ignore[attr-defined]
        return constructor

    return give


def _type(annotation: Any) -> Any:
    """Return the type that an annotation gives to the value."""
    return getattr(annotation, "__origin__", annotation) if hasattr(annotation, "__metadata__") else annotation
