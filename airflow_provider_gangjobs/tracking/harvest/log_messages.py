"""Log messages of a harvest: when it fails, when it works again, and when many pods are held.

There is one line for each change of state, and none for a single pod or retry. The trigger writes these lines, so they
are in the log of the gang's task, where a user looks for the reason why a pod does not go away.
"""

from __future__ import annotations

import logging
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster import structured_log
from airflow_provider_gangjobs.cluster.errors import TooManyRequests

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.structured_log import Field

log = logging.getLogger(__name__)

BACKLOG_HIGH: Final = 10_000
"""Pods that have ended and are not released: some megabytes here, and as many objects in the cluster."""
BACKLOG_LOW: Final = BACKLOG_HIGH // 2

SLOWED_DOWN: Final = (INFO, "The API server is busy, the harvest is slowed down")
NOT_STORED: Final = (WARNING, "Outcomes of pods cannot be stored, so the pods are held until they are")
NOT_RELEASED: Final = (WARNING, "Pods cannot be released, the harvest retries")
RECOVERED: Final = (INFO, "The harvest works again")
MANY_HELD: Final = (WARNING, "Many pods have ended and are still held")
FEW_HELD: Final = (INFO, f"Fewer than {BACKLOG_LOW:,} ended pods wait for the harvest")


def message_of(error: Exception, *, is_storing: bool) -> tuple[int, str]:
    """Return level and message for a failed attempt. Two equal messages in a row are logged once."""
    if isinstance(error, TooManyRequests):
        return SLOWED_DOWN
    return NOT_STORED if is_storing else NOT_RELEASED


class HarvestLog:
    """Logs the harvest of one gang."""

    def __init__(self, gang: str | None) -> None:
        self._gang = gang
        self._problem: tuple[str, str] | None = None
        self._since = 0.0
        self._attempts = 0
        self._is_high = False

    def failed(self, error: Exception, now: float, *, is_storing: bool, backlog: int) -> None:
        """Log a failed attempt, unless the one before failed for the same reason."""
        level, what = message_of(error, is_storing=is_storing)
        if self._problem is None:
            self._since, self._attempts = now, 0
        self._attempts += 1
        if self._problem != (what, type(error).__name__):
            self._problem = what, type(error).__name__
            self._write((level, what), pods=backlog, cause=f"{type(error).__name__}: {error}")

    def succeeded(self, now: float, *, backlog: int) -> None:
        """Log the end of a problem, if there was one."""
        if self._problem is not None:
            self._problem = None
            self._write(RECOVERED, after_s=now - self._since, tries=self._attempts, pods=backlog)

    def backlog(self, pods: int) -> None:
        """Log when many pods wait, and when few do again."""
        if pods >= BACKLOG_HIGH and not self._is_high:
            self._is_high = True
            self._write(MANY_HELD, pods=pods)
        elif pods < BACKLOG_LOW and self._is_high:
            self._is_high = False
            self._write(FEW_HELD, pods=pods)

    def _write(self, message: tuple[int, str], **fields: Field) -> None:
        level, what = message
        structured_log.log_fields(log, level, what, gang=self._gang, **fields)
