"""Messages about a submission, for the log of the task, and the details of a gang, for all doors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.kube.text import cut_end, format_duration, pluralize, to_printable_line
from airflow_provider_gangjobs.kube.well_known import TERMINATION_MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters
    from airflow_provider_gangjobs.submission.submission import Submission

RANK_RESULT_BYTES: Final = TERMINATION_MESSAGE_BYTES_MAX - 1
"""The largest result of one rank that the kubelet keeps whole."""

_PLACEMENTS: Final = {
    "gang": "gang scheduling by {}",
    "basic": "plain pods without gang scheduling ({})",
    "brought": "scheduling as the manifest specifies",
    "off": "plain pods without gang scheduling, as the parameter gang requests",
}
"""Text by the first word of the decision in the Job's annotation."""
_SCHEDULERS: Final = {
    "native": "Job.spec.scheduling",
    "kueue": "the topology of its Kueue queue",
    "volcano": "Volcano",
    "coscheduling": "the coscheduling plugin",
    "yunikorn": "YuniKorn",
}
"""Text by the detail of the decision. Every other detail is a version of the Workload API."""
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


def describe_placement(decision: str) -> str:
    """Return how the pods are placed, in words.

    :param decision: The decision in the Job's annotation, such as `gang:v1beta1` or `basic:one pod`.
    """
    kind, _, detail = decision.partition(":")
    if kind == "gang":
        detail = _SCHEDULERS.get(detail, f"Workload API {detail}")
    text = _PLACEMENTS.get(kind)
    return decision if text is None else text.format(detail).removesuffix(" ()")


REQUESTS_CHARACTERS_MAX: Final = 250


def details_of(view: GangView) -> dict[str, str]:
    """Return what a person is told of a gang beside its phase and its reason: names and values, without empty ones."""
    from airflow_provider_gangjobs.gang.outcome.restarts import describe_use

    progress = view.progress
    left_s = progress.eta_s if progress is not None and not view.is_over else None
    details = {
        "Roles": ", ".join(f"{size} {role}" for role, size in view.roles.items()),
        "Ranks": f"{view.ranks:,}" if view.ranks else "",
        "Requests": format_requests(view.requests),
        "Queue": view.queue,
        "Placement": describe_placement(view.placement) if view.placement else "",
        "Airflow installation": view.installation,
        "Followed by": f"task instance {view.claim}" if view.claim and not view.is_over else "",
        "Progress": str(progress) if progress is not None else "",
        "Estimated time left": format_duration(left_s) if left_s is not None else "",
        "Restarts in place": view.restarts_told,
        "Time used": describe_use(view.time_use, view.requests, view.ranks) if view.time_use is not None else "",
    }
    return {name: value for name, value in details.items() if value}


def notes_of(view: GangView) -> list[str]:
    """Return the notes of a view, and what could not be read."""
    return [*view.notes, *(f"The {what} could not be read." for what in view.unread)]


def format_requests(requests: Mapping[str, str]) -> str:
    """Return quantities with their resources, and those that each program requests at the end."""
    common = ("cpu", "memory")
    names = sorted(requests, key=lambda name: (common.index(name) if name in common else -1, name))
    return cut_end(to_printable_line(", ".join(f"{requests[name]} {name}" for name in names)), REQUESTS_CHARACTERS_MAX)
