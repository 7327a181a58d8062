"""Phase reporter: one line in the task's log for each change of state.

No line is reported for a state that changes nothing, or for a state that lasts only a moment. A gang may wait
for days for reasons that alternate, so a reason that was reported before, or that replaces another one with the same
cause, waits until the last line is a minute old. Then the present reason is reported.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import FINAL_PHASES, Phase

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.gang.state.reason import Reason


SHORT_WAIT_S: Final = 3.0
"""Times of the API server have whole seconds, so a wait of three seconds by these times lasted two seconds or more."""
_USUALLY_SHORT: Final = frozenset(
    {
        Category.CONTROLLER_SILENT,
        Category.KEPT_SUSPENDED,
        Category.SUBMISSION_INCOMPLETE,
        Category.WORKLOAD_MISSING,
        Category.PODS_REFUSED,
        Category.SCHEDULING_GATED,
        Category.SCHEDULER_SILENT,
        Category.SIDECAR_RUNNING,
    }
)
"""Every gang waits for these, usually for less than a second."""
REASON_EVERY_S: Final = 60.0
"""The time between two lines about reasons that alternate."""
NUMBERS_EVERY_S: Final = 900.0
"""The time between two lines about the same reason with other numbers, such as the CPUs that are missing. A thousand
gangs that wait write at most one such line a second."""
_NUMBER: Final = re.compile(r"\d+")


class PhaseReporter:
    """Reports each phase, each cause of waiting within a phase, and then the present reason at intervals.

    A gang in a queue is reported again when its position becomes known, and when the position passes a power of two. A
    gang that waits for nodes is reported again when it becomes known what is free, and not when that changes.
    """

    def __init__(self, report: Callable[[GangState], None]) -> None:
        self._callback = report
        self._phase: Phase | None = None
        self._reported: set[tuple[str, bool | str]] = set()
        self._last: _Told | None = None
        self._last_at: datetime | None = None
        self.last_alive = Phase.SUBMITTED
        """The last phase before the gang ended."""

    def report(self, state: GangState, now: datetime, *, has_events: bool = False) -> float | None:
        """Report a state unless it was reported before.

        :param has_events: The state includes events that say why the gang waits, or a decision of its queue, so
        the same cause has a better explanation.
        :return: Seconds after which the present reason must be reported; `None` if nothing is held back.
        """
        if state.verdict is None and state.phase not in FINAL_PHASES:
            self.last_alive = state.phase
        delay_s = _delay_s(state, now)
        if delay_s is not None:
            return delay_s
        if state.phase is not self._phase:
            self._phase = state.phase
            self._reported.clear()
            self._last = None
        keys, told = _keys(state, has_events=has_events), _told(state.reason)
        if told == self._last:
            self._reported.add(_explanation(state, has_events=has_events))
        if keys <= self._reported:
            held_back_s = self._held_back_s(told, now)
            if held_back_s is None or held_back_s > 0:
                return held_back_s
        self._reported |= keys
        self._last, self._last_at = told, now
        self._callback(state)
        return None

    def _held_back_s(self, told: _Told, now: datetime) -> float | None:
        """Return how long another reason than the last one must wait; `None` if the last line has the reason."""
        assert self._last is not None, "the phase was reported"
        assert self._last_at is not None, "the phase was reported"
        if told == self._last:
            return None
        is_same = told.without_numbers == self._last.without_numbers
        age_s = (now - self._last_at).total_seconds()
        return max((NUMBERS_EVERY_S if is_same else REASON_EVERY_S) - age_s, 0.0)


class _Told(NamedTuple):
    """What a line says of a reason, except its position in a queue."""

    cause: str
    said: tuple[str, ...]

    @property
    def without_numbers(self) -> _Told:
        return self._replace(said=tuple(_NUMBER.sub("", one) for one in self.said))


def _told(reason: Reason) -> _Told:
    data = (value for name, value in sorted(reason.data.items()) if name != "position")
    return _Told(reason.cause, (reason.evidence, *data))


def _keys(state: GangState, *, has_events: bool) -> set[tuple[str, bool | str]]:
    """Return what is reported at once when a phase has it for the first time."""
    reason, capacity = state.reason, state.capacity
    keys = {_explanation(state, has_events=has_events)}
    if position := reason.data.get("position"):
        keys.add((reason.cause, f"position of {int(position).bit_length()} bits"))
    if capacity is not None and capacity.resources:
        keys.add((reason.cause, "capacity"))
    if state.autoscaler:
        keys.add((reason.cause, state.autoscaler.partition(":")[0]))
    return keys


def _explanation(state: GangState, *, has_events: bool) -> tuple[str, bool | str]:
    return state.reason.cause, "no cause" if state.names_no_cause else has_events


def _delay_s(state: GangState, now: datetime) -> float | None:
    reason = state.reason
    if reason.since is None or not (reason.category in _USUALLY_SHORT or state.names_no_cause):
        return None
    age_s = (now - reason.since).total_seconds()
    return SHORT_WAIT_S - age_s if age_s < SHORT_WAIT_S else None
