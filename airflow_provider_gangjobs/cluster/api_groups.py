"""Reads which versions and resources of one API group a cluster serves, and caches them for a while.

Only gangs that name a scheduler with an API of its own need this: one request for the group, and one for each version.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import ApiError, NotFound, ReplyLost
from airflow_provider_gangjobs.cluster.loop_local import loop_local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client

EXPIRY_S = 600.0
"""A scheduler that is installed later is noticed after this time, and at once if its group was not served before."""


class ApiGroup(Struct, frozen=True):
    """What a cluster serves of one API group."""

    versions: Mapping[str, frozenset[str]] = {}
    """Plural names of the resources, by version. Empty if the cluster does not serve the group."""
    unknown: str = ""
    """Why a request failed; empty if all requests succeeded."""


async def read_api_group(client: Client, group: str) -> ApiGroup:
    """Return what the cluster serves of a group. A group that is served is cached for `EXPIRY_S`.

    Raises:
        Unreachable, CredentialsFailed, InvalidConnection: no request could be sent.
    """
    return await loop_local(_Cache).get(client, group)


class _Cache:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._known: dict[tuple[str, str], tuple[ApiGroup, float]] = {}

    async def get(self, client: Client, group: str) -> ApiGroup:
        clock, key = client.clock, (client.config.key, group)
        async with self._lock:
            known, expires_at = self._known.get(key, (ApiGroup(), 0.0))
            if clock.monotonic() < expires_at:
                return known
            found = await _read(client, group)
            if found.versions and not found.unknown:
                self._known[key] = found, clock.monotonic() + EXPIRY_S
            return found


async def _read(client: Client, group: str) -> ApiGroup:
    versions: dict[str, frozenset[str]] = {}
    try:
        document = await client.get_raw(f"/apis/{group}")
        for item in document.get("versions") or ():
            name = str(item.get("version"))
            with suppress(NotFound):  # the version was removed meanwhile
                resources = await client.get_raw(f"/apis/{group}/{name}")
                versions[name] = frozenset(str(one.get("name")) for one in resources.get("resources") or ())
    except NotFound:
        pass  # the cluster does not serve the group
    except (ApiError, ReplyLost) as error:
        return ApiGroup(versions, str(error))
    return ApiGroup(versions)
