"""What an informer says in the log: one line when its state changes, none for an event or an object.

INFO and WARNING are for who runs a triggerer: that an informer begins, is in trouble, polls, hears nothing, and that
this is over. DEBUG tells each request's fate; back-off keeps those few. Every line names the informer.
"""

from __future__ import annotations

import logging
from logging import DEBUG, INFO, WARNING
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.structured_log import tell

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.errors import ClusterError
    from airflow_provider_gangjobs.cluster.structured_log import Field

log = logging.getLogger(__name__)


def cause_of(error: ClusterError | None) -> str:
    """Why a request failed, or a watch was of no use: the server's reason and message, never what was sent."""
    return str(error) if error else "the server ended the watch as soon as it had begun"


class Telling:
    """Says it. What is worth saying is decided by `Health`, which knows the state."""

    def __init__(self, informer: str) -> None:
        self._informer = informer

    def list_read(self, why: str, objects: int, seconds: float) -> None:
        """`why`: first, expired, failing or polling."""
        if why == "first":
            self._tell(INFO, "informer synced", objects=objects, seconds=seconds)
        else:
            self._tell(DEBUG, "list read", why=why, objects=objects, seconds=seconds)

    def watch_opened(self, version: str) -> None:
        self._tell(DEBUG, "watch opened", version=version)

    def watch_ended(self, error: ClusterError | None, lived_s: float, events: int) -> None:
        why = str(error) if error else "closed by the server"
        self._tell(DEBUG, "watch ended", why=why, lived_s=lived_s, events=events)

    def expired(self, what: str, error: ClusterError) -> None:
        """A 410. `what`: the version of a watch, or the continue token of a list."""
        self._tell(DEBUG, "version expired", of=what, cause=str(error))

    def backs_off(self, pause_s: float, failures: int, cause: str) -> None:
        self._tell(DEBUG, "back-off", pause_s=pause_s, failures=failures, cause=cause)

    def does_not_keep_up(self, failures: int, cause: str) -> None:
        self._tell(WARNING, "informer does not keep up, it goes on trying", failures=failures, cause=cause)

    def keeps_up_again(self, after_s: float, failures: int) -> None:
        self._tell(INFO, "informer keeps up again", after_s=after_s, failures=failures)

    def polls(self, error: ClusterError | None) -> None:
        self._tell(WARNING, "informer polls, because it may not watch: grant the verb", cause=cause_of(error))

    def watches_again(self, after_s: float) -> None:
        self._tell(INFO, "informer watches again", after_s=after_s)

    def is_stale(self, silent_s: float, problem: str | None) -> None:
        self._tell(WARNING, "informer is stale, the API server says nothing", silent_s=silent_s, cause=problem)

    def is_fresh_again(self, after_s: float) -> None:
        self._tell(INFO, "informer is fresh again", silent_s=after_s)

    def _tell(self, level: int, what: str, **fields: Field) -> None:
        tell(log, level, what, informer=self._informer, **fields)
