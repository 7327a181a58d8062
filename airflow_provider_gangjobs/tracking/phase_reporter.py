"""Reporting: one line per change of state, none per look, and none for what passes in a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.phase import Observation, Phase
from airflow_provider_gangjobs.gang.state.waiting import Cause

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

BRIEF_S: Final = 3.0
"""Server times have whole seconds, so what is said to last this long has lasted two at least."""
_BRIEF: Final = frozenset({Cause.CONTROLLER, Cause.SUBMISSION, Cause.PODS_MISSING, Cause.SCHEDULER})
"""Every gang waits for these, and hardly any for longer than a moment."""


class Reporter:
    """Reports each phase once, and within it each thing that is waited for once."""

    def __init__(self, report: Callable[[Observation], None]) -> None:
        self._report = report
        self._phase: Phase | None = None
        self._told: set[tuple[Cause, bool]] = set()
        self.last_alive = Phase.SUBMITTED
        """The last phase before the gang was over."""

    def tell(self, observation: Observation, now: datetime, *, evidence: bool = False) -> float | None:
        """Report what has not been reported. With `evidence` the same cause can say more than before.

        What may pass in a moment is kept back; the seconds after which it is to be told are returned.
        """
        if observation.verdict is None:
            self.last_alive = observation.phase
        wait_s = _wait_s(observation, now)
        if wait_s is not None:
            return wait_s
        if observation.phase is not self._phase:
            self._phase = observation.phase
            self._told.clear()
        key = (observation.wait.cause, evidence)
        if key not in self._told:
            self._told.add(key)
            self._report(observation)
        return None


def _wait_s(observation: Observation, now: datetime) -> float | None:
    if observation.wait.cause not in _BRIEF or observation.since is None:
        return None
    age_s = (now - observation.since).total_seconds()
    return BRIEF_S - age_s if age_s < BRIEF_S else None
