"""Looking: the API server's looks at clusters. Few, short, and shared by all who look at the same gang.

A look lasts at most `LOOK_S`, at most `LOOKS_AT_ONCE` go on, and what was seen serves everybody for `FRESH_S`, so that
many open pages cost the cluster no more than one. Clients are kept for a while: an exec plugin may take a second to
give a token. A fault becomes a sentence without anything of the connection in it; the whole of it is in the log of
the API server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.errors import (
    ClusterError,
    CredentialsFailed,
    Forbidden,
    InvalidConnection,
    TransportError,
    Unauthorized,
)
from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.service import Gangs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.plugins.locator import Lead
    from airflow_provider_gangjobs.tracking.read.snapshot import GangSnapshot

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
RETRY_S: Final = 3.0
"""How long a request is sent again that got no answer: somebody sits there and waits."""
LOOKS_AT_ONCE: Final = 4
FRESH_S: Final = 2.0
CLIENT_IDLE_S: Final = 60.0

NO_CONNECTION_KNOWN: Final = (
    "Airflow does not have this task's rendered fields any more, so it is not known in which cluster to look."
)
TIMED_OUT: Final = f"The cluster did not answer Airflow's API server within {LOOK_S:.0f} seconds."
REFUSED: Final = "The cluster cannot be looked at from Airflow's API server. Its log says why."
# The first that fits. None of them quotes the fault, which may have addresses and paths in it.
_TROUBLES: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((AirflowNotFoundException,), "Airflow's API server finds no connection {conn_id!r}."),
    ((Unauthorized, CredentialsFailed), "The cluster does not accept the connection {conn_id!r} as it is used here."),
    ((Forbidden,), "The connection {conn_id!r} may not list Jobs in namespace {namespace!r}."),
    ((InvalidConnection,), "The connection {conn_id!r} cannot be used by Airflow's API server."),
    ((TransportError,), "Airflow's API server does not reach the cluster of connection {conn_id!r}."),
)


async def config_of(lead: Lead) -> ClusterConfig:
    """By the connection, read in a thread: the API server's way to it is the database, or a secrets backend."""
    assert lead.kubernetes_conn_id is not None, "the caller has looked"
    hook = GangJobHook(lead.kubernetes_conn_id, must_exist=lead.must_exist)
    return await asyncio.to_thread(hook.config)


@dataclass(frozen=True)
class Sight:
    """What was seen, or why nothing was."""

    snapshot: GangSnapshot | None = None
    trouble: str = ""


@dataclass
class _Kept:
    """A client, and when it was used last."""

    gangs: Gangs
    users: int = 0
    used_at: float = 0.0


@dataclass
class Looking:
    """All looks of one process. Belongs to the event loop that it is first used on."""

    clock: Callable[[], float] = time.monotonic
    config_of: Callable[[Lead], Awaitable[ClusterConfig]] = config_of
    _looks: dict[tuple[object, ...], tuple[float, asyncio.Task[Sight]]] = field(default_factory=dict, init=False)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKS_AT_ONCE), init=False)
    _clients: dict[str, _Kept] = field(default_factory=dict, init=False)

    async def look(self, lead: Lead) -> Sight:
        """What the cluster shows now, or showed a moment ago. Never raises because of the cluster."""
        key = (lead.kubernetes_conn_id, lead.must_exist, lead.ref, lead.key)
        self._forget()
        if key not in self._looks:
            task = asyncio.create_task(self._look(lead), name=f"look at gang {lead.ref}")
            self._looks[key] = (self.clock() + FRESH_S, task)
        # Shielded: who closes the page must not take the look away from the others.
        return await asyncio.shield(self._looks[key][1])

    def _forget(self) -> None:
        """What is old. A look that goes on is never old: it is bounded by itself."""
        now = self.clock()
        self._looks = {
            key: (until, task) for key, (until, task) in self._looks.items() if until > now or not task.done()
        }

    async def _look(self, lead: Lead) -> Sight:
        if lead.kubernetes_conn_id is None:
            return Sight(trouble=NO_CONNECTION_KNOWN)
        try:
            async with asyncio.timeout(LOOK_S), self._turns:
                return Sight(await self._snapshot(lead))
        except TimeoutError:
            return Sight(trouble=TIMED_OUT)
        except (ClusterError, AirflowNotFoundException) as error:
            log.warning("gang %s could not be looked at: %s", lead.ref, error)
            return Sight(trouble=trouble_of(error, lead))
        except Exception:
            # A secrets backend may raise anything, and the page has to say something.
            log.exception("gang %s could not be looked at", lead.ref)
            return Sight(trouble=REFUSED)

    async def _snapshot(self, lead: Lead) -> GangSnapshot:
        config = await self.config_of(lead)
        kept = await self._take(config)
        try:
            return await kept.gangs.snapshot(lead.key, namespace=lead.ref.namespace, uid=lead.ref.uid)
        finally:
            kept.users -= 1
            kept.used_at = self.clock()

    async def _take(self, config: ClusterConfig) -> _Kept:
        idle = [
            key for key, kept in self._clients.items() if not kept.users and self.clock() > kept.used_at + CLIENT_IDLE_S
        ]
        for key in idle:
            await self._clients.pop(key).gangs.client.aclose()
        kept = self._clients.setdefault(config.key, _Kept(Gangs(Client(config, retry_for_s=RETRY_S))))
        kept.users += 1
        return kept

    async def aclose(self) -> None:
        """End the looks and close the clients."""
        tasks = [task for _, task in self._looks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for kept in self._clients.values():
            await kept.gangs.client.aclose()
        self._looks.clear()
        self._clients.clear()


def trouble_of(error: Exception, lead: Lead) -> str:
    """What a user is told of it."""
    found = next((text for kinds, text in _TROUBLES if isinstance(error, kinds)), REFUSED)
    return found.format(conn_id=lead.kubernetes_conn_id, namespace=lead.ref.namespace)
