"""Messages about a submission, for the log of the task and the command line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.render.placement import describe_placement
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.well_known import TERMINATION_MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters
    from airflow_provider_gangjobs.submission.submission import Submission

RANK_RESULT_BYTES: Final = TERMINATION_MESSAGE_BYTES_MAX - 1
"""The largest result of one rank that the kubelet keeps whole."""

SANDBOX_SERVER: Final = "gangjobs-sandbox"
"""The header `Server` of the responses of the sandbox. A kube-apiserver sends no such header."""
SANDBOX_NOTE: Final = (
    "This cluster is the sandbox: it pulls no image, runs each command as a program of this machine, and has no "
    "PersistentVolumeClaims"
)
_STATES: Final = {"succeeded": ", already succeeded", "failed": ", already failed"}
"""Text by `SubmissionState`. A gang in progress that was started has no text."""
_SUSPENDED: Final = ", suspended until another component starts it"
_RESUME: Final = (
    "The Job stays suspended until somebody resumes it: "
    """kubectl -n {0.namespace} patch job {0.name} -p '{{"spec":{{"suspend":false}}}}'"""
)


@contextmanager
def xcom_fault_logged(key: str, log: Logger) -> Iterator[None]:
    """Log a fault of the XCom backend while an XCom is pushed that describes the gang.

    The gang runs or has ended. The task must go on to follow it, or to report its end.
    """
    try:
        yield
    except Exception as error:  # an XCom backend may raise anything
        log.warning("XCom %s could not be pushed (%s). The task goes on", key, type(error).__name__)


def log_submission(task: TaskParameters, submission: Submission, log: Logger, *, server_software: str) -> None:
    """Log the messages about a submission, and whether the results may exceed their limit at the end of the gang.

    :param server_software: The software that the API server names in its responses.
    """
    for line in submission_messages(submission, server_software=server_software):
        log.info("%s", line)
    bytes_max = submission.workers * RANK_RESULT_BYTES
    if task.results is Results.ALL and bytes_max > task.results_limit:
        log.warning(
            "The results of %d ranks may have up to %d bytes. With more than %d bytes (results_limit) the task"
            " fails after its gang",
            submission.workers,
            bytes_max,
            task.results_limit,
        )


def submission_messages(submission: Submission, *, server_software: str = "") -> Iterator[str]:
    """Yield a line that describes the submission, and then a line for each guarantee that the gang does not have.

    :param server_software: The software that the API server names in its responses.
    """
    verb = "Adopted" if submission.adopted else "Created"
    workers = pluralize(submission.workers, "worker")
    placement = describe_placement(submission.decision)
    state = _SUSPENDED if submission.is_suspended else _STATES.get(submission.state, "")
    queue = _describe_queue(submission)
    restarts = f", up to {pluralize(submission.restarts_max, 'restart')} in place" if submission.restarts_max else ""
    yield f"{verb} gang {submission.ref} (attempt {submission.attempt}): {workers}, {placement}{queue}{restarts}{state}"
    yield from submission.notes
    if submission.is_suspended and submission.queue is None:
        yield _RESUME.format(submission.ref)
    if server_software == SANDBOX_SERVER:
        yield SANDBOX_NOTE


def _describe_queue(submission: Submission) -> str:
    if submission.queue is None:
        return ""
    source = " and ".join(submission.queue_defaults)
    return f", Kueue queue {submission.queue}" + (f" ({source} of the connection)" if source else "")
