"""The arguments of the trigger that waits for the gang of a task: ids, timeouts, and what the operator has counted.

Airflow stores the arguments of a deferral as plain JSON in its database, so no secret may be among them. The trigger
reads credentials from the connection, and everything else about the gang from the cluster.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict as struct_fields

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.spec import Logs, OnKill, streamed_ranks
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
    from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters

EXECUTION_TIMEOUT: Final = "Deadline.execution"
"""Reason of the event after the `execution_timeout` of the task has passed."""


@dataclass(frozen=True, kw_only=True)
class TriggerArgs:
    """Arguments of the triggers of this provider.

    The names and types of the fields are a contract: after an upgrade, Airflow creates the triggers of tasks that are
    already deferred with the arguments that an earlier release stored. A new field needs a default.

    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`.
    :param namespace: Namespace of the Job.
    :param name: Name of the Job.
    :param uid: UID of the Job. The trigger reports a Job of another UID as a replacement.
    :param claim: Id of the task instance that is responsible for the gang. Without a claim, a kill of the task does
        not delete the gang.
    :param attempt: Number of the gang's attempt, from 0. The event reports it if the Job cannot be read.
    :param queue_timeout_s: How long a queue may hold the gang, in seconds. `None` means no limit.
    :param assemble_timeout_s: How long it may take until all ranks run after the queue has released the gang, in
        seconds. `None` means no limit.
    :param run_timeout_s: How long all ranks may run, in seconds. `None` means no limit.
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
    """

    kubernetes_conn_id: str
    namespace: str
    name: str
    uid: str
    claim: str = ""
    attempt: int | None = None
    queue_timeout_s: float | None = None
    assemble_timeout_s: float | None = None
    run_timeout_s: float | None = None
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

    @property
    def ref(self) -> GangRef:
        """The gang to wait for."""
        return GangRef(self.namespace, self.name, self.uid)

    @property
    def deadlines(self) -> Deadlines:
        """The limits of the gang's phases."""
        return Deadlines(self.queue_timeout_s, self.assemble_timeout_s, self.run_timeout_s)

    @property
    def hook(self) -> GangJobHook:
        """A new hook for the connection."""
        from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

        return GangJobHook(self.kubernetes_conn_id, must_exist=self.must_exist)

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments as JSON values, without the ones that equal their default."""
        return {name: value for name, value in asdict(self).items() if value != getattr(type(self), name, _NO_DEFAULT)}


_NO_DEFAULT = object()


def trigger_args(
    task: TaskParameters, gangs: TaskGangs, ref: GangRef, *, attempt: int | None = None, disruptions: int = 0
) -> TriggerArgs:
    """Return the arguments of the trigger that waits for a gang. They contain no deadline of the try.

    :param attempt: The number of the attempt. The event reports it if the Job cannot be read.
    :param disruptions: How many attempts in a row were lost to disruptions before this one.
    """
    wants_logs = task.logs is not Logs.NONE and task.ends_with_gang
    ranks = streamed_ranks(task.stream_logs) if wants_logs else ()
    return TriggerArgs(
        kubernetes_conn_id=task.kubernetes_conn_id,
        must_exist=gangs.must_exist,
        **struct_fields(ref),
        attempt=attempt,
        disruptions=disruptions,
        claim=gangs.claim,
        queue_timeout_s=task.queue_timeout_s,
        assemble_timeout_s=task.assemble_timeout_s,
        run_timeout_s=task.run_timeout_s,
        delete_on_kill=task.kill_policy is OnKill.DELETE,
        installation=gangs.key.installation,
        outlives_task=not task.ends_with_gang,
        stream_ranks=list(ranks) or (),
        stream_bytes_max=task.log_limit // 2 // len(ranks) if ranks else 0,
        kept_logs=task.logs.value if wants_logs else Logs.NONE.value,
        kept_bytes_max=task.log_limit // 2 if wants_logs else 0,
        callbacks=list(task.callbacks) or (),
        task=gangs.key.to_mapping() if task.callbacks else None,
    )
