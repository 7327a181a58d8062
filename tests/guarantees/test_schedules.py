"""A process is stopped at each request of a worker, a trigger, or a kill, and continues after another process.

Each schedule runs a task to its end in virtual time. The guarantees are checked on its history. A test tries each
request of a process in turn, before and after the API server applies the request, until the process has no such
request.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.resources import JOBS
from tests.crashes import Crash
from tests.guarantees.schedules import (
    AFTER_WAKING_S,
    APPLIED,
    ASLEEP_S,
    FOLLOW_REQUESTS,
    LONG_S,
    SHORT_S,
    at_each_request,
    finish,
    is_over,
    is_stopped,
    jobs_created,
    running_ranks,
)
from tests.guarantees.simulated_airflow import Terminated
from tests.provider.virtual_time import elapsed, in_virtual_time

if TYPE_CHECKING:
    from tests.guarantees.processes import Process
    from tests.guarantees.simulated_airflow import SimulatedAirflow

pytestmark = in_virtual_time


async def test_undisturbed_task_has_one_gang_and_its_results(simulated: Any) -> None:
    async with simulated() as airflow:
        await finish(airflow)

        assert airflow.ti.state == "success"
        assert jobs_created(airflow) == 1
        assert airflow.plane.history.tasks[-1].results == (0, 1)


@pytest.mark.parametrize(
    ("request_s", "questions"), [(1.0, 0), (4.5, 1), (12.0, 1), (31.0, 3)], ids=lambda value: f"{value:g}"
)
async def test_slow_api_server_delays_the_start_of_a_gang_and_does_not_prevent_it(
    simulated: Any, request_s: float, questions: int
) -> None:
    """Airflow is asked at most before the Job is created, before it is started, and after the start."""
    async with simulated(request_s=request_s) as airflow:
        await airflow.until(lambda: airflow.ti.state == "deferred", within_s=20 * request_s)
        # That Kueue is not served is read again when the answer is half a minute old.
        sent = [request for request in airflow.requests["worker-0"] if request != "GET /apis"]
        assert len(sent) == len(set(sent)), sent
        assert airflow.questions == questions

        await finish(airflow)

        assert (airflow.ti.state, airflow.ti.try_number, jobs_created(airflow)) == ("success", 1, 1)


@APPLIED
@pytest.mark.parametrize(
    ("run_s", "terminated"),
    [
        pytest.param(SHORT_S, False, id="the gang has ended", marks=pytest.mark.slow),
        pytest.param(LONG_S, True, id="the gang runs, and SIGTERM arrives"),
        pytest.param(SHORT_S, True, id="the gang has ended, and SIGTERM arrives", marks=pytest.mark.slow),
        pytest.param(LONG_S, False, id="the gang runs", marks=pytest.mark.slow),
    ],
)
async def test_worker_that_submits_wakes_after_the_next_try(
    simulated: Any, applied: bool, run_s: float, terminated: bool
) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await asyncio.sleep(ASLEEP_S)
        process.wake(terminate_with=Terminated if terminated else None)

    await at_each_request(simulated, "worker-0", disturb, applied=applied, run_s=run_s)


@APPLIED
async def test_try_takes_the_gang_of_a_worker_whose_clock_was_ahead(simulated: Any, applied: bool) -> None:
    """The id of the first try is later than that of the second one, until the second one asks Airflow."""

    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await asyncio.sleep(ASLEEP_S)
        assert (airflow.ti.state, airflow.ti.try_number, jobs_created(airflow)) == ("deferred", 2, 1)
        process.wake()

    await at_each_request(simulated, "worker-0", disturb, applied=applied, run_s=LONG_S, first_try_ahead_s=3600.0)


@APPLIED
async def test_worker_that_wakes_after_its_task_has_ended_leaves_no_gang(simulated: Any, applied: bool) -> None:
    for at in count():
        stops = {"worker-0": Crash(at, applied)}
        async with simulated(run_s=LONG_S, stops=stops) as airflow:
            await airflow.until(lambda: is_stopped(airflow, "worker-0") or airflow.ti.state == "deferred")
            if not is_stopped(airflow, "worker-0"):
                assert at > 0
                return
            airflow.mark("failed")
            await asyncio.sleep(ASLEEP_S)
            airflow.named("worker-0").wake()
            await asyncio.sleep(AFTER_WAKING_S)

            assert not airflow.plane.registry.list(JOBS), f"worker-0 was stopped {stops}: {airflow.requests}"
            assert running_ranks(airflow) == 0


@APPLIED
@pytest.mark.parametrize(
    "terminated",
    [pytest.param(False, id="wakes"), pytest.param(True, id="SIGTERM arrives", marks=pytest.mark.slow)],
)
async def test_worker_that_completes_wakes_after_the_next_try(simulated: Any, applied: bool, terminated: bool) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await asyncio.sleep(ASLEEP_S)
        process.wake(terminate_with=Terminated if terminated else None)

    await at_each_request(simulated, "worker-1", disturb, applied=applied)


@APPLIED
@pytest.mark.parametrize(
    "state",
    [
        "running",
        pytest.param("success", marks=pytest.mark.slow),
        pytest.param("deferred", marks=pytest.mark.slow),
        pytest.param("scheduled", marks=pytest.mark.slow),
    ],
)
async def test_triggerer_wakes_in_each_state_of_the_task(simulated: Any, applied: bool, state: str) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await airflow.until(lambda: airflow.named("triggerer-1"))
        await airflow.until(lambda: airflow.ti.state in {state, "success"})
        process.wake()
        await asyncio.sleep(10)

    # The worker that completes the task stops too, so that the triggerer wakes while the task runs.
    stops = {"worker-1": Crash(0, applied=False)} if state == "running" else {}
    await at_each_request(simulated, "triggerer-0", disturb, applied=applied, stops=stops)


@APPLIED
@pytest.mark.parametrize(
    "run_s",
    [pytest.param(SHORT_S, id="the gang has ended", marks=pytest.mark.slow), pytest.param(LONG_S, id="the gang runs")],
)
@pytest.mark.parametrize("mark", ["failed", pytest.param("success", marks=pytest.mark.slow)])
async def test_kill_wakes_after_the_task_was_cleared(simulated: Any, applied: bool, run_s: float, mark: str) -> None:
    async def kill(airflow: SimulatedAirflow) -> None:
        await airflow.until(lambda: running_ranks(airflow) == 2)
        airflow.mark(mark)

    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        airflow.clear()
        await asyncio.sleep(ASLEEP_S)
        process.wake()

    await at_each_request(
        simulated, "triggerer-0", disturb, applied=applied, first=FOLLOW_REQUESTS, begin=kill, run_s=run_s
    )


async def test_success_that_airflow_refuses_is_reported_by_the_next_try_of_one_gang(simulated: Any) -> None:
    async with simulated() as airflow:
        airflow.refused_reports = 1

        await finish(airflow)

        assert (airflow.ti.state, airflow.ti.try_number, jobs_created(airflow)) == ("success", 2, 1)


@pytest.mark.parametrize("kind", ["drop-after", pytest.param("drop-before", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE", pytest.param("GET", marks=pytest.mark.slow)])
async def test_answer_that_is_lost_changes_nothing(simulated: Any, method: str, kind: str) -> None:
    for skip in count():
        async with simulated() as airflow:
            airflow.plane.arm(kind, method=method, skip=skip)
            await finish(airflow)
            if not airflow.plane.faults.history:
                assert skip > 0
                return
            assert (airflow.ti.state, jobs_created(airflow)) == ("success", 1), f"{method} {skip} {kind}"


@pytest.mark.parametrize("refusals", [1, 3, None])
async def test_quota_of_configmaps_takes_no_result_away(simulated: Any, refusals: int | None) -> None:
    async with simulated() as airflow:
        for method in ("POST", "PATCH"):
            airflow.plane.arm(
                "status", method=method, path="/configmaps", code=403, message="exceeded quota", times=refusals
            )

        await finish(airflow)

        assert (airflow.ti.state, jobs_created(airflow)) == ("success", 1)


@pytest.mark.parametrize("ahead_s", [-600, 600], ids=["ten minutes ahead of the server", "ten minutes behind"])
@pytest.mark.parametrize(
    ("run_s", "state"), [(200.0, "success"), (400.0, "failed")], ids=["in time", "longer than run_timeout"]
)
async def test_time_limit_is_counted_by_the_clock_of_the_server(
    simulated: Any, ahead_s: float, run_s: float, state: str
) -> None:
    starts_at = datetime.now(UTC) + timedelta(seconds=ahead_s)
    async with simulated(run_s=run_s, starts_at=starts_at, run_timeout=300, retries=0) as airflow:
        await airflow.until(lambda: is_over(airflow) or airflow.ti.state == state)
        assert elapsed() == pytest.approx(min(run_s, 300), abs=30)

        await finish(airflow)

        assert airflow.ti.state == state


async def test_next_attempt_waits_for_the_pods_of_the_one_before(simulated: Any) -> None:
    async with simulated(run_s=LONG_S) as airflow:
        airflow.plane.stop_s = 60.0  # the grace period of the killed pods
        await airflow.until(lambda: running_ranks(airflow) == 2)
        airflow.mark("failed")
        await airflow.until(lambda: not airflow.plane.registry.list(JOBS))
        airflow.clear()

        await finish(airflow)

        assert airflow.ti.state == "success"


# -- ends in the triggerer -----------------------------------------------------------------------------------


async def ended_without_worker(airflow: SimulatedAirflow) -> None:
    """Finish, and check that the task has one gang, and its value."""
    await finish(airflow)
    assert (airflow.ti.state, jobs_created(airflow)) == ("success", 1)
    assert airflow.xcoms["return_value"] == [0, 1]


async def test_success_of_a_gang_ends_its_task_without_another_worker(simulated: Any) -> None:
    async with simulated(end_from_trigger=True) as airflow:
        await ended_without_worker(airflow)

        assert airflow.named("worker-1") is None
        assert not airflow.plane.registry.list(JOBS)


@APPLIED
@pytest.mark.parametrize(
    "asleep_s", [pytest.param(ASLEEP_S, id="long"), pytest.param(5.0, id="shortly", marks=pytest.mark.slow)]
)
async def test_triggerer_that_ends_a_task_stops_at_each_request(simulated: Any, applied: bool, asleep_s: float) -> None:
    """Another triggerer ends the task, and the stopped one pushes no XCom, unless it was about to."""

    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await asyncio.sleep(asleep_s)
        process.wake()
        await airflow.settled(10)
        assert airflow.named("worker-1") is None
        assert (airflow.ti.state, airflow.xcoms["return_value"]) == ("success", [0, 1])
        assert process.stops_at is not None
        next_ones = process.requests[process.stops_at.at : process.stops_at.at + 2]
        if not any(request.startswith("SetXCom") for request in next_ones):
            assert airflow.late_xcoms == []

    await at_each_request(simulated, "triggerer-0", disturb, applied=applied, end_from_trigger=True)


async def test_event_that_airflow_did_not_store_is_no_delivery(simulated: Any) -> None:
    async with simulated(end_from_trigger=True) as airflow:
        airflow.lost_events = 1

        await ended_without_worker(airflow)

        assert airflow.named("triggerer-1")


@APPLIED
@pytest.mark.parametrize(
    "action",
    ["clear", pytest.param("failed", marks=pytest.mark.slow), pytest.param("success", marks=pytest.mark.slow)],
)
async def test_user_acts_while_a_triggerer_ends_the_task(simulated: Any, applied: bool, action: str) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        if action == "clear":
            airflow.clear()
        else:
            airflow.mark(action)
        await asyncio.sleep(ASLEEP_S)
        process.wake()

    await at_each_request(
        simulated, "triggerer-0", disturb, applied=applied, first=FOLLOW_REQUESTS, end_from_trigger=True
    )


@pytest.mark.parametrize("method", ["PATCH", "DELETE", pytest.param("GET", marks=pytest.mark.slow)])
async def test_answer_that_is_lost_changes_no_end_in_the_triggerer(simulated: Any, method: str) -> None:
    for skip in count():
        async with simulated(end_from_trigger=True) as airflow:
            airflow.plane.arm("drop-after", method=method, skip=skip)
            await finish(airflow)
            if not airflow.plane.faults.history:
                assert skip > 0
                return
            assert (airflow.ti.state, jobs_created(airflow)) == ("success", 1), f"{method} {skip}"
