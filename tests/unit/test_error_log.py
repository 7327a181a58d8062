"""The log of a task shows errors for users without frames, and the exceptions keep them."""

from __future__ import annotations

import io
import logging
import re
from typing import TYPE_CHECKING

import pytest
import structlog

from airflow_provider_gangjobs.airflow_api import task_log
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.airflow_api.task_log import skip_retries_of_permanent_errors
from airflow_provider_gangjobs.cluster.errors import Unreachable
from airflow_provider_gangjobs.exceptions import AppFailed, InvalidGangSpec, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

STYLES = re.compile(r"\x1b\[[0-9;]*m")
"""Colors, which structlog gives to tracebacks even where it colors nothing else."""


def fail(error: Exception) -> None:
    with skip_retries_of_permanent_errors():
        raise error


def logged(raise_error: Callable[[], None]) -> tuple[str, BaseException]:
    """Return what a log has of the error that is raised, and the error."""
    output = io.StringIO()
    log = structlog.wrap_logger(
        structlog.PrintLogger(output), [task_log.leave_out_frames, structlog.dev.ConsoleRenderer(colors=False)]
    )
    try:
        raise_error()
    except Exception as error:
        log.exception("Task failed with exception")
        return STYLES.sub("", output.getvalue()), error
    raise AssertionError("nothing was raised")


APP_FAILED = AppFailed("n/a", "Exit", message="rank 1 exited with code 3", log_tail="Last lines of rank 1:\nbye")
SHORT = {
    "of a gang": (APP_FAILED, "AppFailed: Gang n/a failed (Exit). Rank 1 exited with code 3."),
    "of the cluster": (
        Unreachable("GET /", "refused"),
        "Unreachable: GET /: the API server cannot be reached: refused",
    ),
    "of a parameter": (InvalidGangSpec((Problem("image", "is missing"),)), "  * image: is missing."),
}


@pytest.mark.parametrize(("error", "last"), SHORT.values(), ids=SHORT)
def test_message_of_an_error_for_users_is_the_end_of_the_log_and_stands_there_once(error: Exception, last: str) -> None:
    log, raised = logged(lambda: fail(error))

    assert log.rstrip().endswith(last)
    assert log.count(last) == 1
    assert "Traceback" not in log
    assert raised.__traceback__ is not None


def test_error_that_skips_retries_keeps_its_cause() -> None:
    log, raised = logged(lambda: fail(InvalidGangSpec(())))

    assert "AirflowFailException" in log
    assert isinstance(raised, AirflowFailException)
    assert isinstance(raised.__cause__, InvalidGangSpec)


def test_other_errors_are_logged_with_their_frames() -> None:
    log, _ = logged(lambda: fail(KeyError("a defect")))

    assert "in fail" in log


def test_frames_are_logged_at_level_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("airflow_provider_gangjobs"), "level", logging.DEBUG)
    logging.getLogger("airflow_provider_gangjobs").manager._clear_cache()  # type: ignore[attr-defined]

    log, _ = logged(lambda: fail(APP_FAILED))

    assert "in fail" in log
