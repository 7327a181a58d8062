"""A user kills a deferred task: its gang is deleted, and nobody else's ever.

Airflow calls `on_kill` also when a trigger merely moved to another triggerer (airflow#73454), when its
event is already on the way, and after the next try has taken the gang over. So the task's state is read
again, and the claim on the Job. What cannot be found out leaves the gang alone: the next try adopts it,
while a gang that was deleted by mistake is hours of work gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.utils.state import TaskInstanceState
from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.triggers.args import Watch

KILL_TIMEOUT_S: Final = 120.0
"""Airflow waits 30 s for `on_kill`, and what has begun goes on without it. The first question about a task's state
makes a triggerer load Airflow's API: on a busy machine that took half a minute, and left a gang that nobody wanted."""


_under_way: Final[set[asyncio.Task[bool]]] = set()
"""A running task that nobody refers to may be collected as garbage."""


async def kill_undisturbed(watch: Watch, task_instance: Any, log: Logger) -> None:
    """As `kill`, but once begun it is carried on although the caller is cancelled.

    Airflow 3.3 repeats the cancellation at every sync, about once a second, until the trigger has ended
    (`to_cancel` of the triggerer's supervisor), and each one interrupts `on_kill` for good.
    """
    task = asyncio.create_task(kill(watch, task_instance, log), name=f"kill {watch.ref}")
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    await asyncio.shield(task)


async def kill(watch: Watch, task_instance: Any, log: Logger) -> bool:
    """Delete the gang if its task is no longer deferred and still answers for it. Tells whether it did.

    Safe to repeat. Never raises, except for cancellation.
    """
    if not watch.delete_on_kill:
        log.info("Task killed; gang %s is kept, as on_kill says", watch.ref)
        return False
    try:
        async with asyncio.timeout(KILL_TIMEOUT_S):
            if await _is_still_deferred(task_instance):
                log.info("The task is still deferred, so another triggerer waits for gang %s now", watch.ref)
                return False
            deleted = await _delete(watch)
    except Exception:
        log.exception("Gang %s is left alone, because it is not certain that it may be deleted", watch.ref)
        return False
    log.info("Task killed; gang %s %s", watch.ref, "is deleted" if deleted else "is left to its present owner")
    return deleted


async def _delete(watch: Watch) -> bool:
    async with watch.hook.connect() as gangs:
        return await gangs.delete_claimed(watch.ref, watch.claim)


async def _is_still_deferred(task_instance: Any) -> bool:
    """Whether the task waits, for us or for another triggerer's run of the same trigger.

    A task instance that Airflow no longer has, because its run was deleted, waits for nothing.

    Raises:
        LookupError: the trigger was not told which task instance it serves.
    """
    if task_instance is None:
        raise LookupError("the trigger was not told which task instance it serves")
    states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=task_instance.dag_id,
        task_ids=[task_instance.task_id],
        run_ids=[task_instance.run_id],
        map_index=task_instance.map_index,
    )
    return TaskInstanceState.DEFERRED in states.get(task_instance.run_id, {}).values()
