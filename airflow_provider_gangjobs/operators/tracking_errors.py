"""What a worker does when its trigger could not follow the gang. Pure.

An event of status `error` says nothing about the gang, which may be healthy: the triggerer may lack a kubeconfig file,
or its credentials. The worker has credentials of its own, so it looks for itself. A gang that nobody can judge is
unknown, and nothing ends it: ending a healthy gang by mistake costs hours of work, and the next try adopts it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

DEFERRALS_MAX: Final = 5
"""How often in a row a gang is deferred again without having been followed. The triggers' pauses before these deferrals
make up a quarter of an hour (`triggers.wait.pause_after_errors_s`)."""


class RecoveryAction(Enum):
    """What to do next."""

    DEFER = auto()
    """Defer again: this or another triggerer may follow the gang now."""
    FOLLOW_IN_WORKER = auto()
    """Follow the gang in this worker."""
    FAIL = auto()
    """Fail the try, and leave the gang as it is."""


def recovery_action(*, live: bool | None, errors: int, has_retries_left: bool) -> RecoveryAction:
    """What to do after a deferral that ended with an error.

    :param live: Whether the gang still runs, as the worker sees it; `None` if that is unknown.
    :param errors: How many deferrals in a row before this one had ended in the same way.
    :param has_retries_left: Whether Airflow runs the task again if this try fails.
    """
    may_defer = errors < DEFERRALS_MAX
    if live is None:
        return RecoveryAction.DEFER if may_defer and not has_retries_left else RecoveryAction.FAIL
    return RecoveryAction.DEFER if live and may_defer else RecoveryAction.FOLLOW_IN_WORKER
