"""The delay before a Job replaces a failed pod: 10 s, doubled by each consecutive failure, at most 10 min. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.job.pods import finished_at

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from gangjobs_sandbox.controllers.meta import Obj

BASE_DELAY_S = 10.0
MAX_DELAY_S = 600.0


@dataclass(frozen=True)
class BackoffRecord:
    """The consecutive failures since the last success. As in Kubernetes, the record is only kept in memory."""

    failures: int = 0
    last_failure: datetime | None = None

    def after(self, succeeded: Iterable[Obj], failed: Iterable[Obj]) -> BackoffRecord:
        """Return the record after these pods have ended. A success clears the failures before it."""
        failures = _end_times(failed)
        if not failures and not self.failures:
            return self
        successes = _end_times(succeeded)
        if not successes:
            if not failures:
                return self
            return BackoffRecord(self.failures + len(failures), failures[-1])
        later = [moment for moment in failures if moment > successes[-1]]
        return BackoffRecord(len(later), later[-1] if later else None)

    def remaining_s(self, now: datetime) -> float:
        """Return the seconds until the next pod may be created."""
        return remaining_s(self.failures, self.last_failure, now)


def remaining_s(failures: int, last_failure: datetime | None, now: datetime) -> float:
    """Return the remaining delay in seconds after this number of consecutive failures."""
    if failures == 0 or last_failure is None:
        return 0.0
    # 2**6 * 10 s already exceeds the limit. The cap prevents a large power.
    delay_s = min(BASE_DELAY_S * 2.0 ** min(failures - 1, 10), MAX_DELAY_S)
    return max(delay_s - (now - last_failure).total_seconds(), 0.0)


def _end_times(pods: Iterable[Obj]) -> list[datetime]:
    return sorted(moment for pod in pods if (moment := finished_at(pod)) is not None)
