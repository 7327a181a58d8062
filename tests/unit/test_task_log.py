"""What the log of a task says of a submission and of an error, and the times that leave the provider."""

from __future__ import annotations

import inspect
import io
import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog
from pendulum import DateTime

from airflow_provider_gangjobs.airflow_api import task_log
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.airflow_api.task_log import skip_retries_of_permanent_errors
from airflow_provider_gangjobs.attempt.messages import submission_messages
from airflow_provider_gangjobs.cluster.errors import Unreachable
from airflow_provider_gangjobs.exceptions import AppFailed, InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.render.placement import describe_placement
from airflow_provider_gangjobs.gang.state.phase import SubmissionState
from airflow_provider_gangjobs.hooks.gang_job import PublicService, with_pendulum_times
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Callable


# -- The log of a task shows errors for users without frames, and the exceptions keep them ---------------------------

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


# -- The log lines of a submission say what was created, with how many workers, and how the pods are scheduled -------


def submission(**changes: Any) -> Submission:
    known = {
        "ref": GangRef("default", "train-0", "uid"),
        "attempt": 0,
        "workers": 8,
        "submission_id": "t",
        "decision": "gang:v1beta1",
        "adopted": False,
        "state": SubmissionState.IN_PROGRESS,
    }
    return Submission(**{**known, **changes})


SUCCEEDED_BEFORE = {"adopted": True, "attempt": 2, "workers": 1, "decision": "off", "state": SubmissionState.SUCCEEDED}
CREATED = f"Created gang default/train-0 (attempt 0): 8 workers, {describe_placement('off')}"
SUSPENDED = {"decision": "brought", "is_suspended": True}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "Created gang default/train-0 (attempt 0): 8 workers, gang scheduling by Workload API v1beta1"),
        (
            SUCCEEDED_BEFORE,
            f"Adopted gang default/train-0 (attempt 2): 1 worker, {describe_placement('off')}, already succeeded",
        ),
        ({"decision": "off", "queue": "team"}, f"{CREATED}, Kueue queue team"),
        ({"decision": "off", "restarts_max": 3}, f"{CREATED}, up to 3 restarts in place"),
        (
            {"decision": "off", "queue": "team", "queue_defaults": ("queue_name", "queue_priority")},
            f"{CREATED}, Kueue queue team (queue_name and queue_priority of the connection)",
        ),
    ],
    ids=["created", "adopted", "queue of the gang", "restarts", "queue of the connection"],
)
def test_submission_is_described_in_one_line(changes: dict[str, Any], line: str) -> None:
    assert list(submission_messages(submission(**changes))) == [line]


def test_sandbox_says_that_it_pulls_no_image() -> None:
    _, note = submission_messages(submission(), server_software="gangjobs-sandbox")
    assert note.startswith("This cluster is the sandbox: it pulls no image")


def test_gang_that_was_not_started_is_described_as_suspended_with_the_command_that_resumes_it() -> None:
    line, resume = submission_messages(submission(**SUSPENDED))

    assert resume.endswith(""": kubectl -n default patch job train-0 -p '{"spec":{"suspend":false}}'""")

    assert line.endswith(
        ": 8 workers, scheduling as the manifest specifies, suspended until another component starts it"
    )


def test_missing_guarantees_follow_the_description() -> None:
    assert list(submission_messages(submission(notes=("Not a gang: one", "two"))))[1:] == ["Not a gang: one", "two"]


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ("gang:native", "gang scheduling by Job.spec.scheduling"),
        ("basic:one pod", "plain pods without gang scheduling (one pod)"),
        ("off", "plain pods without gang scheduling, as the parameter gang requests"),
        ("basic", "plain pods without gang scheduling"),
        ("of a later release: {x}", "of a later release: {x}"),
    ],
)
def test_placement_is_described_in_words(decision: str, text: str) -> None:
    assert describe_placement(decision) == text


# -- Times leave the provider as pendulum times in UTC, wherever they are in a value ---------------------------------

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


class Struct(msgspec.Struct, frozen=True):
    at: datetime | None = None
    name: str = ""
    parts: tuple[Struct, ...] = ()


@dataclass(frozen=True)
class Record:
    at: datetime
    more: Any = None


VALUES: dict[str, tuple[Any, Any]] = {
    "a time": (AT, lambda value: value),
    "a time of another zone": (AT.astimezone(timezone(timedelta(hours=5))), lambda value: value),
    "a list": ([1, AT], lambda value: value[1]),
    "a mapping": ({"began": AT}, lambda value: value["began"]),
    "a struct in a tuple of a struct": (Struct(parts=(Struct(), Struct(AT))), lambda value: value.parts[1].at),
    "a dataclass in a dataclass": (Record(AT, Record(AT)), lambda value: value.more.at),
}


@pytest.mark.parametrize(("value", "find"), VALUES.values(), ids=VALUES)
def test_time_becomes_the_same_time_of_pendulum_in_utc(value: Any, find: Any) -> None:
    converted = with_pendulum_times(value)
    at = find(converted)
    assert (type(at), at.timezone_name, at) == (DateTime, "UTC", AT)
    assert (type(converted), converted) == (DateTime if value is find(value) else type(value), value)


@pytest.mark.parametrize("value", [None, "text", 3, ("a", 1), [], Struct(name="x"), {"a": [Struct()]}, DateTime])
def test_value_without_a_time_is_returned_itself(value: Any) -> None:
    assert with_pendulum_times(value) is value


def test_every_use_case_of_the_service_converts_its_times() -> None:
    names = [name for name, _ in inspect.getmembers(GangService, inspect.iscoroutinefunction) if name[0] != "_"]
    assert "submit" in names
    assert all(getattr(PublicService, name) is not getattr(GangService, name) for name in names)
    assert all(
        inspect.signature(getattr(PublicService, n)) == inspect.signature(getattr(GangService, n)) for n in names
    )
