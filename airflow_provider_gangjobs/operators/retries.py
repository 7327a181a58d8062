"""Decides which errors another try of the task may resolve, and whether there is another try."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowFailException

if TYPE_CHECKING:
    from collections.abc import Iterator


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
