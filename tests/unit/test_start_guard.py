"""A try asks Airflow before it starts a gang if much time has passed, by whichever clock noticed it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_gangjobs.attempt.task_gangs import CONFIRMED_FOR_S, StartGuard, TaskGangs
from airflow_provider_gangjobs.exceptions import SubmissionFailed

LOG = logging.getLogger(__name__)
LATE_S = CONFIRMED_FOR_S + 1


@dataclass
class Try:
    """A try with two clocks that can be moved, the answer of Airflow, and the gangs that were ended."""

    answer: bool | None = True
    started: datetime | None = None
    moments: list[float] = field(default_factory=lambda: [1000.0, 0.0])
    questions: int = 0
    ended: list[str] = field(default_factory=list)
    writes: int = 0

    def __post_init__(self) -> None:
        clocks = [lambda at=at: self.moments[at] for at in range(2)]
        self.guard = StartGuard(self.ask, started=self.started, clocks=clocks)

    async def ask(self) -> bool | None:
        self.questions += 1
        return self.answer

    def submit(self, *, write_s: float = 0.0, writes: int = 1, delete: bool = True) -> int:
        """Send writes that start the gang, each of which takes this time. Returns how many were sent."""

        async def submit(*_: Any) -> int:
            for _write in range(writes):
                await self.guard.confirm()
                self.writes += 1
                self.moments[1] += write_s
            return self.writes

        service = SimpleNamespace(submit=submit)
        gangs: Any = SimpleNamespace(
            key=SimpleNamespace(dag_id="d", task_id="t"),
            call=lambda action: asyncio.run(action(service)),
            end=lambda _, *, why: self.ended.append(why),
            log=LOG,
        )
        submitted: Any = TaskGangs.submit(gangs, None, None, self.guard, delete=delete)
        return int(submitted)


@pytest.mark.parametrize(("wall_s", "monotonic_s"), [(LATE_S, 0.0), (0.0, LATE_S), (-600.0, LATE_S), (LATE_S, LATE_S)])
def test_clock_that_shows_the_longest_time_counts(wall_s: float, monotonic_s: float) -> None:
    one = Try()
    one.moments = [1000.0 + wall_s, monotonic_s]

    assert one.guard.is_due()


def test_quick_submission_asks_nothing() -> None:
    one = Try()
    one.moments = [1000.0 + CONFIRMED_FOR_S, CONFIRMED_FOR_S]

    assert (one.submit(), one.questions) == (1, 0)


def test_time_counts_from_the_start_of_the_try() -> None:
    assert Try(started=datetime.fromtimestamp(1000.0 - LATE_S, UTC)).guard.is_due()
    assert not Try(started=datetime.fromtimestamp(1000.0 + LATE_S, UTC)).guard.is_due()


def test_late_submission_continues_if_the_try_runs() -> None:
    one = Try(answer=True)
    one.moments[1] += LATE_S

    assert (one.submit(), one.questions, one.ended) == (1, 1, [])


def test_late_submission_asks_directly_before_each_write_and_sends_no_write_twice() -> None:
    one = Try(answer=True)
    one.moments[1] += LATE_S

    assert (one.submit(writes=3, write_s=LATE_S), one.questions, one.ended) == (3, 4, [])


@pytest.mark.parametrize("late_s", [0.0, LATE_S])
def test_question_that_is_always_asked_does_not_depend_on_the_clock(late_s: float) -> None:
    one = Try(answer=True)
    one.moments[1] += late_s

    asyncio.run(one.guard.confirm(always=True))

    assert (one.questions, one.guard.is_due()) == (1, False)


@pytest.mark.parametrize("delete", [True, False], ids=["on_kill deletes", "on_kill keeps"])
def test_late_submission_of_an_ended_try_starts_nothing(delete: bool) -> None:
    one = Try(answer=False)
    one.moments[1] += LATE_S

    with pytest.raises(SubmissionFailed, match=r"submission of task \S+ failed .* Airflow has ended this try"):
        one.submit(delete=delete)
    assert (one.writes, len(one.ended)) == (0, int(delete))


def test_late_submission_starts_nothing_and_ends_nothing_if_airflow_does_not_answer() -> None:
    one = Try(answer=None)
    one.moments[1] += LATE_S

    with pytest.raises(SubmissionFailed, match="does not say whether this try still runs"):
        one.submit()
    assert (one.writes, one.ended) == (0, [])


@pytest.mark.parametrize(("answer", "ended"), [(True, 0), (None, 0), (False, 1)])
def test_gang_that_started_while_the_process_was_stopped_is_ended_only_if_the_try_has_ended(
    answer: bool | None, ended: int
) -> None:
    one = Try(answer=answer)

    try:
        assert one.submit(write_s=LATE_S) == 1
    except SubmissionFailed:
        assert answer is False
    assert len(one.ended) == ended
