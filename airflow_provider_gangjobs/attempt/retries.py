"""Decides which errors another try of the task may resolve, and whether there is another try.

Skips a task whose ranks have failed with exit codes that mean "nothing to do": `skip_on_exit_code`.

Decides what a worker does when its trigger could not follow the gang. Pure.

An event of status `error` says nothing about the gang, which may be healthy: the triggerer may lack a kubeconfig file,
or its credentials. The worker has credentials of its own, so the worker reads the cluster itself. If the worker cannot
read the cluster either, the state of the gang is unknown, and nothing ends the gang: ending a healthy gang by mistake
loses hours of work, and the next try adopts the gang.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException, AirflowSkipException
from airflow_provider_gangjobs.exceptions import GangJobError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome

__all__ = ["fails_only_with", "skip_on_exit_codes"]


@contextmanager
def skip_on_exit_codes(codes: Collection[int], outcomes: Iterable[Outcome]) -> Iterator[None]:
    """Replace the error of a failed gang by a skip, if all ranks that failed have one of these exit codes.

    :param codes: The exit codes. Empty if no exit code skips the task.
    :param outcomes: The recorded outcomes of the gang.

    Raises:
        AirflowSkipException: the block raised `GangFailed`, and the exit codes permit to skip the task.
    """
    from airflow_provider_gangjobs.exceptions import GangFailed

    try:
        yield
    except GangFailed as error:
        if codes and fails_only_with(codes, outcomes):
            raise AirflowSkipException(f"The task is skipped, because of skip_on_exit_code: {error.what}") from error
        raise


def fails_only_with(codes: Collection[int], outcomes: Iterable[Outcome]) -> bool:
    """Return whether ranks failed, and all of them with one of these exit codes. Pure.

    Ranks that were stopped because another rank had failed do not count. A rank that was lost, preempted or evicted,
    or whose end is unknown, did not say that there is nothing to do.
    """
    from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind

    ends = [outcome for outcome in outcomes if outcome.outcome not in (OutcomeKind.SUCCEEDED, OutcomeKind.DELETED)]
    return bool(ends) and all(end.outcome is OutcomeKind.FAILED and end.exit_code in codes for end in ends)


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


@contextmanager
def skip_retries_of_permanent_errors() -> Iterator[None]:
    """Replace an error that a try with the same parameters would meet again by one after which Airflow does not retry.

    Raises:
        AirflowFailException: the block raised a `GangJobError` that is not retryable.
    """
    try:
        yield
    except GangJobError as error:
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error


def has_retries_left(ti: Any) -> bool:
    """Return whether Airflow runs the task again if this try of the task instance fails."""
    return bool(ti.max_tries and ti.try_number <= ti.max_tries)
