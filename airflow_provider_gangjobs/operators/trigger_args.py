"""The arguments of the trigger that waits for the gang of a task, from the parameters of the task.

Parsing a DAG file imports this module, so the module imports the triggers only when a function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from airflow_provider_gangjobs.gang.log_options import streamed_ranks
from airflow_provider_gangjobs.gang.spec import Logs, OnKill, WaitUntil

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.operators.task_gangs import TaskGangs
    from airflow_provider_gangjobs.operators.task_parameters import GangTaskParameters
    from airflow_provider_gangjobs.submission.submission import Submission
    from airflow_provider_gangjobs.triggers.args import TriggerArgs


def args_of_submission(task: GangTaskParameters, gangs: TaskGangs, submission: Submission) -> TriggerArgs:
    """Return the arguments of the trigger that waits for a gang that was submitted or adopted."""
    return trigger_args(task, gangs, submission.ref, attempt=submission.attempt, disruptions=submission.disruptions)


def trigger_args(
    task: GangTaskParameters, gangs: TaskGangs, ref: GangRef, *, attempt: int | None = None, disruptions: int = 0
) -> TriggerArgs:
    """Return the arguments of the trigger that waits for a gang. They contain no deadline of the try.

    :param attempt: The number of the attempt. The event reports it if the Job cannot be read.
    :param disruptions: How many attempts in a row were lost to disruptions before this one.
    """
    from airflow_provider_gangjobs.triggers.args import TriggerArgs

    wants_logs = task.logs is not Logs.NONE and task.wait_until is WaitUntil.ENDED
    ranks = streamed_ranks(task.stream_logs) if wants_logs else ()
    return TriggerArgs(
        kubernetes_conn_id=task.kubernetes_conn_id,
        must_exist=bool(gangs.hook.exists),
        **asdict(ref),
        attempt=attempt,
        disruptions=disruptions,
        claim=gangs.claim,
        queue_timeout_s=task.queue_timeout_s,
        assemble_timeout_s=task.assemble_timeout_s,
        run_timeout_s=task.run_timeout_s,
        delete_on_kill=task.kill_policy is OnKill.DELETE,
        installation=gangs.key.installation,
        outlives_task=task.wait_until is not WaitUntil.ENDED,
        stream_ranks=list(ranks) or (),
        stream_bytes_max=task.log_limit // 2 // len(ranks) if ranks else 0,
        kept_logs=task.logs.value if wants_logs else Logs.NONE.value,
        kept_bytes_max=task.log_limit // 2 if wants_logs else 0,
        callbacks=list(task.callbacks) or (),
        task=gangs.key.to_mapping() if task.callbacks else None,
    )
