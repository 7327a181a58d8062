"""A notification is never lost, and never delivered twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from airflow_provider_gangjobs.cluster.informer import Notification
from airflow_provider_gangjobs.cluster.loop_local import WAKEUPS_PER_ITERATION_MAX


async def test_notification_before_a_wait_ends_one_wait() -> None:
    wake = Notification()
    wake.notify()
    wake.notify()
    assert await wake.wait()
    assert not await wake.wait(0)


async def test_waiter_is_woken() -> None:
    wake = Notification()
    sleeper = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    wake.notify()
    assert await sleeper
    assert not await wake.wait(0)


async def test_notification_of_a_cancelled_waiter_reaches_the_next() -> None:
    wake = Notification()
    sleeper = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    wake.notify()
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert await wake.wait()


async def test_wait_after_a_timeout_works() -> None:
    wake = Notification()
    assert not await wake.wait(0)
    wake.notify()
    assert await wake.wait(0)


async def test_second_waiter_is_refused() -> None:
    wake = Notification()
    sleeper = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await wake.wait()
    wake.notify()
    assert await sleeper


class Rounds:
    """Counts the rounds of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        self._next.cancel()


async def _asleep(wakes: list[Notification], woken: list[tuple[int, int]], rounds: Rounds) -> list[asyncio.Task[None]]:
    """Start waiters that record their number and the round in which they were woken."""

    async def sleep(number: int, wake: Notification) -> None:
        await wake.wait(60)
        woken.append((number, rounds.number))

    tasks = [asyncio.create_task(sleep(*each)) for each in enumerate(wakes)]
    await asyncio.sleep(0)
    return tasks


async def test_many_waiters_wake_in_order_over_several_iterations() -> None:
    wakes, woken, rounds = [Notification() for _ in range(10 * WAKEUPS_PER_ITERATION_MAX)], [], Rounds()
    tasks = await _asleep(wakes, woken, rounds)
    for wake in wakes:
        wake.notify()
    await asyncio.gather(*tasks)
    rounds.stop()
    assert [number for number, _ in woken] == list(range(len(wakes)))
    assert max(Counter(in_round for _, in_round in woken).values()) == WAKEUPS_PER_ITERATION_MAX
    assert woken[-1][1] - woken[0][1] == 9, "waiters were woken in each round"


async def test_due_timer_runs_before_all_waiters_are_woken() -> None:
    wakes, woken, rounds = [Notification() for _ in range(10 * WAKEUPS_PER_ITERATION_MAX)], [], Rounds()
    tasks = await _asleep(wakes, woken, rounds)
    for wake in wakes:
        wake.notify()
    woken_before: list[int] = []
    asyncio.get_running_loop().call_later(0, lambda: woken_before.append(len(woken)))
    await asyncio.gather(*tasks)
    rounds.stop()
    assert woken_before[0] <= 2 * WAKEUPS_PER_ITERATION_MAX


async def test_cancelled_waiter_does_not_count_towards_the_limit() -> None:
    wakes, woken, rounds = [Notification() for _ in range(2 * WAKEUPS_PER_ITERATION_MAX)], [], Rounds()
    tasks = await _asleep(wakes, woken, rounds)
    for task in tasks[WAKEUPS_PER_ITERATION_MAX:-1]:
        task.cancel()
    for wake in wakes:
        wake.notify()
    await asyncio.gather(*tasks, return_exceptions=True)
    rounds.stop()
    assert len(woken) == WAKEUPS_PER_ITERATION_MAX + 1
    assert woken[-1][1] - woken[0][1] == 1


async def test_second_notification_before_the_wake_up_is_merged() -> None:
    """A notification during a pending wake-up causes no further wake-up."""
    wake, crowd = Notification(), [Notification() for _ in range(WAKEUPS_PER_ITERATION_MAX)]
    rounds, woken = Rounds(), []
    tasks = await _asleep([*crowd, wake], woken, rounds)
    for each in (*crowd, wake, wake):
        each.notify()
    await asyncio.gather(*tasks)
    rounds.stop()
    assert not await wake.wait(0)
