"""Log lines of an informer: one line per change of its state, and none per event or object.

INFO and WARNING lines are for the operators of a triggerer: an informer starts, fails repeatedly, polls, or is stale,
and recovers. DEBUG lines report the result of each request, whose number the backoff limits. Each line names the
informer.
"""

from __future__ import annotations

import logging
from logging import DEBUG, INFO, WARNING
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.structured_log import log_fields

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.structured_log import Field

log = logging.getLogger(__name__)


def describe_cause(error: ClusterError | None) -> str:
    """Return why a request failed or a watch ended early: the server's reason and message, never the request body."""
    return str(error) if error else "the server ended the watch right after its start"


class InformerLog:
    """Writes the log lines of one informer. `Health`, which has the state, decides when."""

    def __init__(self, informer: str) -> None:
        self._informer = informer

    def list_read(self, why: str, objects: int, seconds: float) -> None:
        """Log a complete list. `why` is first, expired, failing, or polling."""
        if why == "first":
            self._log(INFO, "informer synced", objects=objects, seconds=seconds)
        else:
            self._log(DEBUG, "list read", why=why, objects=objects, seconds=seconds)

    def watch_opened(self, version: str) -> None:
        """Log a new watch, which begins after this resource version."""
        self._log(DEBUG, "watch opened", version=version)

    def watch_ended(self, error: ClusterError | None, lived_s: float, events: int) -> None:
        """Log the end of a watch, its duration in seconds, and how many events it delivered."""
        why = str(error) if error else "closed by the server"
        self._log(DEBUG, "watch ended", why=why, lived_s=lived_s, events=events)

    def expired(self, request: str, error: ClusterError) -> None:
        """Log a 410. `request` is watch (its version expired) or list (its continue token expired)."""
        self._log(DEBUG, "version expired", of=request, cause=str(error))

    def backing_off(self, pause_s: float, failures: int, cause: str) -> None:
        """Log the pause before the next request. `failures` counts the failures in a row."""
        self._log(DEBUG, "backing off", pause_s=pause_s, failures=failures, cause=cause)

    def failing(self, failures: int, cause: str) -> None:
        """Warn that several requests in a row have failed."""
        self._log(WARNING, "informer fails repeatedly and keeps retrying", failures=failures, cause=cause)

    def recovered(self, after_s: float, failures: int) -> None:
        """Log that a request has succeeded again, this many seconds after the first failure."""
        self._log(INFO, "informer recovered", after_s=after_s, failures=failures)

    def polling(self, error: ClusterError | None) -> None:
        """Warn that the informer lists periodically in place of a watch."""
        cause = describe_cause(error)
        self._log(WARNING, "informer polls because the API server refuses the watch verb, grant it", cause=cause)

    def watching_again(self, after_s: float) -> None:
        """Log that a watch is open again, after this many seconds of polling."""
        self._log(INFO, "informer watches again", after_s=after_s)

    def stale(self, silent_s: float, problem: str | None) -> None:
        """Warn that the API server has not responded for this many seconds."""
        self._log(WARNING, "informer is stale, the API server does not respond", silent_s=silent_s, cause=problem)

    def fresh(self, after_s: float) -> None:
        """Log that the API server responds again, after this many seconds without a response."""
        self._log(INFO, "informer is up to date again", silent_s=after_s)

    def _log(self, level: int, message: str, **fields: Field) -> None:
        log_fields(log, level, message, informer=self._informer, **fields)
