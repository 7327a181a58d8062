"""Work in turns: others go on between two of them, and only then."""

import asyncio

import pytest

from gangjobs_sandbox.turns import Pace, at_once

STEPS = 3
FOR_EVER_S = 1e9


def steps(told, *, fails=False):
    for number in range(STEPS):
        told.append(f"step {number}")
        yield
    if fails:
        raise LookupError("gone")
    return "done"


async def worked(turn_s):
    """What happened in which order, while somebody else wanted to go on all the time."""
    told = []

    async def somebody_else():
        while True:
            told.append("else")
            await asyncio.sleep(0)

    other = asyncio.create_task(somebody_else())
    assert await Pace(turn_s).work(steps(told)) == "done"
    other.cancel()
    return told


async def test_others_go_on_when_a_turn_is_over():
    assert await worked(0) == ["step 0", "else", "step 1", "else", "step 2", "else"]


async def test_work_goes_on_while_its_turn_lasts():
    assert await worked(FOR_EVER_S) == ["step 0", "step 1", "step 2"]


def test_work_at_once_has_the_same_result():
    told = []
    assert at_once(steps(told)) == "done"
    assert told == ["step 0", "step 1", "step 2"]


async def test_error_of_the_work_comes_out():
    with pytest.raises(LookupError, match="gone"):
        await Pace(0).work(steps([], fails=True))
    with pytest.raises(LookupError, match="gone"):
        at_once(steps([], fails=True))
