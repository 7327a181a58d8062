"""The controller manager: when keys are due, what happens after failures, and who runs meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.clock import SystemClock, VirtualClock
from gangjobs_sandbox.controllers import ControllerManager
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.cooperative import TimeSlice, run_to_completion
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.resources import CONFIGMAPS
from tests.timeouts import TIMEOUT_S

# -- The controller manager: when the keys of a controller are due, and what happens after failures ------------------


class Recorder:
    """A controller that records its keys, and fails on demand."""

    name = "recorder"

    def __init__(self, clock):
        self.queue = WorkQueue(clock)
        self.handled = []
        self.failure = None
        self.done = asyncio.Event()

    def observe(self, event):
        if event.resource is CONFIGMAPS:
            self.queue.add(event.obj["metadata"]["name"])

    def sync(self, key):
        if self.failure:
            raise self.failure
        self.handled.append(key)
        self.done.set()


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def registry(clock):
    return Registry(clock=clock)


def config_map(registry, name):
    registry.create(CONFIGMAPS, {"metadata": {"name": name}}, "default")


def test_key_is_returned_when_due(clock):
    queue = WorkQueue(clock)
    queue.add("a", after_s=5)
    assert queue.pop() is None
    clock.advance(5)
    assert queue.pop() == "a"
    assert queue.pop() is None


def test_earlier_time_wins(clock):
    queue = WorkQueue(clock)
    for after_s in (5, 2, 9):
        queue.add("a", after_s=after_s)
    clock.advance(2)
    assert queue.pop() == "a"
    clock.advance(10)
    assert queue.pop() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5))))
def test_keys_are_returned_in_order_of_due_times(additions):
    clock = VirtualClock()
    queue = WorkQueue(clock)
    earliest = {}
    for key, after_s in additions:
        queue.add(key, after_s=after_s)
        earliest[key] = min(after_s, earliest.get(key, after_s))
    came = []
    for second in range(6):
        while (key := queue.pop()) is not None:
            came.append((key, second))
        clock.advance(1)
    assert dict(came) == earliest
    assert len(came) == len(earliest)


def test_failures_back_off_until_forgotten(clock):
    queue = WorkQueue(clock, base_delay_s=1, max_delay_s=4)
    assert [queue.retry("a") for _ in range(4)] == [1, 2, 4, 4]
    queue.forget("a")
    assert queue.retry("a") == 1


def test_step_returns_whether_it_handled_keys(registry, clock):
    manager = ControllerManager(registry, clock, [Recorder(clock)])
    assert manager.step() is False
    config_map(registry, "a")
    assert manager.step() is True
    assert manager.step() is False


def test_next_due_is_the_earliest_due_time(registry, clock):
    first, second = Recorder(clock), Recorder(clock)
    manager = ControllerManager(registry, clock, [first, second])
    assert manager.next_due() is None
    first.queue.add("a", after_s=7)
    second.queue.add("b", after_s=3)
    assert (manager.next_due() - clock.now()).total_seconds() == 3


def test_failing_controller_does_not_stop_others(registry, clock):
    bad, good = Recorder(clock), Recorder(clock)
    bad.failure = ValueError("broken")
    manager = ControllerManager(registry, clock, [bad, good])
    config_map(registry, "a")
    manager.step()
    assert good.handled == ["a"]
    bad.failure = None
    clock.advance(1)
    manager.step()
    assert bad.handled == ["a"]


def test_same_failure_is_logged_once(registry, clock, caplog):
    controller = Recorder(clock)
    controller.failure = ValueError("broken")
    manager = ControllerManager(registry, clock, [controller])
    config_map(registry, "a")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            manager.step()
            clock.advance(60)
        controller.failure = ValueError("otherwise")
        manager.step()
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["broken", "otherwise"]


def test_closed_manager_receives_no_events(registry, clock):
    controller = Recorder(clock)
    manager = ControllerManager(registry, clock, [controller])
    manager.close()
    config_map(registry, "a")
    assert manager.step() is False


async def test_event_wakes_a_running_manager():
    registry = Registry(clock=SystemClock())
    controller = Recorder(SystemClock())
    async with running(ControllerManager(registry, SystemClock(), [controller])):
        await asyncio.sleep(0)
        config_map(registry, "a")
        await asyncio.wait_for(controller.done.wait(), TIMEOUT_S)
    assert controller.handled == ["a"]


async def test_due_time_wakes_a_running_manager():
    registry = Registry(clock=SystemClock())
    controller = Recorder(SystemClock())
    controller.queue.add("later", after_s=0.05)
    async with running(ControllerManager(registry, SystemClock(), [controller])):
        await asyncio.wait_for(controller.done.wait(), TIMEOUT_S)
    assert controller.handled == ["later"]


@contextlib.asynccontextmanager
async def running(manager):
    task = asyncio.create_task(manager.run(), name="manager")
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- Cooperative work: other tasks run at the end of a time slice, and not before ------------------------------------

STEPS = 3
FOR_EVER_S = 1e9


def steps(log, *, fails=False):
    for number in range(STEPS):
        log.append(f"step {number}")
        yield
    if fails:
        raise LookupError("gone")
    return "done"


async def execution_order(duration_s):
    """Return the order of execution while another task is always ready to run."""
    log = []

    async def other_task():
        while True:
            log.append("else")
            await asyncio.sleep(0)

    other = asyncio.create_task(other_task())
    assert await TimeSlice(duration_s).run(steps(log)) == "done"
    other.cancel()
    return log


async def test_other_tasks_run_when_the_time_slice_is_over():
    assert await execution_order(0) == ["step 0", "else", "step 1", "else", "step 2", "else"]


async def test_work_continues_until_the_time_slice_is_over():
    assert await execution_order(FOR_EVER_S) == ["step 0", "step 1", "step 2"]


def test_work_without_interruption_has_the_same_result():
    log = []
    assert run_to_completion(steps(log)) == "done"
    assert log == ["step 0", "step 1", "step 2"]


async def test_error_of_the_work_is_raised():
    with pytest.raises(LookupError, match="gone"):
        await TimeSlice(0).run(steps([], fails=True))
    with pytest.raises(LookupError, match="gone"):
        run_to_completion(steps([], fails=True))
