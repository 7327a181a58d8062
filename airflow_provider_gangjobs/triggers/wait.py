"""Follow a gang until there is something to tell, and tell it as an event, whatever happens.

Used by the triggers, and by the operator when it waits in the worker. Only cancellation escapes:
a trigger that raises, or ends without an event, fails its task without a word of why.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status, gang_event
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.hooks.event_loop import run
from airflow_provider_gangjobs.triggers.phase_log import PhaseLog

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.tracking.follow import Until
    from airflow_provider_gangjobs.triggers.args import Watch

EXECUTION_TIMEOUT = "Deadline.execution"
"""Reason of the event when the task's own `execution_timeout` has passed."""


async def event_of(watch: Watch, until: Until, log: Logger) -> GangEvent:
    """The event that the gang runs, or has ended, or that this cannot be found out; with what the watch knows."""
    event = await _told(watch, until, log)
    attempt = watch.attempt if event.attempt is None else event.attempt
    return replace(event, attempt=attempt, disruptions=watch.disruptions)


async def _told(watch: Watch, until: Until, log: Logger) -> GangEvent:
    phases = PhaseLog(log)
    try:
        async with asyncio.timeout(_remaining_s(watch)) as limit:
            return await watch.hook.afollow(watch.ref, until=until, deadlines=watch.deadlines, report=phases)
    except TimeoutError:
        if limit.expired():
            return _timed_out(watch, phases)
        log.exception("Waiting for gang %s failed", watch.ref)
        return _unknown(watch, phases, "TimeoutError", "")
    except Exception as error:
        log.exception("Waiting for gang %s failed", watch.ref)
        # Other libraries' messages may hold anything, credentials included; the log is where they belong.
        said = str(error) if isinstance(error, GangJobError) else "The trigger's log has the details"
        return _unknown(watch, phases, type(error).__name__, said)


def wait_in_worker(watch: Watch, log: Logger) -> GangEvent:
    """The event of the gang's end, waited for here, on a loop of its own."""
    return run(_on_own_loop(watch, log))


async def _on_own_loop(watch: Watch, log: Logger) -> GangEvent:
    from airflow_provider_gangjobs.cluster.informer import informers

    try:
        return await event_of(watch, "ended", log)
    finally:
        await informers().aclose()  # they would linger for gangs to come, but this loop ends


def _remaining_s(watch: Watch) -> float | None:
    return None if watch.deadline is None else max(0.0, watch.deadline - time.time())


def _timed_out(watch: Watch, phases: PhaseLog) -> GangEvent:
    last = phases.last
    return gang_event(
        watch.ref,
        Status.TIMEOUT,
        last.phase if last else Phase.SUBMITTED,
        reason=EXECUTION_TIMEOUT,
        message=last.line if last else "",
        remedy="Raise execution_timeout of the task.",
        since=last.since if last else None,
        seconds=watch.execution_timeout_s,
        counts=last.counts if last else None,
    )


def _unknown(watch: Watch, phases: PhaseLog, reason: str, message: str) -> GangEvent:
    phase = phases.last.phase if phases.last else Phase.SUBMITTED
    return gang_event(watch.ref, Status.ERROR, phase, reason=reason, message=message)
