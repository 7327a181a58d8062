"""The time limits of a wait in the triggerer and in the worker, and what follows a deferral that ended with an error.

An event of status `error` says nothing about the gang, which may be healthy: the triggerer may lack a kubeconfig file,
or its credentials. The worker has credentials of its own, so the worker reads the cluster itself. If the worker cannot
read the cluster either, the state of the gang is unknown, and nothing ends the gang: ending a healthy gang by mistake
loses hours of work, and the next try adopts the gang.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.attempt.trigger_args import TriggerArgs
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded
    from airflow_provider_gangjobs.gang.identity import TaskKey

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


def execution_timeout_error(key: TaskKey, execution_timeout: timedelta | None) -> DeadlineExceeded:
    """Return the error of a task whose `execution_timeout` has passed, if the phase of its gang is not known."""
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded

    return DeadlineExceeded(
        ref=f"of task {key.dag_id}.{key.task_id}",
        phase="under way",
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


def recovery_action(*, live: bool | None, errors: int, has_retries_left: bool) -> RecoveryAction:
    """Return what to do after a deferral that ended with an error.

    :param live: Whether the worker has found that the gang still runs. `None` if the worker could not find out.
    :param errors: How many deferrals in a row before this one ended in the same way.
    :param has_retries_left: Whether Airflow runs the task again if this try fails.
    """
    may_defer = errors < DEFERRALS_MAX
    if live is None:
        return RecoveryAction.DEFER if may_defer and not has_retries_left else RecoveryAction.FAIL
    return RecoveryAction.DEFER if live and may_defer else RecoveryAction.FOLLOW_IN_WORKER


def has_retries_left(ti: Any) -> bool:
    """Return whether Airflow runs the task again if this try of the task instance fails."""
    return bool(ti.max_tries and ti.try_number <= ti.max_tries)
