"""Records events about pods. Recording is best effort, in order, and never blocks the pods."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import MERGE, ApiClient, UnreachableError, core_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

__all__ = ["NORMAL", "WARNING", "Recorder"]

NORMAL, WARNING = "Normal", "Warning"
_log = logging.getLogger(__name__)
_QUEUE_MAX = 1000
"""Further events are dropped, so that the queue of a node that cannot reach its API server stays bounded."""
_COUNTED_EVENTS_MAX = 500
"""The number of events whose repetitions increment a count instead of creating a new Event."""
_MESSAGE_MAX = 1024


@dataclass(frozen=True)
class _Entry:
    pod: Mapping[str, Any]
    kind: str
    reason: str
    message: str
    container: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.pod["metadata"]["uid"], self.reason, self.message, self.container)


class Recorder:
    """Writes the events of one node as Kubernetes Event objects."""

    def __init__(self, client: ApiClient, node: str, now: Callable[[], datetime]) -> None:
        self._client = client
        self._node = node
        self._now = now
        self._queue: asyncio.Queue[_Entry] = asyncio.Queue(_QUEUE_MAX)
        self._written: OrderedDict[tuple[str, str, str, str], tuple[str, int]] = OrderedDict()

    def record(self, pod: Mapping[str, Any], kind: str, reason: str, message: str, *, container: str = "") -> None:
        """Queue an event about a pod or one of its containers. Returns at once."""
        try:
            self._queue.put_nowait(_Entry(pod, kind, reason, message[:_MESSAGE_MAX], container))
        except asyncio.QueueFull:
            _log.debug("event %s about %s dropped: the queue is full", reason, pod["metadata"]["name"])

    async def run(self) -> None:
        """Write the queued events until cancelled."""
        while True:
            entry = await self._queue.get()
            try:
                await self._write(entry)
            except (StatusError, UnreachableError) as error:
                _log.debug("event %s about %s not written: %s", entry.reason, entry.pod["metadata"]["name"], error)

    async def _write(self, entry: _Entry) -> None:
        namespace = entry.pod["metadata"]["namespace"]
        if entry.key in self._written:
            name, count = self._written[entry.key]
            change = {"count": count + 1, "lastTimestamp": timestamp(self._now())}
            await self._client.patch(core_path("events", name, namespace=namespace), change, MERGE)
        else:
            name, count = f"{entry.pod['metadata']['name']}.{time.time_ns():x}", 0
            await self._client.create(core_path("events", namespace=namespace), self._render(entry, name))
        self._written[entry.key] = (name, count + 1)
        while len(self._written) > _COUNTED_EVENTS_MAX:
            self._written.popitem(last=False)

    def _render(self, entry: _Entry, name: str) -> dict[str, Any]:
        metadata, now = entry.pod["metadata"], timestamp(self._now())
        involved = {"kind": "Pod", "apiVersion": "v1", "namespace": metadata["namespace"], "name": metadata["name"]}
        involved["uid"] = metadata["uid"]
        if entry.container:
            involved["fieldPath"] = f"spec.containers{{{entry.container}}}"
        return {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": involved,
            "type": entry.kind,
            "reason": entry.reason,
            "message": entry.message,
            "source": {"component": "kubelet", "host": self._node},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
