"""Whether a try may still start a gang: a worker that was stopped may wake up after its task has ended.

Airflow may end a try whose worker has stopped, and another try may have succeeded by the time the worker wakes up. A
submission that continues then creates a gang that nobody wants. So a try that began more than `CONFIRMED_FOR_S` seconds
ago asks Airflow directly before each write that starts a gang. The submission goes on after the answer, so a slow API
server delays the start and does not prevent it. A submission normally takes a second, and then asks nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.spec import OnFinish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.service import GangService

T = TypeVar("T")

CONFIRMED_FOR_S: Final = 30.0
"""How long a try may start gangs without asking. Airflow waits ten times as long for the heartbeat of a worker."""
STEP: Final = "start the gang"
ENDED: Final = "Airflow has ended this try while its worker was stopped or slow"
ENDED_ADVICE: Final = "No action is needed: a later try continues, or the task has ended"
UNKNOWN: Final = "Airflow does not say whether this try still runs, and the worker was stopped or slow"
UNKNOWN_ADVICE: Final = "Check that the worker reaches Airflow's API server. The next try starts the same gang"


def boot_time() -> float:
    """Return a monotonic time in seconds that counts while the machine sleeps, if the platform has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class StartGuard:
    """Knows when Airflow last said that the try runs, and asks again if that was too long ago."""

    def __init__(
        self,
        is_running: Callable[[], Awaitable[bool | None]],
        *,
        started: datetime | None,
        clocks: Sequence[Callable[[], float]] = (time.time, boot_time),
    ) -> None:
        """
        :param is_running: Asks Airflow whether this try runs. `None` means that Airflow could not be asked.
        :param started: When the try began. Airflow has confirmed the try then.
        :param clocks: Clocks in seconds, the wall clock first. The clock that shows the longest time counts, because a
            clock may be set back, and may stand still while the machine sleeps.
        """
        self._is_running = is_running
        self._clocks = clocks
        self._confirmed = [clock() for clock in clocks]
        if started is not None:
            self._confirmed[0] = min(self._confirmed[0], started.timestamp())

    def is_due(self) -> bool:
        """Return whether Airflow must be asked before a gang starts."""
        ages = (clock() - then for clock, then in zip(self._clocks, self._confirmed, strict=True))
        return max(ages) > CONFIRMED_FOR_S

    async def confirm(self, *, always: bool = False) -> None:
        """Return if the try runs. Asks Airflow if `is_due`, or in any case.

        Raises:
            UnconfirmedTry: the try has ended, or Airflow does not say whether the try runs.
        """
        if not always and not self.is_due():
            return
        from airflow_provider_gangjobs.submission.steps.step import UnconfirmedTry

        now = [clock() for clock in self._clocks]
        runs = await self._is_running()
        if not runs:
            raise UnconfirmedTry(has_ended=runs is False)
        self._confirmed = now

    def submit(self, gangs: TaskGangs, submit: Callable[[GangService], Awaitable[T]], *, delete: bool) -> T:
        """Return what `submit` returns. A gang starts only if the try runs.

        :param submit: Submits the gang, and calls `confirm` directly before each write that starts the gang.
        :param delete: Whether to delete the gang of a try that Airflow has ended.

        Raises:
            SubmissionFailed: Airflow has ended the try, or does not say before the start whether the try runs.
        """
        from airflow_provider_gangjobs.submission.steps.step import UnconfirmedTry

        async def submit_and_confirm(service: GangService) -> T:
            submitted = await submit(service)
            try:
                # The process may also have been stopped after the last check and before the request that starts the
                # gang.
                await self.confirm()
            except UnconfirmedTry as unconfirmed:
                if unconfirmed.has_ended:
                    raise
                gangs.log.warning("%s. The gang has started", UNKNOWN)
            return submitted

        try:
            return gangs.call(submit_and_confirm)
        except UnconfirmedTry as unconfirmed:
            if not unconfirmed.has_ended:
                raise _failed(gangs, UNKNOWN, UNKNOWN_ADVICE) from None
            if delete:
                gangs.end(OnFinish.DELETE, why=ENDED)
            raise _failed(gangs, ENDED, ENDED_ADVICE) from None


def _failed(gangs: TaskGangs, cause: str, advice: str) -> SubmissionFailed:
    return SubmissionFailed(f"task {gangs.key.dag_id}.{gangs.key.task_id}", STEP, cause, advice=advice)


__all__ = ["CONFIRMED_FOR_S", "StartGuard"]
