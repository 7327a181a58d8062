"""The programs of a gang are restarted in place while a worker or a triggerer stops at each of its requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.deferral import XCOM_END
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from gangjobs_sandbox.resources import JOBS
from tests.guarantees.schedules import APPLIED, ASLEEP_S, LONG_S, SHORT_S, at_each_request, jobs_created, running_ranks
from tests.provider.test_log_channel import line
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from tests.guarantees.processes import Process
    from tests.guarantees.simulated_airflow import SimulatedAirflow

pytestmark = in_virtual_time

FIRST, SECOND = ({"number": number, "rank": number % 2, "kind": "exit", "code": 2 + number} for number in (1, 2))
SUMMARY = {
    "restarts": [{**one, "took_s": 1.5} for one in (FIRST, SECOND)],
    "restarts_total": 2,
    "stopped_s": 3,
    "lost_s": 2,
}
RESTARTED = (
    line("restart", "Rank 1 has failed.", **FIRST) + line("restarted", "All ranks run again.", number=1, took_s=1.5),
    line("restart", "Rank 0 has failed.", **SECOND) + line("restarted", "All ranks run again.", number=2, took_s=1.5),
)
PARAMETERS: dict[str, Any] = {"command": ["train"], "restarts": 3, "stream_logs": [0]}


class Restarts:
    """Lets rank 0 write that the programs were restarted twice, in equal times of a run."""

    def __init__(self, run_s: float) -> None:
        self._pause_s = run_s / 3 - 1
        self._writing: list[asyncio.Task[None]] = []

    async def begin(self, airflow: SimulatedAirflow) -> None:
        self._writing.append(asyncio.create_task(self._write(airflow)))

    async def _write(self, airflow: SimulatedAirflow) -> None:
        await airflow.until(lambda: running_ranks(airflow) == 2)
        (job,) = airflow.plane.registry.list(JOBS)
        pod = airflow.plane.pod(job["metadata"]["labels"][LABEL_GANG], 0)["metadata"]["name"]
        for text in (*RESTARTED, line("summary", "The programs have been restarted twice.", **SUMMARY)):
            await asyncio.sleep(self._pause_s)
            airflow.plane.write(pod, text)


def check_end(airflow: SimulatedAirflow) -> None:
    """Check that the task has one gang, whose end tells each restart once."""
    end = airflow.xcoms[XCOM_END]
    assert (airflow.ti.state, airflow.ti.try_number, jobs_created(airflow)) == ("success", 1, 1)
    assert (end["restarts_total"], end["restarts_max"]) == (2, 3)
    assert [(one["number"], one["rank"], one["code"], one["took_s"]) for one in end["restarts"]] == [
        (1, 1, 3, 1.5),
        (2, 0, 4, 1.5),
    ]
    assert end["time_use"]["lost_s"] == 2


@APPLIED
@pytest.mark.parametrize(
    ("run_s", "end_from_trigger"),
    [
        pytest.param(SHORT_S, False, id="the gang has ended-ends in a worker", marks=pytest.mark.slow),
        pytest.param(SHORT_S, True, id="the gang has ended-ends in the triggerer"),
        pytest.param(LONG_S, False, id="the gang runs-ends in a worker", marks=pytest.mark.slow),
        pytest.param(LONG_S, True, id="the gang runs-ends in the triggerer", marks=pytest.mark.slow),
    ],
)
async def test_triggerer_that_stops_leaves_all_restarts_to_the_next_one(
    simulated: Any, applied: bool, run_s: float, end_from_trigger: bool
) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await asyncio.sleep(ASLEEP_S)
        process.wake()
        await airflow.settled(0)
        check_end(airflow)

    options = {**PARAMETERS, "run_s": run_s, "end_from_trigger": end_from_trigger}
    await at_each_request(simulated, "triggerer-0", disturb, applied=applied, begin=Restarts(run_s).begin, **options)


@APPLIED
async def test_worker_that_stops_after_the_gang_reports_no_restart_twice(simulated: Any, applied: bool) -> None:
    async def disturb(airflow: SimulatedAirflow, process: Process) -> None:
        await asyncio.sleep(ASLEEP_S)
        process.wake()
        await airflow.settled(0)
        assert (airflow.ti.state, jobs_created(airflow)) == ("success", 1)
        assert [one["number"] for one in airflow.xcoms[XCOM_END]["restarts"]] == [1, 2]

    await at_each_request(simulated, "worker-1", disturb, applied=applied, begin=Restarts(SHORT_S).begin, **PARAMETERS)
