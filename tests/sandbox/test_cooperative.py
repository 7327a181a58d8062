"""Cooperative work: other tasks run at the end of a time slice, and not before."""

import asyncio

import pytest

from gangjobs_sandbox.cooperative import TimeSlice, run_to_completion

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
