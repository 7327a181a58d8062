"""Custody: the gangs that one try of a task answers for, and how it ends them.

They are found in the cluster, by the task's key and this try's claim, so that a kill works in any process
and at any moment, also between a request and its answer. What a signal handler needs is kept here: it
interrupts the main thread, which may be talking to Airflow, so it must not ask Airflow for anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.gang.spec import OnFinish
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.service import Gangs

T = TypeVar("T")


@dataclass(kw_only=True)
class Custody:
    """One try of one task, and the cluster that its gang is in."""

    hook: GangJobHook
    config: ClusterConfig = field(repr=False)
    key: TaskKey
    claim: str
    namespace: str | None
    """Where to look; the connection's namespace if not given."""
    log: Logger = field(repr=False)
    server_ahead_s: float = 0.0
    """How many seconds the API server's clock is ahead of the local one, as the last call has shown."""

    @classmethod
    def of(
        cls,
        conn_id: str,
        key: TaskKey,
        *,
        claim: str,
        namespace: str | None,
        log: Logger,
        retry_for_s: float = 0.0,
    ) -> Custody:
        """Read the connection now, so that nobody needs to later; for so long if it cannot be read."""
        hook = GangJobHook(conn_id)
        config = hook.config(retry_for_s=retry_for_s)
        return cls(hook=hook, config=config, key=key, claim=claim, namespace=namespace, log=log)

    def call(self, action: Callable[[Gangs], Awaitable[T]]) -> T:
        """Run a coroutine over the cluster's gangs, and block until it is done."""

        async def act(gangs: Gangs) -> T:
            try:
                return await action(gangs)
            finally:
                self.server_ahead_s = gangs.client.server_clock.ahead_s or self.server_ahead_s

        return self.hook.call(act, config=self.config)

    def is_live(self, ref: GangRef) -> bool | None:
        """Whether this gang still runs, as this worker sees it; `None` if that cannot be found out."""
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        try:
            return self.call(lambda gangs: gangs.is_live(ref))
        except ClusterError as error:
            self.log.warning("This worker cannot find out whether gang %s runs: %s", ref, error)
            return None

    def live(self) -> list[GangRef]:
        """The gangs of this try that still run; none if that cannot be found out."""
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        try:
            return self.call(lambda gangs: gangs.live(self.key, self.claim, namespace=self.namespace))
        except ClusterError as error:
            self.log.warning("This worker cannot find out which gangs of the task run: %s", error)
            return []

    def end(self, on_finish: OnFinish, *, why: str, timeout_s: float | None = None) -> None:
        """End what still runs and is ours: deleted if `on_finish` is `delete`, else halted and kept to be read.

        Gangs that have ended stay. Never raises: there is a better error on its way.
        """
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        async def act(gangs: Gangs) -> None:
            async with asyncio.timeout(timeout_s):
                delete = on_finish is OnFinish.DELETE
                for ref in await gangs.end_live(
                    self.key, self.claim, namespace=self.namespace, delete=delete, reason=why
                ):
                    self.log.info("Gang %s is %s: %s", ref, "deleted" if delete else "halted", why)

        try:
            self.call(act)
        except (ClusterError, GangJobError, TimeoutError) as error:
            self.log.warning("The gang could not be ended, it may still run: %s", str(error) or type(error).__name__)
