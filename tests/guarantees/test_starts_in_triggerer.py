"""A triggerer that starts the gang of a task is stopped at each of its requests, and continues later or never.

The trigger runs in two triggerers if the first one continues while the second one has the trigger.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.resources import JOBS
from tests.crashes import Crash
from tests.guarantees.schedules import (
    APPLIED,
    ASLEEP_S,
    LONG_S,
    SHORT_S,
    SWEPT_WITHIN_S,
    at_each_request,
    finish,
    follow_another_gang,
    is_stopped,
    jobs_created,
    running_ranks,
    sweep_in_its_process,
)
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from tests.guarantees.processes import Process
    from tests.guarantees.simulated_airflow import SimulatedAirflow

pytestmark = in_virtual_time

LAST = 7
"""The request after those of a start: GET what the cluster serves, LIST Jobs, POST Job, Service, Workload and
PodGroup, PATCH the Job. The schedules of `test_schedules` stop a triggerer at the requests of a follower."""
START: Any = {"last": LAST, "in_triggerer": True}
MARKS = pytest.mark.parametrize("mark", ["failed", pytest.param("success", marks=pytest.mark.slow)])


async def test_undisturbed_task_has_one_gang_and_its_results(simulated: Any) -> None:
    async with simulated(in_triggerer=True) as airflow:
        await finish(airflow)

        assert airflow.ti.state == "success"
        assert jobs_created(airflow) == 1
        assert airflow.plane.history.tasks[-1].results == (0, 1)
        assert "POST jobs" in airflow.requests["triggerer-0"]
        assert "POST jobs" not in airflow.requests["worker-0"]


@APPLIED
@pytest.mark.parametrize("run_s", [SHORT_S, pytest.param(LONG_S, marks=pytest.mark.slow)])
async def test_triggerer_that_starts_wakes_after_another_one_has_the_trigger(
    simulated: Any, applied: bool, run_s: float
) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await asyncio.sleep(ASLEEP_S)
        process.wake()

    await at_each_request(simulated, "triggerer-0", disturb, applied=applied, run_s=run_s, **START)


@APPLIED
async def test_two_triggerers_start_the_same_gang(simulated: Any, applied: bool) -> None:
    """The first one wakes when the second one stops at the same request."""
    for at in range(LAST + 1):
        point = Crash(at, applied)
        async with simulated(stops={"triggerer-0": point, "triggerer-1": point}, in_triggerer=True) as airflow:
            await airflow.until(lambda: is_stopped(airflow, "triggerer-1") or airflow.ti.state == "success")
            assert is_stopped(airflow, "triggerer-1")
            airflow.named("triggerer-0").wake()
            await asyncio.sleep(2)
            airflow.named("triggerer-1").wake()
            await finish(airflow)
            assert (airflow.ti.state, jobs_created(airflow)) == ("success", 1), airflow.requests


@APPLIED
@MARKS
async def test_task_is_marked_while_its_gang_starts(simulated: Any, applied: bool, mark: str) -> None:
    """The triggerer stops for so short a time that Airflow does not notice, and then learns of the mark."""

    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        airflow.mark(mark)
        process.wake()

    await at_each_request(
        simulated, "triggerer-0", disturb, applied=applied, last=LAST, run_s=LONG_S, in_triggerer=True
    )


@APPLIED
async def test_task_is_cleared_while_its_gang_starts(simulated: Any, applied: bool) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        airflow.clear()
        process.wake()

    await at_each_request(simulated, "triggerer-0", disturb, applied=applied, **START)


@APPLIED
async def test_triggerer_wakes_after_the_task_was_cleared_and_has_ended(simulated: Any, applied: bool) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        airflow.clear()
        await airflow.until(lambda: airflow.ti.state == "success")
        process.wake()
        await asyncio.sleep(10)

    await at_each_request(simulated, "triggerer-0", disturb, applied=applied, **START)


@APPLIED
async def test_triggerer_that_wakes_after_its_task_has_ended_leaves_no_gang(simulated: Any, applied: bool) -> None:
    for at in range(LAST + 1):
        async with simulated(run_s=LONG_S, stops={"triggerer-0": Crash(at, applied)}, in_triggerer=True) as airflow:
            await airflow.until(lambda: is_stopped(airflow, "triggerer-0"))
            assert is_stopped(airflow, "triggerer-0")
            airflow.mark("failed")
            await asyncio.sleep(ASLEEP_S)
            airflow.named("triggerer-0").wake()
            await asyncio.sleep(30)

            assert not airflow.plane.registry.list(JOBS), f"stopped at {at}: {airflow.requests}"
            assert running_ranks(airflow) == 0


@APPLIED
async def test_gang_of_a_triggerer_that_stopped_during_the_start_is_ended_by_another_one(
    simulated: Any, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but the triggerer that is stopped knows the gang, whose task is marked as failed."""
    monkeypatch.setenv("AIRFLOW__GANGJOBS__SWEEP_GRACE", "900")
    sweep_in_its_process(monkeypatch)
    for at in range(LAST):  # the processes share one sweeper, which would stop at the request LAST
        async with simulated(run_s=LONG_S, stops={"triggerer-0": Crash(at, applied)}, in_triggerer=True) as airflow:
            follow_another_gang(airflow)
            await airflow.until(lambda: is_stopped(airflow, "triggerer-0"))
            assert is_stopped(airflow, "triggerer-0")
            airflow.mark("failed")
            await asyncio.sleep(SWEPT_WITHIN_S)

            assert [job["metadata"]["name"] for job in airflow.plane.registry.list(JOBS)] == ["other"], at
