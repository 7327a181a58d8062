"""A gang that no triggerer has ever followed, because a user has ended its task, is ended by a triggerer soon.

Both ways were found in a real Airflow whose users mark tasks while processes are killed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.resources import JOBS
from tests.crashes import Crash
from tests.guarantees.schedules import (
    LONG_S,
    SWEPT_WITHIN_S,
    follow_another_gang,
    is_stopped,
    sweep_in_its_process,
)
from tests.guarantees.simulated_airflow import SimulatedAirflow
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = in_virtual_time

LAST = 6
"""The last request of a worker that submits a gang: PATCH the Job, which starts it."""


@pytest.fixture(autouse=True)
def default_grace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sweep_in_its_process(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setenv("AIRFLOW__GANGJOBS__SWEEP_GRACE", "900")
        yield


def gangs(airflow: SimulatedAirflow) -> list[str]:
    """Return the names of the Jobs, without that of the gang that is followed."""
    return [name for job in airflow.plane.registry.list(JOBS) if (name := job["metadata"]["name"]) != "other"]


async def test_gang_whose_deferral_was_refused_because_a_user_marked_the_task_is_ended_soon(simulated: Any) -> None:
    async with simulated(run_s=3 * LONG_S, stops={"worker-0": Crash(LAST, True)}) as airflow:
        follow_another_gang(airflow)
        await airflow.until(lambda: is_stopped(airflow, "worker-0"))
        airflow.mark("failed")
        airflow.named("worker-0").wake()
        await asyncio.sleep(SWEPT_WITHIN_S / 4)
        assert len(gangs(airflow)) == 1

        await airflow.until(lambda: not gangs(airflow), within_s=3 * SWEPT_WITHIN_S / 4)
        assert airflow.ti.state == "failed"


@pytest.mark.parametrize("marked_after_s", [0.0, 200.0, 400.0])
async def test_gang_whose_task_was_marked_before_a_triggerer_had_its_trigger_is_ended_soon(
    simulated: Any, monkeypatch: pytest.MonkeyPatch, marked_after_s: float
) -> None:
    async def never(*_: Any) -> None:
        """No triggerer takes up the trigger."""

    monkeypatch.setattr(SimulatedAirflow, "_run_trigger", never)
    async with simulated(run_s=3 * LONG_S) as airflow:
        follow_another_gang(airflow)
        await airflow.until(lambda: airflow.ti.state == "deferred")
        await asyncio.sleep(marked_after_s)
        assert len(gangs(airflow)) == 1
        airflow.mark("success")

        # An answer that the task has not ended holds as long as nobody had followed the gang.
        await airflow.until(lambda: not gangs(airflow), within_s=marked_after_s + SWEPT_WITHIN_S)
