"""Leases: which gangs of a namespace other processes follow, and the Lease in which this process says so itself.

The Leases only save questions to Airflow. Where the Role does not allow Leases, a sweep asks Airflow about every gang
that this process does not follow, and ends the same gangs.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Forbidden, NotFound
from airflow_provider_gangjobs.cluster.resources import LEASES
from airflow_provider_gangjobs.gang.identity import FOLLOWERS
from airflow_provider_gangjobs.gang.state.ownership import DURATION, FollowerLease, lease_body, read_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef

log = logging.getLogger(__name__)

RENEW_EVERY_S: Final = 300.0
ALLOWED_AGAIN_S: Final = 1800.0
"""For how long Leases are not used after the Role did not allow them. The Role may be changed meanwhile."""
REMOVE_AFTER: Final = timedelta(days=1)
"""Leases of processes that ended without deleting them are deleted after this time."""
MISSING_RULE: Final = "apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, list, patch, delete]"


class Leases:
    """The Lease of this process in one namespace, and those of others."""

    def __init__(self, namespace: str, installation: str, *, clock: Clock) -> None:
        self._namespace = namespace
        self._installation = installation
        self._clock = clock
        self._name = f"gangjobs-follower-{uuid.uuid4().hex[:12]}"
        self._renewed_at_s: float | None = None
        self._forbidden_at_s: float | None = None

    async def renew(self, client: Client, refs: Iterable[GangRef]) -> None:
        """Name the gangs that this process follows, if `RENEW_EVERY_S` have passed since the last time.

        A failure is logged. The next call tries again or, if the Role does not allow Leases, a call after
        `ALLOWED_AGAIN_S`.
        """
        now_s = self._clock.monotonic()
        is_due = self._renewed_at_s is None or now_s - self._renewed_at_s >= RENEW_EVERY_S
        if self._is_forbidden() or not is_due:
            return
        try:
            await self._write(client, list(refs))
        except ClusterError as error:
            self._give_up(error)
        else:
            self._renewed_at_s = now_s

    async def _write(self, client: Client, refs: list[GangRef]) -> None:
        if not client.server_clock.is_known:  # the time of this machine is not used, so a response is needed
            await read_leases(client, self._namespace)
        holder = f"{socket.gethostname()}/{os.getpid()}"
        body = lease_body(self._name, holder, self._installation, refs, client.server_clock.now())
        if self._renewed_at_s is not None:
            try:
                await client.patch(LEASES, self._name, self._namespace, body)
            except NotFound:
                pass
            else:
                return
        try:
            await client.create(LEASES, body, self._namespace)
        except Conflict:  # an answer was lost: the Lease exists
            await client.patch(LEASES, self._name, self._namespace, body)

    async def others(self, client: Client) -> Callable[[GangRef], bool] | None:
        """Return a function that says whether another process follows a gang; `None` if the Leases cannot be read."""
        if self._is_forbidden():
            return None
        try:
            leases = await read_leases(client, self._namespace)
            await self._remove_old(client, leases)
        except ClusterError as error:
            self._give_up(error)
            return None
        now = client.server_clock.now()
        valid = [lease for lease in leases if lease.is_valid(now) and lease.name != self._name]
        return lambda ref: any(lease.names(ref) for lease in valid)

    async def remove(self, client: Client) -> None:
        """Delete the Lease of this process. A Lease that cannot be deleted expires."""
        if self._renewed_at_s is None:
            return
        self._renewed_at_s = None
        try:
            await client.delete(LEASES, self._name, self._namespace)
        except ClusterError as error:
            log.debug("Lease %s/%s was not deleted: %s", self._namespace, self._name, error)

    async def _remove_old(self, client: Client, leases: Iterable[FollowerLease]) -> None:
        now = client.server_clock.now()
        for lease in leases:
            if not lease.is_valid(now, within=REMOVE_AFTER):
                try:
                    await client.delete(LEASES, lease.name, self._namespace, resource_version=lease.resource_version)
                except (NotFound, Conflict):
                    continue

    def _is_forbidden(self) -> bool:
        since_s = self._forbidden_at_s
        return since_s is not None and self._clock.monotonic() - since_s < ALLOWED_AGAIN_S

    def _give_up(self, error: ClusterError) -> None:
        """Log why the Leases are not used now."""
        if not isinstance(error, Forbidden):
            log.warning("The Leases of namespace %s could not be used: %s", self._namespace, error)
            return
        self._forbidden_at_s = self._clock.monotonic()
        log.warning(
            "The Role of namespace %s does not allow Leases, so Airflow is asked about more gangs. Add the rule: %s",
            self._namespace,
            MISSING_RULE,
        )


async def read_leases(client: Client, namespace: str | None) -> list[FollowerLease]:
    """Return the Leases of all processes that follow gangs in a namespace, or in the cluster if it is None.

    Raises:
        ClusterError: they could not be listed.
    """
    return [read_lease(stored) for stored in await client.list(LEASES, namespace, label_selector=FOLLOWERS)]


__all__ = ["DURATION", "Leases", "read_leases"]
