"""The API server's clock, as the `Date` header of its answers shows it.

The times in objects come from the API server, so deadlines that count from them must be compared with the same
clock. The clock of the machine that waits may be minutes ahead or behind, and may be set at any moment.

`Date` has whole seconds. One answer therefore bounds the server's time to an interval of one second and the round
trip; further answers narrow the interval. The clock returns the interval's lower end, so it is at most a second
late and never early: a deadline is not declared to have passed before it has.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

RESOLUTION_S: Final = 1.0
"""Of the `Date` header (RFC 9110, section 5.6.7)."""


class ServerClock:
    """Tells the API server's time from what its answers have shown. One for each client."""

    __slots__ = ("_earliest_s", "_latest_s", "_monotonic")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._earliest_s: float | None = None
        """The server's Unix time when the local monotonic clock is 0, at the earliest."""
        self._latest_s = 0.0

    def learn(self, date: str | None, *, sent_at: float) -> None:
        """Take note of an answer that has just come. A header that is missing or unreadable changes nothing.

        :param date: The answer's `Date` header.
        :param sent_at: When the request was sent, by the local monotonic clock.
        """
        if date is None:
            return
        try:
            said = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        earliest, latest = said - self._monotonic(), said + RESOLUTION_S - sent_at
        known = self._earliest_s
        if known is None or latest < known or earliest > self._latest_s:
            # The first answer; or the clock was set, or another API server of the cluster has answered.
            self._earliest_s, self._latest_s = earliest, latest
        else:
            self._earliest_s, self._latest_s = max(known, earliest), min(self._latest_s, latest)

    @property
    def is_known(self) -> bool:
        """Whether the server has told its time."""
        return self._earliest_s is not None

    def now(self) -> datetime:
        """The server's time; the local time while the server has not told its own."""
        if self._earliest_s is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._earliest_s + self._monotonic(), UTC)

    @property
    def ahead_s(self) -> float:
        """How many seconds the server's clock is ahead of the local one; 0 if the server has not told its time."""
        return 0.0 if self._earliest_s is None else (self.now() - datetime.now(UTC)).total_seconds()
