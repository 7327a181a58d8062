"""Which failures another try may mend, and whether there is one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowFailException

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def skip_retries_of_permanent_errors() -> Iterator[None]:
    """An error that another try with the same parameters must meet again takes the tries that are left."""
    try:
        yield
    except GangJobError as error:
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error


def has_retries_left(ti: Any) -> bool:
    """Whether Airflow will run the task again if this try fails."""
    return bool(ti.max_tries and ti.try_number <= ti.max_tries)
