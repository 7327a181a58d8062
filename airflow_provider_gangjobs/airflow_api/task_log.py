"""The log of a task: how it shows an error, whether Airflow retries the task after it, and texts without secrets.

The log shows an error that its user can act on by the message alone, as the last line. Airflow's task runner logs the
exception of a task with all frames of Airflow and of this provider, and the message above or below them. The frames
help nobody to mend a DAG or a cluster. The exception itself keeps its frames and its cause, for callbacks, listeners
and error trackers, and with Airflow's log level DEBUG the log has them, too.

A termination message may be the end of a log (`FallbackToLogsOnError`), and a program may log anything. Airflow masks
the log of a task, but neither XComs nor the events of triggers, which are stored as plain text. Only free texts are
masked: a secret may equal a name or a state, such as the password "airflow". The masker of a process knows the secrets
that this process has read; a triggerer learns the others from the cluster (`jobs.gang_secrets`).

Several lines of a log of a rank are one message. Airflow stores some 400 bytes with each message of a trigger, such as
the names of the DAG, the run and the task, and reads the messages of a triggerer at 4 KiB a turn of a slow loop.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import structlog
from airflow.sdk import BaseOperator
from airflow.sdk._shared.secrets_masker import mask_secret, redact
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)
from airflow_provider_gangjobs.exceptions import GangJobError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping

    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent


def mask(text: str) -> str:
    """Return the text with `***` in the place of each secret that Airflow knows in this process."""
    return str(redact(text)) if text else text


MESSAGE_LINES_MAX: Final = 50
MESSAGE_CHARACTERS_MAX: Final = 4096
"""How much one message has. Log collectors split lines of more than 16 KiB, and the UI shows a message as one row."""


def join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines as messages of several lines, in order. A line that exceeds the limit is a message of its own."""
    message: list[str] = []
    size = 0
    for line in lines:
        if message and (len(message) == MESSAGE_LINES_MAX or size + len(line) >= MESSAGE_CHARACTERS_MAX):
            yield "\n".join(message)
            message, size = [], 0
        message.append(line)
        size += len(line) + 1
    if message:
        yield "\n".join(message)


def log_lines(lines: Iterable[str], log: Logger) -> None:
    """Log lines of ranks, several in one message."""
    for message in join_lines(lines):
        log.info("%s", message)


_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Two code points that Unicode keeps free for such marks."""


def find_secrets(text: str) -> list[tuple[int, int]]:
    """Return the begin and the end of each secret in the text that Airflow knows in this process.

    Raises:
        ValueError: Airflow's masker does not say where they are.
    """
    if mask(text) == text:
        return []
    parts = re.split(f"[{_BEGIN}{_END}]", str(redact(text, replacement=f"{_BEGIN}\\g<0>{_END}")))
    if "".join(parts) != text or len(parts) < 3:
        raise ValueError("the masker does not keep the text between its marks")
    ends = list(accumulate(map(len, parts)))
    return list(zip(ends[:-1:2], ends[1::2], strict=True))


async def learn_secrets(client: Client, ref: GangRef, has_secrets: bool | None) -> bool:
    """Let Airflow mask the secrets of a gang, from now on, in this process. Return whether all are known.

    :param has_secrets: `TriggerArgs.secrets`.

    Raises:
        ClusterError: the objects could not be read, and may be read later.
    """
    from airflow_provider_gangjobs.jobs.gang_secrets import read_mask  # only a triggerer needs the module

    if not has_secrets:
        return has_secrets is not None
    known = await read_mask(client, ref)
    for secret in known.secrets or ():
        mask_secret(secret)  # Airflow leaves out the ones that are too short
    return bool(known.secrets)


def mask_event(event: GangEvent, mask: Callable[[str], str] = mask) -> GangEvent:
    """Return the event with masked texts, within its limits. Names, states, and numbers stay.

    The texts are masked before they are cut. If the event was cut before, a secret that the cut has
    shortened is not recognized.

    :param mask: Returns a text with its secrets replaced.
    """
    masked = replace(
        event,
        message=mask(event.message),
        notes=tuple(map(mask, event.notes)),
        ranks=tuple(replace(rank, message=mask(rank.message)) for rank in event.ranks),
    )
    return masked.within_limits()


_PACKAGE: Final = __name__.partition(".")[0]


class ErrorRules(BaseOperator):
    """The base class of operators and sensors: errors are logged without frames, and permanent ones are not retried."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Apply `skip_retries_of_permanent_errors` to the methods that Airflow calls.

        This is the outermost rule: with `soft_fail`, a sensor skips after an `AirflowFailException` of its `poke`.
        """
        super().__init_subclass__(**kwargs)
        for name in {"execute", "resume_execution"} & vars(cls).keys():
            setattr(cls, name, skip_retries_of_permanent_errors()(vars(cls)[name]))

    def pre_execute(self, context: Context) -> None:
        """Prepare the log of this process. Airflow calls this before the task begins or is resumed."""
        log_errors_without_frames()


def log_errors_without_frames() -> None:
    """Leave out the frames of errors for users, from now on and in all logs of this process. Safe to repeat."""
    # Loggers that exist share this list with the configuration, so the list is changed and not replaced.
    processors = structlog.get_config()["processors"]
    if isinstance(processors, list) and leave_out_frames not in processors:
        processors.insert(0, leave_out_frames)


def leave_out_frames(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Leave out the frames and the cause of an error for users. A processor of structlog."""
    error = _exception_of(event.get("exc_info"))
    if error is not None and is_for_users(error) and not logging.getLogger(_PACKAGE).isEnabledFor(logging.DEBUG):
        event["exc_info"] = _without_frames(error)
    return event


def _without_frames(error: BaseException) -> tuple[type[BaseException], BaseException, None]:
    """Return what stands for the error in the log: an exception of the same name without frames and without a cause."""
    known = error.__cause__ if isinstance(error, AirflowFailException) and error.__cause__ else error
    shown = known.log_message if isinstance(known, GangJobError) else str(error)
    kind = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    return kind, kind(shown), None


def log_failure(log: Logger, error: BaseException, what: str) -> None:
    """Log what failed and why: with all frames, unless the message of the error says all that a user needs."""
    if is_for_users(error):
        log.error("%s: %s", what, mask(str(error)))
        log.debug("The frames of this error", exc_info=error)
    else:
        log.error("%s", what, exc_info=error)


def _exception_of(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, tuple):
        _, exc_info, _ = exc_info
    elif exc_info and not isinstance(exc_info, BaseException):
        exc_info = sys.exception()
    return exc_info if isinstance(exc_info, BaseException) else None


def is_for_users(error: BaseException) -> bool:
    """Return whether the message of an error says all that a user needs: what happened, and what to do."""
    from airflow_provider_gangjobs.cluster.errors import ClusterError

    if isinstance(error, AirflowFailException):
        return isinstance(error.__cause__, GangJobError) or _is_raised_here(error)
    return isinstance(error, (GangJobError, ClusterError, AirflowNotFoundException))


def _is_raised_here(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__")).startswith(f"{_PACKAGE}.")


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
        raise AirflowFailException(mask(str(error))) from error


@contextmanager
def skip_with_never_fail(sensor: Any) -> Iterator[None]:
    """Skip a sensor with `never_fail`. When it is resumed, Airflow does so only after an `AirflowException`.

    Raises:
        AirflowSkipException: the block raised a `GangJobError`.
    """
    try:
        yield
    except GangJobError as error:
        if not sensor.never_fail:
            raise
        sensor.log.warning("The sensor is skipped, because never_fail is set: %s", error)
        raise AirflowSkipException("The sensor has failed, and never_fail is set") from error
