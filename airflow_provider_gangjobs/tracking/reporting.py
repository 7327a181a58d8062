"""Reporting: one line per change of state, none per look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.lifecycle import Observation, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.waiting import Cause


class Reporter:
    """Reports each phase once, and within it each thing that is waited for once."""

    def __init__(self, report: Callable[[Observation], None]) -> None:
        self._report = report
        self._phase: Phase | None = None
        self._told: set[tuple[Cause, bool]] = set()
        self.last_alive = Phase.SUBMITTED
        """The last phase before the gang was over."""

    def tell(self, observation: Observation, *, evidence: bool = False) -> None:
        """Report what has not been reported. With `evidence` the same cause can say more than before."""
        if observation.phase is not self._phase:
            self._phase = observation.phase
            self._told.clear()
        if observation.verdict is None:
            self.last_alive = observation.phase
        key = (observation.wait.cause, evidence)
        if key not in self._told:
            self._told.add(key)
            self._report(observation)
