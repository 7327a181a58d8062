"""The sweepers of a triggerer: one for each connection, namespace and installation, started by the first gang there.

A triggerer sweeps with the connections of the gangs that it follows, so the triggerers that have a gang in a namespace
sweep it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter, defaultdict
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from airflow_provider_gangjobs.airflow_api.configuration import conf
from airflow_provider_gangjobs.airflow_api.task_state import (
    AbsentState,
    is_final_failure,
    is_kill,
    is_success,
    read_task_state,
)
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import CONNECTION_READ_FOR_S
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.state.ownership import GRACE, TaskEnd
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

if TYPE_CHECKING:
    import configparser
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey

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
        from airflow_provider_gangjobs.ending.sweep.sweep import Sweep
        from airflow_provider_gangjobs.ending.sweep.sweeper import NamespaceSweeper
        from airflow_provider_gangjobs.service import follow
        from airflow_provider_gangjobs.tracking.watch.gang_watch import gang_of

        hook = GangJobHook(place.conn_id, must_exist=place.must_exist)

        async def follow_to_the_end(ref: GangRef) -> None:
            await follow(await hook.aconfig(), ref)

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
        try:
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
    if state == AbsentState.UNKNOWN:
        return TaskEnd.UNKNOWN
    if is_success(state):
        return TaskEnd.SUCCEEDED
    if is_final_failure(state):
        return TaskEnd.ENDED
    return TaskEnd.CLEARED if is_kill(state) else TaskEnd.NOT_ENDED
