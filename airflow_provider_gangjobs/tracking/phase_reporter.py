"""Phase reporter: one line in the task's log for each change of state.

No line is reported for an observation that changes nothing, or for a state that lasts only a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.state.phase import FINAL_PHASES, Phase
from airflow_provider_gangjobs.gang.state.waiting import NO_CAUSE_NAMED, WaitCause

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.observation import Observation

SHORT_WAIT_S: Final = 3.0
"""Times of the API server have whole seconds, so a wait of three seconds by these times lasted two seconds or more."""
_USUALLY_SHORT: Final = frozenset(
    {
        WaitCause.CONTROLLER,
        WaitCause.SUBMISSION,
        WaitCause.WORKLOAD_MISSING,
        WaitCause.PODS_MISSING,
        WaitCause.GATED,
        WaitCause.SCHEDULER,
        WaitCause.SIDECAR,
    }
)
"""Every gang waits for these, usually for less than a second."""


class PhaseReporter:
    """Reports each phase once, and within a phase each cause of waiting once.

    A gang in a queue is reported again when its position becomes known, and when the position passes a power of two.
    """

    def __init__(self, report: Callable[[Observation], None]) -> None:
        self._callback = report
        self._phase: Phase | None = None
        self._reported: set[tuple[WaitCause, bool | str]] = set()
        self.last_alive = Phase.SUBMITTED
        """The last phase before the gang ended."""

    def report(self, observation: Observation, now: datetime, *, has_events: bool = False) -> float | None:
        """Report an observation unless it was reported before.

        :param has_events: The observation includes the events of the Job, so the same cause may have a better
        explanation.
        :return: Seconds after which a wait that is still short must be reported; `None` if nothing is held back.
        """
        if observation.verdict is None and observation.phase not in FINAL_PHASES:
            self.last_alive = observation.phase
        delay_s = _delay_s(observation, now)
        if delay_s is not None:
            return delay_s
        if observation.phase is not self._phase:
            self._phase = observation.phase
            self._reported.clear()
        wait = observation.wait
        keys: set[tuple[WaitCause, bool | str]] = {(wait.cause, NO_CAUSE_NAMED if wait.names_no_cause else has_events)}
        if wait.queue_position is not None:
            keys.add((wait.cause, f"position of {wait.queue_position.bit_length()} bits"))
        if not keys <= self._reported:
            self._reported |= keys
            self._callback(observation)
        return None


def _delay_s(observation: Observation, now: datetime) -> float | None:
    wait = observation.wait
    is_usually_short = wait.cause in _USUALLY_SHORT or wait.names_no_cause
    since = wait.since or observation.since
    if not is_usually_short or since is None:
        return None
    age_s = (now - since).total_seconds()
    return SHORT_WAIT_S - age_s if age_s < SHORT_WAIT_S else None
