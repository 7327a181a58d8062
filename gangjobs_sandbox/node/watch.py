"""Lists objects and watches them for as long as the caller iterates.

The watch resumes from the last resource version, including bookmarks. After 410 the objects are listed again, and the
`Listed` that follows shows which objects are gone. While the server cannot be reached, the watch waits with jitter
between its attempts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import ApiClient, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["Changed", "Listed", "list_and_watch"]

_log = logging.getLogger(__name__)
_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 0.2, 10.0
_WATCH_S = 300
_PAUSE_S = 0.1
_GONE = (410, 504)
"""The version has expired, or lies in the future because the server has lost data."""


@dataclass(frozen=True)
class Listed:
    """All existing objects. Other objects that the caller knows are gone."""

    items: list[dict[str, Any]]


@dataclass(frozen=True)
class Changed:
    """An event of type ADDED, MODIFIED or DELETED."""

    kind: str
    item: dict[str, Any]


class _ExpiredError(Exception):
    """The server no longer has the version from which the watch would resume."""


async def list_and_watch(client: ApiClient, path: str, params: Mapping[str, str]) -> AsyncIterator[Listed | Changed]:
    """Yield a `Listed` first, and then each change. The iteration does not end by itself."""
    backoff = _BACKOFF_FIRST_S
    version = ""
    while True:
        try:
            if not version:
                listed = await client.get(path, params)
                version = listed["metadata"]["resourceVersion"]
                yield Listed(listed.get("items") or [])
            async for event in _watch_once(client, path, params, version):
                backoff = _BACKOFF_FIRST_S
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield Changed(event["type"], event["object"])
        except _ExpiredError:
            version = ""
        except (UnreachableError, StatusError) as error:
            _log.debug("watch of %s interrupted, next try in %.1f s: %s", path, backoff, error)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            backoff = min(backoff * 2, _BACKOFF_MAX_S)


async def _watch_once(
    client: ApiClient, path: str, params: Mapping[str, str], version: str
) -> AsyncIterator[dict[str, Any]]:
    options = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
    try:
        async for event in client.watch(path, {**params, **options}):
            if event["type"] == "ERROR":
                status = event["object"]
                raise StatusError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
            yield event
    except StatusError as error:
        if error.code in _GONE:
            raise _ExpiredError from error
        raise
    # A pause prevents a busy loop if the server ends every watch at once.
    await asyncio.sleep(_PAUSE_S)
