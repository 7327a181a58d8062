"""The deferral of a task: the arguments of its trigger, its time limits, whether the trigger ends the task, and what a
worker does if the trigger ended with an error.

Airflow stores the arguments of a deferral as plain JSON in its database, so no secret may be among them. The trigger
reads credentials from the connection, and everything else about the gang from the cluster.

An event of status `error` says nothing about the gang, which may be healthy: the triggerer may lack a kubeconfig file,
or its credentials. The worker has credentials of its own, so the worker reads the cluster itself. If the worker cannot
read the cluster either, the state of the gang is unknown, and nothing ends the gang: ending a healthy gang by mistake
loses hours of work, and the next try adopts the gang.
"""

from __future__ import annotations

import time
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import NODEFAULT, Struct, convert, to_builtins
from msgspec.structs import asdict, replace

from airflow_provider_gangjobs.airflow_api.task_end import reasons_for_worker, system_facts
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.spec import (
    LOG_LIMIT_BYTES,
    RESULTS_LIMIT_BYTES,
    LogOptions,
    Logs,
    OnKill,
    Results,
    streamed_ranks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.outcome.restarts import TimeUse
    from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
    from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
    from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters


XCOM_GANG: Final = "gang"
"""XCom key of the gang's namespace, name and uid. The XCom exists from the submission on."""
XCOM_END: Final = "gang_end"
"""XCom key of the payload of the gang's event, which describes the end also after the Job is deleted."""
CONNECTION_MISSING: Final = "ConnectionMissing"
"""Reason of the event of a triggerer that does not have the connection of the worker."""
XCOM_REFUSED: Final = "gang_refused"
"""XCom key of the error for which a try has submitted no gang: its class and its message."""


class StoredArgs:
    """What the arguments of all triggers have in common. Airflow stores them, so no secret may be among them."""

    kubernetes_conn_id: str
    must_exist: bool

    @property
    def hook(self) -> GangJobHook:
        """A new hook for the connection."""
        from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

        return GangJobHook(self.kubernetes_conn_id, must_exist=self.must_exist)


class TriggerEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a trigger ends its task. Airflow stores it, so a new field needs a default, and no field is renamed."""

    results: Results = Results.RANK0
    results_limit: int = RESULTS_LIMIT_BYTES
    result_folder: str | None = None
    """Where the ranks store large results. Addresses elsewhere are not followed."""
    logs: Logs = Logs.NONE
    log_containers: tuple[str, ...] = ()
    log_limit: int = LOG_LIMIT_BYTES
    deletes: bool = False
    """Whether the Job of a gang that has succeeded is deleted."""
    pushes_xcoms: bool = True
    is_dag_result: bool = False
    """Whether the task returns the result of its DAG."""
    is_mapped_over: bool = False
    """Whether another task is mapped over the value of this task, so that Airflow must know its length."""
    operator: str = ""
    """Name of the class of the operator, for the metrics of a success."""
    team: str = ""
    """Name of the team of the DAG, for the same."""
    started: float | None = None
    """When the try began, in Unix time. If it is not known, it began when the gang was submitted."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` has stored. Fields of later releases are ignored."""
        return convert(stored, cls)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without the ones that equal their default."""
        fields: dict[str, Any] = to_builtins(self)
        return fields

    @property
    def log_options(self) -> LogOptions:
        """Which logs are copied into the log of the task, and how much of them."""
        return LogOptions(self.logs, self.log_containers, self.log_limit)


def trigger_end(
    task: TaskParameters,
    ti: Any,
    result_folder: str | None,
    log: Logger,
    *,
    operator: str = "",
    is_dag_result: bool | None = None,
) -> dict[str, Any] | None:
    """Return `TriggerArgs.end` of a task; `None` if a worker must end the task, or if the task wants that.

    The log says why a worker must end a task. With an Airflow that has no other way, only the level DEBUG does.

    :param ti: The task instance of the context. Its `task` belongs to a DAG.
    :param operator: Name of the operator's class. By default that of the task.
    :param is_dag_result: Whether the task returns the result of its DAG. By default the operator says it.
    """
    if not task.wants_trigger_end:
        return None
    facts = (*task.end_facts, *system_facts())
    if reasons := reasons_for_worker(facts):
        tell = log.debug if "old_airflow" in facts else log.info
        tell("A worker ends this task, and not the triggerer: %s", "; ".join(reasons))
        return None
    is_mapped = ti.map_index is not None and ti.map_index >= 0
    began = getattr(ti, "start_date", None)  # a task that starts in the triggerer has none
    return TriggerEnd(
        results=task.results,
        results_limit=task.results_limit,
        result_folder=result_folder,
        logs=task.logs,
        log_containers=task.log_containers,
        log_limit=task.log_limit,
        deletes=task.on_finish.deletes(has_succeeded=True),
        pushes_xcoms=task.do_xcom_push,
        is_dag_result=ti.task.returns_dag_result if is_dag_result is None else is_dag_result,
        is_mapped_over=not is_mapped and next(iter(ti.task.iter_mapped_dependants()), None) is not None,
        operator=operator or type(ti.task).__name__,
        team=getattr(ti, "stats_tags", {}).get("team_name", ""),
        started=None if began is None else began.timestamp(),
    ).to_json()


class TriggerArgs(StoredArgs, Struct, frozen=True, kw_only=True):
    """Arguments of the triggers of this provider that wait for one gang.

    The names and types of the fields are a contract: after an upgrade, Airflow creates the triggers of tasks that are
    already deferred with the arguments that an earlier version stored. A new field needs a default.

    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`.
    :param namespace: Namespace of the Job.
    :param name: Name of the Job.
    :param uid: UID of the Job. The trigger reports a Job of another UID as a replacement.
    :param claim: Id of the task instance that is responsible for the gang. Without a claim, a kill of the task does
        not delete the gang.
    :param attempt: Number of the gang's attempt, from 0. The event reports it if the Job cannot be read.
    :param time_limits: The time limits of the task in seconds, by the name of the parameter; see
        `parameters.declaration.TimeLimit`. A parameter that is missing means no limit.
    :param must_exist: Whether the connection must exist in Airflow. The worker sets it after the worker has read the
        connection, so that a triggerer that does not find the connection reports an error instead of using the
        default cluster.
    :param deadline: Unix time, by the clock of the API server, at which the `execution_timeout` of the task has
        passed. Airflow 3 ignores `execution_timeout` while a task is deferred. `None` means no limit.
    :param execution_timeout_s: The `execution_timeout` from which `deadline` was computed, in seconds. The message of
        the timeout shows it.
    :param delete_on_kill: Whether the trigger deletes the gang if a user kills the task.
    :param disruptions: How many attempts in a row before this one were lost to disruptions. The event carries the
        number back to the operator, even if the Job is gone.
    :param tracking_errors: How many deferrals in a row before this one ended because the trigger could not follow the
        gang. The trigger waits before it follows the gang again; see
        `triggerer.gang_wait.pause_after_errors_s`.
    :param installation: Id of the Airflow installation. The triggerer sweeps the gangs of this installation in the
        namespace. Empty if the installation has no id.
    :param outlives_task: Whether the gang runs on after its task has succeeded.
    :param stream_ranks: The ranks whose logs are streamed into the log of the task. A list after Airflow has stored it.
    :param stream_bytes_max: How many bytes of each of these logs are streamed at most.
    :param kept_logs: Which further logs are read to their end when their pods are deleted: a value of `Logs`.
    :param kept_bytes_max: How many bytes of the logs of deleted pods are read in all.
    :param callbacks: Dotted paths of the classes that are called when the phase of the gang changes.
    :param task: `dag_id`, `run_id`, `task_id` and `map_index` of the task, for the callbacks.
    :param earlier_use: What the time of the attempts of this try before this one was used for, as JSON.
    :param end: How the trigger ends the task of a gang that has succeeded (`TriggerEnd`). `None` if a worker
        ends the task.
    :param secrets: Whether the gang has secrets that Airflow masks. Its Job says where (`jobs.gang_secrets`). `None` if
        that is not known: then the trigger shows no text of the gang.
    """

    kubernetes_conn_id: str
    namespace: str
    name: str
    uid: str
    claim: str = ""
    attempt: int | None = None
    time_limits: Mapping[str, float] | None = None
    must_exist: bool = False
    deadline: float | None = None
    execution_timeout_s: float | None = None
    delete_on_kill: bool = True
    disruptions: int = 0
    tracking_errors: int = 0
    installation: str = ""
    outlives_task: bool = False
    stream_ranks: Sequence[int] = ()
    stream_bytes_max: int = 0
    kept_logs: str = "none"
    kept_bytes_max: int = 0
    callbacks: Sequence[str] = ()
    task: Mapping[str, Any] | None = None
    earlier_use: Mapping[str, Any] | None = None
    end: Mapping[str, Any] | None = None
    secrets: bool | None = False

    @property
    def ref(self) -> GangRef:
        """The gang to wait for."""
        return GangRef(self.namespace, self.name, self.uid)

    @property
    def deadlines(self) -> Deadlines:
        """The limits of the gang's phases."""
        from airflow_provider_gangjobs.gang.state.gang_state import Deadlines

        return Deadlines.of(self.time_limits or {})

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments as JSON values, without the ones that equal their default."""
        defaults = dict(zip(reversed(self.__struct_fields__), reversed(self.__struct_defaults__), strict=False))
        return {name: value for name, value in asdict(self).items() if value != defaults.get(name, NODEFAULT)}


def trigger_args(
    task: TaskParameters,
    gangs: TaskGangs,
    ref: GangRef,
    *,
    attempt: int | None = None,
    disruptions: int = 0,
    earlier_use: TimeUse | None = None,
) -> TriggerArgs:
    """Return the arguments of the trigger that waits for a gang. They contain no deadline of the try.

    :param attempt: The number of the attempt. The event reports it if the Job cannot be read.
    :param disruptions: How many attempts in a row were lost to disruptions before this one.
    :param earlier_use: What the time of these attempts was used for.
    """
    wants_logs = task.logs is not Logs.NONE and task.ends_with_gang
    ranks = streamed_ranks(task.stream_logs) if wants_logs else ()
    return TriggerArgs(
        kubernetes_conn_id=task.kubernetes_conn_id,
        must_exist=gangs.must_exist,
        **asdict(ref),
        attempt=attempt,
        disruptions=disruptions,
        claim=gangs.claim,
        time_limits=dict(task.time_limits) or None,
        delete_on_kill=task.kill_policy is OnKill.DELETE,
        installation=gangs.key.installation,
        outlives_task=not task.ends_with_gang,
        stream_ranks=list(ranks) or (),
        stream_bytes_max=task.log_limit // 2 // len(ranks) if ranks else 0,
        kept_logs=task.logs.value if wants_logs else Logs.NONE.value,
        kept_bytes_max=task.log_limit // 2 if wants_logs else 0,
        callbacks=list(task.callbacks) or (),
        task=gangs.key.to_mapping() if task.callbacks else None,
        earlier_use=None if earlier_use is None else to_builtins(earlier_use),
    )


def limit_of_previous(limits: Mapping[str, float]) -> tuple[str, float | None]:
    """Return the parameter that limits the wait for the pods of an earlier attempt, and its seconds; `None` means no
    limit."""
    name = "assemble_timeout"
    return name, limits.get(name)


BACKSTOP_S: Final = 120.0
"""How much longer than `execution_timeout` Airflow itself waits, so that the trigger reports the timeout first, with
its reason."""
ALARM_MARGIN_S: Final = 5.0
ALARM_MARGIN_PART: Final = 0.1
"""A waiting worker ends the wait this much before Airflow's alarm: `ALARM_MARGIN_S`, or this part of the whole limit,
whichever is shorter."""


def with_deadline(
    args: TriggerArgs, execution_timeout: timedelta | None, started: datetime | None, *, server_ahead_s: float = 0.0
) -> tuple[TriggerArgs, timedelta | None]:
    """Return the arguments with the deadline of the try, and the timeout of Airflow's own deferral.

    Airflow 3 ignores `execution_timeout` while a task is deferred. All attempts of a try share one deadline. The
    deadline is a time of the API server's clock, which both worker and triggerer know. If another worker defers the
    task again, the deadline moves by the difference of the two workers' clocks.

    :param execution_timeout: The limit of the task. `None` means no limit.
    :param started: When the try began, by the clock of the worker that began the try.
    :param server_ahead_s: How far the API server's clock is ahead of the worker's clock, in seconds.
    """
    if execution_timeout is None:
        return args, None
    limit_s = execution_timeout.total_seconds()
    deadline = (started.timestamp() if started else time.time()) + limit_s
    backstop = timedelta(seconds=max(0.0, deadline - time.time()) + BACKSTOP_S)
    return replace(args, deadline=deadline + server_ahead_s, execution_timeout_s=limit_s), backstop


def sensor_timeout(timeout_s: float, execution_timeout: timedelta | None) -> timedelta:
    """Return the timeout of the deferral of a sensor: `timeout` of the sensor, or its `execution_timeout` if shorter.

    Airflow 3 ignores `execution_timeout` while a task is deferred.
    """
    timeout = timedelta(seconds=timeout_s)
    return timeout if execution_timeout is None else min(timeout, execution_timeout)


def worker_wait_limit_s(
    execution_timeout: timedelta | None, started: datetime | None, running_s: float
) -> float | None:
    """Return how long a worker may wait for a gang, in seconds. `None` means no limit.

    The wait ends shortly before Airflow's alarm, or before the deadline of the try, whichever is earlier.

    :param execution_timeout: The limit of the task. `None` means no limit.
    :param started: When the try began: before this process began to work on it, if the task was deferred meanwhile.
    :param running_s: How long this process has worked on the task, in seconds. Airflow set its alarm at the start.
    """
    if execution_timeout is None:
        return None
    limit_s = execution_timeout.total_seconds()
    before_s = max(running_s, time.time() - started.timestamp()) if started else running_s
    return max(0.0, limit_s - before_s - min(ALARM_MARGIN_S, limit_s * ALARM_MARGIN_PART))


def execution_timeout_error(
    key: TaskKey, execution_timeout: timedelta | None, *, has_gang: bool = True
) -> DeadlineExceeded:
    """Return the error of a task whose `execution_timeout` has passed, if the phase of its gang is not known.

    :param has_gang: Whether the try may have a live gang.
    """
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded

    return DeadlineExceeded(
        ref=f"of task {key.dag_id}.{key.task_id}",
        phase="under way" if has_gang else "not submitted, or had ended,",
        seconds=execution_timeout.total_seconds() if execution_timeout else None,
        advice="Raise execution_timeout of the task",
        limited_by="execution_timeout",
    )


DEFERRALS_MAX: Final = 5
"""How often in a row a task is deferred again after its gang could not be followed. The pauses of the triggers before
these deferrals add up to a quarter of an hour (`triggerer.gang_wait.pause_after_errors_s`)."""


class RecoveryAction(Enum):
    """What the worker does next."""

    DEFER = auto()
    """Defer the task again: this or another triggerer may be able to follow the gang now."""
    FOLLOW_IN_WORKER = auto()
    """Follow the gang in this worker."""
    FAIL = auto()
    """Fail the try, and leave the gang as it is."""


def recovery_action(
    *, live: bool | None, errors: int, has_retries_left: bool, is_conn_missing: bool = False
) -> RecoveryAction:
    """Return what to do after a deferral that ended with an error.

    :param live: Whether the worker has found that the gang still runs. `None` if the worker could not find out.
    :param errors: How many deferrals in a row before this one ended in the same way.
    :param has_retries_left: Whether Airflow runs the task again if this try fails.
    :param is_conn_missing: Whether triggerers do not have the connection, which this worker has.
    """
    may_defer = errors < DEFERRALS_MAX
    if live is None:
        return RecoveryAction.DEFER if may_defer and not has_retries_left else RecoveryAction.FAIL
    return RecoveryAction.DEFER if live and may_defer and not is_conn_missing else RecoveryAction.FOLLOW_IN_WORKER


def has_retries_left(ti: Any) -> bool:
    """Return whether Airflow runs the task again if this try of the task instance fails."""
    return bool(ti.max_tries and ti.try_number <= ti.max_tries)
