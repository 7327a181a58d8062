"""A user kills a deferred task: its gang is deleted if it is live, and no other gang is.

Airflow calls `on_kill` also when a trigger merely moved to another triggerer (airflow#73454), when another triggerer
has written its event, and after the next try has taken the gang over. So the task's state is read again (`is_kill`),
and then the Job (`kill_of`): whether it has ended, and who answers for it. What cannot be found out leaves the gang
alone: the next try adopts it, while a gang that was deleted by mistake is hours of work gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

from airflow_provider_gangjobs.hooks.task_state import Stateless, is_kill, read_state
from airflow_provider_gangjobs.submission.ending import Killed

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.triggers.args import TriggerArgs

KILL_TIMEOUT_S: Final = 120.0
"""Airflow waits 30 s for `on_kill`, and what has begun goes on without it. The first question about a task's state
makes a triggerer load Airflow's API: on a busy machine that took half a minute, and left a gang that nobody wanted."""


_under_way: Final[set[asyncio.Task[Killed | None]]] = set()
"""A running task that nobody refers to may be collected as garbage."""


async def kill_shielded(args: TriggerArgs, task_instance: Any, log: Logger) -> None:
    """As `kill`, but once begun it is carried on although the caller is cancelled.

    Airflow 3.3 repeats the cancellation at every sync, about once a second, until the trigger has ended
    (`to_cancel` of the triggerer's supervisor), and each one interrupts `on_kill` for good.
    """
    task = asyncio.create_task(kill(args, task_instance, log), name=f"kill {args.ref}")
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    await asyncio.shield(task)


async def kill(args: TriggerArgs, task_instance: Any, log: Logger) -> Killed | None:
    """Delete the gang if its task was killed, it is live, and its task instance still answers for it.

    A gang that has ended is kept, with its ledger. The outcomes that are not in the ledger yet are recorded, and the
    pods are let go, as the trigger would have done. Returns what was done, or None if nothing was or it is not known.

    Safe to repeat. Never raises, except for cancellation.
    """
    if not args.delete_on_kill:
        log.info("Task killed; gang %s is kept, as on_kill says", args.ref)
        return None
    try:
        async with asyncio.timeout(KILL_TIMEOUT_S):
            state = await sync_to_async(read_state)(task_instance, RuntimeTaskInstance.get_task_states, log)
            if not is_kill(state):
                log.info("The task is %s, so it was not killed: %s", state, _OWNERS.get(state, _OWNER) % args.ref)
                return None
            async with args.hook.connect() as gangs:
                killed = await gangs.kill(args.ref, args.claim)
            if killed is Killed.ENDED:
                await args.hook.afollow(args.ref)
    except Exception:
        log.exception("Gang %s may still be there, because it is not certain that it may be deleted", args.ref)
        return None
    log.info("Task killed; gang %s %s", args.ref, _SAID[killed])
    return killed


_OWNER: Final = "gang %s is left to its task"
_OWNERS: Final = {
    "deferred": "another triggerer waits for gang %s now",
    Stateless.UNKNOWN: "gang %s is left alone, because it is not certain that it may be deleted",
}
_SAID: Final = {
    Killed.DELETED: "is deleted",
    Killed.ENDED: "has ended, and is kept",
    Killed.SPARED: "is gone, or left to its present owner",
}
