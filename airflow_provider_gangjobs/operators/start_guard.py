"""Whether a try may still start a gang: a worker that was stopped may wake up after its task has ended.

Airflow may end a try whose worker has stopped, and another try may have succeeded by the time the worker wakes up. A
submission that continues then creates a gang that nobody wants. So a try that began more than `CONFIRMED_FOR_S` seconds
ago asks Airflow before it starts a gang. A submission normally takes a second, so this normally costs no request.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.spec import OnFinish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.operators.task_gangs import TaskGangs

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
        is_running: Callable[[], bool | None],
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

    def submit(self, gangs: TaskGangs, submit: Callable[[], T], *, delete: bool, log: Logger) -> T:
        """Return what `submit` returns. A gang starts only if the try runs.

        :param submit: Submits the gang, and raises `UnconfirmedStart` before the start if `is_due`.
        :param delete: Whether to delete the gang of a try that Airflow has ended.

        Raises:
            SubmissionFailed: Airflow has ended the try, or does not say before the start whether the try runs.
        """
        from airflow_provider_gangjobs.submission.progress import UnconfirmedStart

        while True:
            try:
                submitted = submit()
            except UnconfirmedStart:
                if self._ask(gangs, delete=delete) is None:
                    raise _failed(gangs, UNKNOWN, UNKNOWN_ADVICE) from None
                continue
            # The process may also have been stopped after the last check and before the request that starts the gang.
            if self.is_due() and self._ask(gangs, delete=delete) is None:
                log.warning("%s. The gang has started", UNKNOWN)
            return submitted

    def _ask(self, gangs: TaskGangs, *, delete: bool) -> bool | None:
        """Return true if Airflow says that the try runs, and `None` if that is not known.

        Raises:
            SubmissionFailed: the try has ended. Its gangs are ended.
        """
        now = [clock() for clock in self._clocks]
        runs = self._is_running()
        if runs:
            self._confirmed = now
        elif runs is False:
            if delete:
                gangs.end(OnFinish.DELETE, why=ENDED)
            raise _failed(gangs, ENDED, ENDED_ADVICE)
        return runs


def _failed(gangs: TaskGangs, cause: str, advice: str) -> SubmissionFailed:
    return SubmissionFailed(f"task {gangs.key.dag_id}.{gangs.key.task_id}", STEP, cause, advice=advice)


__all__ = ["CONFIRMED_FOR_S", "StartGuard"]
