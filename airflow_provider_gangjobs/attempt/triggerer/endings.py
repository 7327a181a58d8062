"""Ends gangs from a triggerer: the gang of a deferred task that a user killed, and gangs that nobody follows any more.

Airflow calls `on_kill` also when a trigger merely moved to another triggerer (airflow#73454), when another triggerer
has written the event, and after the next try has adopted the gang. So the trigger reads the state of the task again
(`is_kill`), and then the Job: whether the gang has ended, and which task instance holds its claim. If a read fails, the
gang stays: the next try adopts the gang, while deleting a gang by mistake loses hours of work.

A triggerer has one sweeper for each connection, namespace and installation, which the first gang there starts. It
sweeps with the connections of the gangs that it follows, so the triggerers that have a gang in a namespace sweep it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter, defaultdict
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from airflow_provider_gangjobs.airflow_api.configuration import conf
from airflow_provider_gangjobs.airflow_api.task_state import (
    UNKNOWN,
    is_final_failure,
    is_kill,
    is_success,
    read_task_state,
)
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CONNECTION_MAX_AGE_S,
    CONNECTION_READ_FOR_S,
    shared_service,
)
from airflow_provider_gangjobs.cluster.loop_local import loop_local, run_in_background
from airflow_provider_gangjobs.ending.delete import Deletion, delete, finish_deletion, is_live_gang_of
from airflow_provider_gangjobs.gang.state.ownership import GRACE, TaskEnd
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.jobs.requests import RetryingRequests

if TYPE_CHECKING:
    import configparser
    from collections.abc import Coroutine, Iterator
    from contextlib import AbstractContextManager

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.service import GangService


KILL_TIMEOUT_S: Final = 120.0
"""Airflow waits 30 s for `on_kill`, and a kill that has begun goes on after that. The first request for the state of a
task makes a triggerer load the API of Airflow: on a busy machine this took half a minute, and a gang that nobody wanted
was left behind. A kill that waits for its turn is not limited."""
KILLS_AT_ONCE_MAX: Final = 16
RELEASES_AT_ONCE_MAX: Final = 8
"""Gangs whose pods are released at once. Releases do not delay deletions: a deleted gang ends by itself, and a sweep
releases what is left."""


async def run_shielded(kill: Coroutine[Any, Any, None]) -> None:
    """Run a kill in a task that goes on when the caller is cancelled.

    Airflow 3.3 repeats the cancellation at every sync, about once a second, until the trigger has ended
    (`to_cancel` of the triggerer's supervisor). Each cancellation would end `on_kill`.
    """
    await asyncio.shield(run_in_background(kill, name="kill"))


async def kill(args: TriggerArgs, task_instance: Any, log: Logger) -> None:
    """Delete the gang if its task was killed, the gang is live, and the task instance still holds the claim.

    A gang that has ended is kept with its ledger: the missing outcomes are recorded and the pods are released, as the
    trigger would have done. The function is safe to repeat. It never raises, except when it is cancelled.
    """
    if not args.delete_on_kill:
        log.info("Gang %s is kept, whether or not its task was killed, because on_kill is 'keep'", args.ref)
        return
    try:
        # All kills hold the shared client while they wait for their turn, so it is opened once.
        config = await args.hook.aconfig(max_age_s=CONNECTION_MAX_AGE_S)
        async with shared_service(config) as gangs:
            await _kill(gangs, config, args, task_instance, log)
    except Exception:
        what = "It is not known whether gang %s was deleted. If its task has ended, a sweep ends the gang"
        log.exception(what, args.ref)


async def _kill(gangs: GangService, config: ClusterConfig, args: TriggerArgs, task_instance: Any, log: Logger) -> None:
    """Kill as `kill` does.

    Raises:
        Exception: it is not certain whether the gang is deleted.
    """
    limits = loop_local(KillLimits)
    async with limits.kills, asyncio.timeout(KILL_TIMEOUT_S):
        state = await read_task_state(task_instance, log)
        if not is_kill(state, outlives_task=args.outlives_task):
            reason = _NOT_KILLED_BY_STATE.get(state, _NOT_KILLED) % args.ref
            log.info("The task was not killed (its state is %s): %s", state, reason)
            return
        requests = RetryingRequests(gangs.client, args.namespace)
        deletion = await delete(requests, args.ref, only_if=is_live_gang_of(args.claim))
    has_ended = deletion.kept is not None and deletion.kept.holds_claim(args.claim)
    log.info("The task was killed. Gang %s %s", args.ref, _result(deletion, has_ended=has_ended))
    try:
        async with limits.releases, asyncio.timeout(KILL_TIMEOUT_S):
            if has_ended:
                await args.hook.afollow(args.ref, config=config)
            else:
                await finish_deletion(gangs.client, args.ref, deletion)
    except Exception:
        log.exception("Some pods of gang %s may still be held. A sweep releases them", args.ref)


def _result(deletion: Deletion, *, has_ended: bool) -> str:
    if deletion.deleted is not None:
        return "is deleted"
    return "has ended and is kept" if has_ended else "is already gone, or another task instance holds its claim"


class KillLimits:
    """Limits of one event loop, for when thousands of tasks are killed at once."""

    def __init__(self) -> None:
        self.kills = asyncio.Semaphore(KILLS_AT_ONCE_MAX)
        self.releases = asyncio.Semaphore(RELEASES_AT_ONCE_MAX)


_NOT_KILLED: Final = "gang %s stays, and its task is responsible for it"
_NOT_KILLED_BY_STATE: Final = {
    "deferred": "another triggerer waits for gang %s",
    "success": "gang %s runs on after its task, because the task waited only for its start",
    UNKNOWN: "gang %s stays, because it is not certain that the task was killed",
}

log = logging.getLogger(__name__)


class _Place(Struct, frozen=True):
    """What one sweeper sweeps."""

    conn_id: str
    must_exist: bool
    namespace: str
    installation: str


class _Sweepers:
    """The sweepers of one event loop, and the gangs that the triggers of the loop follow."""

    def __init__(self) -> None:
        self._followed: defaultdict[_Place, Counter[GangRef]] = defaultdict(Counter)
        self._tasks: dict[_Place, asyncio.Task[None]] = {}

    @contextmanager
    def following(self, args: TriggerArgs) -> Iterator[None]:
        """Count a trigger as the follower of its gang during the block, and sweep the namespace of the gang."""
        place = _Place(args.kubernetes_conn_id, args.must_exist, args.namespace, args.installation)
        followed = self._followed[place]
        followed[args.ref] += 1
        self.sweep(place)
        try:
            yield
        finally:
            followed[args.ref] -= 1
            if not followed[args.ref]:
                del followed[args.ref]

    def sweep(self, place: _Place) -> None:
        """Sweep from now on."""
        if place in self._tasks:
            return
        # The task outlives the trigger, so it gets a context of its own: a triggerer routes log lines by the context of
        # the trigger.
        self._tasks[place] = asyncio.get_running_loop().create_task(
            self._sweep(place), name=f"sweeper of {place.namespace}", context=contextvars.Context()
        )

    def _is_followed(self, ref: GangRef) -> bool:
        return any(ref in followed for followed in self._followed.values())

    async def _sweep(self, place: _Place) -> None:
        from airflow_provider_gangjobs.cluster.clock import Clock
        from airflow_provider_gangjobs.ending.sweep import NamespaceSweeper, Sweep
        from airflow_provider_gangjobs.service import follow
        from airflow_provider_gangjobs.tracking.gang_watch import gang_of

        hook = GangJobHook(place.conn_id, must_exist=place.must_exist)

        async def follow_to_the_end(ref: GangRef) -> None:
            await follow(await hook.aconfig(), ref)

        try:
            sweep = Sweep(
                place.installation,
                is_followed=self._is_followed,
                ask=task_end,
                follow=follow_to_the_end,
                clock=Clock(monotonic=asyncio.get_running_loop().time),
                grace=sweep_grace(),
            )
            sweeper = NamespaceSweeper(
                sweep=sweep,
                namespace=place.namespace,
                read_config=lambda: hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S),
                followed=lambda: self._followed[place].keys(),
                index=gang_of,
            )
            await sweeper.run()
        except Exception as error:  # a secrets backend may raise anything, and its text may hold a credential
            log.warning(
                "Namespace %s is not swept any more until its next gang: %s", place.namespace, type(error).__name__
            )
            log.debug("The sweeper failed", exc_info=True)
        finally:
            del self._tasks[place]
            if not self._followed[place]:
                del self._followed[place]


def following(args: TriggerArgs) -> AbstractContextManager[None]:
    """Return a context manager that counts a trigger as the follower of its gang, and sweeps the gang's namespace."""
    return loop_local(_Sweepers).following(args)


def sweep_namespace(conn_id: str, namespace: str, *, must_exist: bool, installation: str) -> None:
    """Sweep a namespace from now on, because a trigger starts a gang there, which it may lose before it follows it."""
    loop_local(_Sweepers).sweep(_Place(conn_id, must_exist, namespace, installation))


def sweep_grace(config: configparser.ConfigParser = conf) -> timedelta:
    """Return `[gangjobs] sweep_grace`, or the default of the rules."""
    return timedelta(seconds=config.getint("gangjobs", "sweep_grace", fallback=int(GRACE.total_seconds())))


async def task_end(key: TaskKey) -> TaskEnd:
    """Return whether a task has ended, and how. A task that is gone has ended without success."""
    task = SimpleNamespace(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index)
    state = await read_task_state(task, cast("Logger", log))
    if state == UNKNOWN:
        return TaskEnd.UNKNOWN
    if is_success(state):
        return TaskEnd.SUCCEEDED
    if is_final_failure(state):
        return TaskEnd.ENDED
    return TaskEnd.CLEARED if is_kill(state) else TaskEnd.NOT_ENDED
