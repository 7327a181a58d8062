"""Schedules: a task in a simulated Airflow, whose processes stop at chosen requests and continue later."""

from __future__ import annotations

import contextvars
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.triggerer import endings
from airflow_provider_gangjobs.ending.sweep import LOOK_EVERY_S
from airflow_provider_gangjobs.gang.state.ownership import ASK_AFTER, CONFIRM_AFTER
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger
from gangjobs_sandbox.resources import JOBS, PODS
from tests.crashes import Crash
from tests.guarantees.checkers import GRACE_S, check
from tests.guarantees.history import ChangeType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.guarantees.processes import Process
    from tests.guarantees.simulated_airflow import SimulatedAirflow

ASLEEP_S = 600.0
"""How long a process is stopped: longer than Airflow waits for a heartbeat, and than any request is retried."""
SETTLE_S = 300.0
AFTER_WAKING_S = 30.0
"""How long a worker that continues may take to end a gang whose task has ended."""
FOLLOW_REQUESTS = 3
"""How many requests a trigger sends to follow a gang that runs. The requests of a kill come next."""
SWEPT_WITHIN_S = ASK_AFTER.total_seconds() + CONFIRM_AFTER.total_seconds() + 2 * LOOK_EVERY_S
"""How long it takes until another triggerer has ended the gang of an ended task that nobody has ever followed."""
SHORT_S, LONG_S = 30.0, 720.0
"""How long the programs run: their gang has ended, or still runs, when a process wakes."""

APPLIED = pytest.mark.parametrize(
    "applied", [pytest.param(False, id="before"), pytest.param(True, id="after", marks=pytest.mark.slow)]
)


async def finish(airflow: SimulatedAirflow, *, grace_s: float = GRACE_S) -> None:
    """Let all stopped processes continue, wait for the end, and check the guarantees."""
    await airflow.settled(SETTLE_S)
    airflow.record()
    check(airflow.plane.history, grace_s=grace_s)


async def at_each_request(
    simulated: Any,
    name: str,
    disturb: Callable[[SimulatedAirflow, Process], Awaitable[None]],
    *,
    applied: bool,
    first: int = 0,
    last: int | None = None,
    begin: Callable[[SimulatedAirflow], Awaitable[None]] | None = None,
    stops: Mapping[str, Crash] | None = None,
    **options: Any,
) -> None:
    """Run a schedule for each request of the process of this name: the process stops there, and `disturb` is called.

    :param first: the number of the first request at which the process stops.
    :param last: the number of the last one. By default, it stops at all requests.
    :param begin: what happens before the process stops.
    :param stops: where other processes stop.
    """
    for at in count(first) if last is None else range(first, last + 1):
        point = Crash(at, applied)
        async with simulated(stops={**(stops or {}), name: point}, **options) as airflow:
            try:
                if begin is not None:
                    await begin(airflow)
                await airflow.until(lambda: is_stopped(airflow, name) or is_over(airflow))
                if not is_stopped(airflow, name):
                    assert at > first, f"{name} has no request {first}"
                    return
                await disturb(airflow, airflow.named(name))
                await finish(airflow)
            except BaseException as error:
                error.add_note(f"{name} was stopped {point}: {airflow.requests}")
                raise


def is_stopped(airflow: SimulatedAirflow, name: str) -> bool:
    process = airflow.named(name)
    return process is not None and process.stopped.is_set()


def is_over(airflow: SimulatedAirflow) -> bool:
    """Return whether the task has ended, and nothing of its gang is left to do."""
    return airflow.ti.state in {"success", "failed"} and not airflow.plane.registry.list(JOBS)


def running_ranks(airflow: SimulatedAirflow) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in airflow.plane.registry.list(PODS))


def jobs_created(airflow: SimulatedAirflow) -> int:
    return len([change for change in airflow.plane.history.of(JOBS) if change.type is ChangeType.ADDED])


def sweep_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sweeper belong to the process of its trigger and stop with it. By default it has a context of its own."""
    monkeypatch.setattr(endings, "contextvars", SimpleNamespace(Context=contextvars.copy_context))


def follow_another_gang(airflow: SimulatedAirflow) -> None:
    """Let another triggerer have a trigger for the gang of another task, so that it sweeps the namespace."""
    airflow._begin(_follow_another_gang(airflow), airflow.process("watcher"))


async def _follow_another_gang(airflow: SimulatedAirflow) -> None:
    ref = airflow.plane.submit("other", workers=1)
    known = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid, "claim": "other"}
    trigger = GangJobTrigger(kubernetes_conn_id="virtual", must_exist=True, installation="simulated", **known)
    trigger.task_instance = SimpleNamespace(  # type: ignore[assignment]
        id="other", dag_id="other", run_id="r", task_id="other", map_index=-1
    )
    async for _ in trigger.run():
        return
