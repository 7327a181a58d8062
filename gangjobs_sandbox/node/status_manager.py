"""Writes the status of a pod to the API server whenever it changes.

One task per pod writes all statuses, so they arrive in order. Intermediate statuses may be skipped. The task runs until
the server has the last status or the pod no longer exists.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import ApiClient, UnreachableError, core_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["StatusWriter", "delete_pod"]

_log = logging.getLogger(__name__)
_MAYBE_GONE = (404, 409, 422)
"""Status codes for a write to a deleted or replaced pod. The last two codes can also have other causes."""
_RETRY_FIRST_S, _RETRY_MAX_S = 0.2, 10.0


class StatusWriter:
    """Writes the status of one pod. `render` returns the current status, or None if there is nothing to write."""

    def __init__(self, client: ApiClient, pod: Mapping[str, Any], render: Callable[[], dict[str, Any] | None]) -> None:
        metadata = pod["metadata"]
        self._client = client
        self._uid = metadata["uid"]
        self._path = core_path("pods", metadata["name"], namespace=metadata["namespace"])
        self._render = render
        self._dirty = asyncio.Event()
        self._written = asyncio.Event()
        self._last: dict[str, Any] | None = None

    def mark_changed(self) -> None:
        """Report that the status may have changed."""
        self._written.clear()
        self._dirty.set()

    async def wait_until_written(self) -> None:
        """Wait until the server has the current status, or the pod is gone."""
        self.mark_changed()
        await self._written.wait()

    async def run(self) -> None:
        """Write statuses until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write()
            if not self._dirty.is_set():
                self._written.set()

    async def _write(self) -> None:
        retry = _RETRY_FIRST_S
        while (status := self._render()) is not None and status != self._last:
            try:
                await self._client.patch(f"{self._path}/status", {"metadata": {"uid": self._uid}, "status": status})
            except (StatusError, UnreachableError) as error:
                if not await _is_gone(self._client, self._path, self._uid, error):
                    _log.info("status of %s not written, trying again in %.1f s: %s", self._path, retry, error)
                    await asyncio.sleep(retry)
                    retry = min(retry * 2, _RETRY_MAX_S)
                    continue
            self._last = status


async def delete_pod(client: ApiClient, pod: Mapping[str, Any]) -> None:
    """Delete a pod with grace period 0. The object is removed, unless it has a finalizer."""
    metadata, retry = pod["metadata"], _RETRY_FIRST_S
    path = core_path("pods", metadata["name"], namespace=metadata["namespace"])
    while True:
        try:
            await client.delete(path, uid=metadata["uid"], grace_period_s=0)
        except (StatusError, UnreachableError) as error:
            if await _is_gone(client, path, metadata["uid"], error):
                return
            _log.info("%s not deleted, trying again in %.1f s: %s", path, retry, error)
            await asyncio.sleep(retry)
            retry = min(retry * 2, _RETRY_MAX_S)
        else:
            return


async def _is_gone(client: ApiClient, path: str, uid: str, error: StatusError | UnreachableError) -> bool:
    """Return whether a write failed because no pod of this name and UID exists any more."""
    if isinstance(error, UnreachableError) or error.code not in _MAYBE_GONE:
        return False
    try:
        stored = await client.get(path)
    except StatusError as answer:
        return answer.code == 404
    except UnreachableError:
        return False
    return bool(stored["metadata"]["uid"] != uid)
