"""What the harvest of a gang says in the log: when it is hindered, when that is over, and when pods pile up.

One line when the state changes, none for a pod or a try. The lines come from the trigger, so they are in the log of
the gang's task, where somebody asks why a pod does not go away.
"""

from __future__ import annotations

import logging
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import TooManyRequests
from airflow_provider_gangjobs.cluster.structured_log import tell

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.structured_log import Field

log = logging.getLogger(__name__)

BACKLOG_HIGH: Final = 10_000
"""Pods that are recorded or about to be, and not let go: some megabytes here, and as many objects in the cluster."""
BACKLOG_LOW: Final = BACKLOG_HIGH // 2

SLOWED_DOWN: Final = (INFO, "harvest is slowed down, the API server is busy")
NOT_STORED: Final = (WARNING, "harvest waits, outcomes cannot be stored and their pods are held")
NOT_RELEASED: Final = (WARNING, "harvest waits, pods cannot be released")


def of_error(error: Exception, *, storing: bool) -> tuple[int, str]:
    """What to say of a try that met an error. Two of the same kind in a row are one line."""
    if isinstance(error, TooManyRequests):
        return SLOWED_DOWN
    return NOT_STORED if storing else NOT_RELEASED


class HarvestLog:
    """Says it, of one gang."""

    def __init__(self, gang: str | None) -> None:
        self._gang = gang
        self._said: tuple[str, str] | None = None
        self._since = 0.0
        self._tries = 0
        self._is_high = False

    def hindered(self, error: Exception, now: float, *, storing: bool, backlog: int) -> None:
        level, what = of_error(error, storing=storing)
        if self._said is None:
            self._since, self._tries = now, 0
        self._tries += 1
        if self._said != (what, type(error).__name__):
            self._said = what, type(error).__name__
            self._tell(level, what, pods=backlog, cause=f"{type(error).__name__}: {error}")

    def goes_on(self, now: float, *, backlog: int) -> None:
        """A try went well."""
        if self._said is not None:
            self._said = None
            self._tell(INFO, "harvest goes on", after_s=now - self._since, tries=self._tries, pods=backlog)

    def backlog_is(self, pods: int) -> None:
        if pods >= BACKLOG_HIGH and not self._is_high:
            self._is_high = True
            self._tell(WARNING, "many pods have ended and are still held", pods=pods)
        elif pods < BACKLOG_LOW and self._is_high:
            self._is_high = False
            self._tell(INFO, "few pods are held again", pods=pods)

    def _tell(self, level: int, what: str, **fields: Field) -> None:
        tell(log, level, what, gang=self._gang, **fields)
