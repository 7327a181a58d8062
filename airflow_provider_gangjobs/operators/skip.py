"""Skips a task whose ranks have failed with exit codes that mean "nothing to do": `skip_on_exit_code`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowSkipException

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome


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


__all__ = ["fails_only_with", "skip_on_exit_codes"]
