"""The fixture of the schedules: a control plane in virtual time, with a task of a simulated Airflow on it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time import task_runner

from airflow_provider_gangjobs.attempt.task_gangs import StartGuard
from airflow_provider_gangjobs.attempt.triggerer import gang_start
from tests.guarantees.schedules import SHORT_S
from tests.guarantees.simulated_airflow import Programs, SimulatedAirflow
from tests.provider.virtual_control_plane import VirtualControlPlane
from tests.provider.virtual_time import START

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime


def virtual_guard(is_running: Any, *, started: Any) -> StartGuard:
    """Return a guard that counts in virtual time from now."""
    return StartGuard(is_running, started=None, clocks=(asyncio.get_running_loop().time,))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a control plane, a task on it, and programs that run for `run_s` seconds."""
    monkeypatch.setenv("AIRFLOW__GANGJOBS__INSTALLATION_ID", "simulated")
    monkeypatch.setenv("AIRFLOW__GANGJOBS__SWEEP_GRACE", "60")
    monkeypatch.setattr(gang_start, "StartGuard", virtual_guard)

    @asynccontextmanager
    async def run(
        *, run_s: float = SHORT_S, starts_at: datetime = START, **options: Any
    ) -> AsyncIterator[SimulatedAirflow]:
        async with VirtualControlPlane.running(starts_at=starts_at) as plane:
            extra = {"kube_config": plane.config.kube_config}
            monkeypatch.setenv("AIRFLOW_CONN_VIRTUAL", json.dumps({"conn_type": "kubernetes", "extra": extra}))
            plane.registry.observe(Programs(plane, run_s).observe)
            async with SimulatedAirflow.running(plane, **options) as airflow:
                monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow, raising=False)
                yield airflow

    return run
