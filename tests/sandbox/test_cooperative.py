"""Cooperative work: other tasks run at the end of a time slice, and only then."""

import asyncio

import pytest

from gangjobs_sandbox.cooperative import TimeSlice, run_to_completion

STEPS = 3
FOR_EVER_S = 1e9


def steps(told, *, fails=False):
    for number in range(STEPS):
        told.append(f"step {number}")
        yield
    if fails:
        raise LookupError("gone")
    return "done"


async def worked(duration_s):
    """The order of what happened while another task was ready to run all the time."""
    told = []

    async def somebody_else():
        while True:
            told.append("else")
            await asyncio.sleep(0)

    other = asyncio.create_task(somebody_else())
    assert await TimeSlice(duration_s).run(steps(told)) == "done"
    other.cancel()
    return told


async def test_other_tasks_run_when_the_time_slice_is_over():
    assert await worked(0) == ["step 0", "else", "step 1", "else", "step 2", "else"]


async def test_work_goes_on_until_the_time_slice_is_over():
    assert await worked(FOR_EVER_S) == ["step 0", "step 1", "step 2"]


def test_work_without_interruption_has_the_same_result():
    told = []
    assert run_to_completion(steps(told)) == "done"
    assert told == ["step 0", "step 1", "step 2"]


async def test_error_of_the_work_comes_out():
    with pytest.raises(LookupError, match="gone"):
        await TimeSlice(0).run(steps([], fails=True))
    with pytest.raises(LookupError, match="gone"):
        run_to_completion(steps([], fails=True))
