"""A coroutine that is run from blocking code: its result, its errors, and what a signal does to the wait."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.service import gangs
from airflow_provider_gangjobs.service.gangs import EventLoopThread, run
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ALARM_S = 0.1


class Alarm(BaseException):
    """The timeout of a test. Like `AirflowTaskTimeout`, it is not derived from `Exception`."""


@contextmanager
def alarm(after_s: float = ALARM_S) -> Iterator[None]:
    """Raise `Alarm` in the main thread by a signal handler, as the `timeout` of Airflow does."""

    def handler(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def value() -> int:
    await asyncio.sleep(0)
    return 7


async def failure() -> None:
    raise LookupError("nothing")


def test_result_is_returned() -> None:
    assert run(value()) == 7


def test_error_is_raised() -> None:
    with pytest.raises(LookupError, match="nothing"):
        run(failure())


async def test_loop_may_run_in_the_calling_thread() -> None:
    assert run(value()) == 7


def test_context_of_the_caller_is_seen() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(3)

    async def read() -> int:
        return variable.get()

    assert run(read()) == 3


def test_alarm_ends_the_wait_and_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            ended.append(threading.current_thread().name)

    with pytest.raises(Alarm), alarm():
        run(work())
    assert ended == ["gangjobs"]


def test_alarm_is_not_lost_in_a_busy_loop() -> None:
    """In an event loop of the main thread, the callback that runs at the moment would get the exception."""

    def work_on() -> None:
        asyncio.get_running_loop().call_soon(work_on)

    async def work() -> None:
        work_on()
        await asyncio.sleep(600)

    with pytest.raises(Alarm), alarm():
        run(work())


def test_work_that_does_not_stop_does_not_keep_the_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangs, "STOP_WITHIN_S", 0.05)
    released = threading.Event()

    async def work() -> None:
        released.wait()

    with pytest.raises(Alarm), alarm():
        run(work())
    released.set()


def test_signal_handler_may_run_another_coroutine() -> None:
    """The handler of SIGTERM of Airflow calls `on_kill`."""
    seen: list[int] = []
    handled = threading.Event()

    def handler(*_: Any) -> None:
        seen.append(run(value()))
        handled.set()

    async def work() -> str:
        await asyncio.to_thread(handled.wait)
        return "done"

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)
        assert (run(work()), seen) == ("done", [7])
    finally:
        signal.signal(signal.SIGALRM, before)


def test_coroutines_of_one_thread_share_a_loop_and_its_contexts() -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        yield
        seen.append(asyncio.get_running_loop())

    async def call() -> None:
        if not seen:
            await thread.contexts.enter_async_context(client())
        seen.append(asyncio.get_running_loop())

    thread = EventLoopThread()
    thread.run(call())
    thread.run(call())
    thread.close()
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_signal_handler_may_cancel_what_it_interrupts_and_use_another_loop() -> None:
    """The method `on_kill` of the operator does this."""
    thread = EventLoopThread()
    seen: list[int] = []

    def handler(*_: Any) -> None:
        thread.cancel(within_s=TIMEOUT_S)
        seen.append(run(value()))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)
        with pytest.raises(asyncio.CancelledError):
            thread.run(asyncio.sleep(600))
    finally:
        signal.signal(signal.SIGALRM, before)
        thread.close()
    assert seen == [7]


def test_closed_thread_refuses_coroutines() -> None:
    thread = EventLoopThread()
    thread.run(value())
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(value())


def test_thread_that_was_never_used_closes() -> None:
    EventLoopThread().close()
