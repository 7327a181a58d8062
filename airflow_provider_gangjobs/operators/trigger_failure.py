"""Decides what a worker does when its trigger could not follow the gang. Pure.

An event of status `error` says nothing about the gang, which may be healthy: the triggerer may lack a kubeconfig file,
or its credentials. The worker has credentials of its own, so the worker reads the cluster itself. If the worker cannot
read the cluster either, the state of the gang is unknown, and nothing ends the gang: ending a healthy gang by mistake
loses hours of work, and the next try adopts the gang.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

DEFERRALS_MAX: Final = 5
"""How often in a row a task is deferred again after its gang could not be followed. The pauses of the triggers before
these deferrals add up to a quarter of an hour (`triggers.gang_job_wait.pause_after_errors_s`)."""


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
