"""Record the history of a namespace by watches that run beside the test, on any control plane.

async with recording(admin, namespace) as recorder:
    ...                                 # the test
    history = await recorder.settled()  # all changes until now

The watches start before the test, so the history does not depend on how long the API server keeps old revisions.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.errors import ClusterError, Gone
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOBS, PODS, Resource
from tests.guarantees.history import History

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from concurrent.futures import Future

    from airflow_provider_gangjobs.cluster.config import ClusterConfig

Obj = dict[str, Any]

SETTLED_WITHIN_S: Final = 60.0
RECONNECT_S: Final = 0.2
"""The pause after a watch that broke."""

_IDLE = {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
_MARKERS: Final[dict[Resource, Obj]] = {
    JOBS: {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": {"spec": _IDLE}}},
    PODS: {"apiVersion": "v1", "kind": "Pod", "spec": _IDLE},
    CONFIGMAPS: {"apiVersion": "v1", "kind": "ConfigMap"},
}
"""The recorded resources, and for each an object that does nothing. A watch that shows it has shown all before it."""
_MARKER_PREFIX: Final = "history-marker-"


@dataclass
class Recorder:
    """The watches of one namespace, and what they have shown."""

    client: Client
    namespace: str
    now: Callable[[], float]
    history: History = field(default_factory=History)
    _seen_markers: dict[str, asyncio.Event] = field(default_factory=dict)

    async def settled(self) -> History:
        """Return the history of everything that happened before this call.

        Raises:
            TimeoutError: a watch did not show its marker in time.
        """
        async with asyncio.timeout(SETTLED_WITHIN_S):
            await asyncio.gather(*map(self._settle, _MARKERS))
        self.history.changes.sort(key=lambda change: change.revision)
        self.history.ended_at = self.now()
        return self.history

    async def _settle(self, resource: Resource) -> None:
        name = f"{_MARKER_PREFIX}{uuid.uuid4().hex[:8]}"
        seen = self._seen_markers[name] = asyncio.Event()
        await self.client.create(resource, {**_MARKERS[resource], "metadata": {"name": name}}, self.namespace)
        await seen.wait()
        await self.client.delete(resource, name, self.namespace, grace_period_s=0)

    async def watch(self, resource: Resource, revision: str) -> None:
        """Record the changes of a resource after this revision until the task is cancelled.

        Raises:
            AssertionError: the server no longer has a change that was not recorded yet.
        """
        while True:
            try:
                async with aclosing(self.client.watch(resource, self.namespace, resource_version=revision)) as parts:
                    async for lines in parts:
                        for line in lines.splitlines():
                            revision = self._record(resource, msgspec.json.decode(line))
            except Gone as gone:
                raise AssertionError(f"the history of {resource.plural} is incomplete: {gone}") from gone
            except ClusterError:
                await asyncio.sleep(RECONNECT_S)

    def _record(self, resource: Resource, event: Obj) -> str:
        """Record one event, and return its resource version."""
        obj = event["object"]
        assert event["type"] != "ERROR", f"the history of {resource.plural} is incomplete: {obj}"
        metadata = obj["metadata"]
        if event["type"] != "BOOKMARK":
            if metadata["name"].startswith(_MARKER_PREFIX):
                self._seen_markers.get(metadata["name"], asyncio.Event()).set()
            else:
                self.history.add(resource.plural, event["type"], obj, at=self.now())
        revision: str = metadata["resourceVersion"]
        return revision


@asynccontextmanager
async def recording(client: Client, namespace: str, *, now: Callable[[], float] = time.time) -> AsyncIterator[Recorder]:
    """Record the namespace during the block. Objects that exist before are recorded when they change.

    :param client: A client that may watch, create, and delete Jobs, pods, and ConfigMaps.
    :param now: The clock of the history, in seconds.
    """
    recorder = Recorder(client, namespace, now)
    pages = await asyncio.gather(*(client.list_page(resource, namespace, limit=1) for resource in _MARKERS))
    revisions = [msgspec.json.decode(page)["metadata"]["resourceVersion"] for page in pages]
    watches = [
        asyncio.create_task(recorder.watch(resource, revision), name=f"record {resource.plural}")
        for resource, revision in zip(_MARKERS, revisions, strict=True)
    ]
    try:
        yield recorder
    finally:
        failures = [watch.exception() for watch in watches if watch.done()]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure


@dataclass(frozen=True)
class RecorderThread:
    """A recorder on an event loop in a thread of its own, for tests that block."""

    recorder: Recorder
    _loop: asyncio.AbstractEventLoop = field(repr=False)

    @property
    def history(self) -> History:
        """What was recorded so far. The last moments may be missing; see `settled`."""
        return self.recorder.history

    def settled(self) -> History:
        """Block until everything that happened before this call is recorded, and return the history."""
        return self._run(self.recorder.settled()).result(SETTLED_WITHIN_S)

    def _run(self, coroutine: Coroutine[Any, Any, History]) -> Future[History]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


@contextmanager
def recording_in_thread(config: ClusterConfig, namespace: str) -> Iterator[RecorderThread]:
    """Record the namespace during the block, beside the thread that runs the block."""
    from concurrent.futures import Future

    ready: Future[Recorder] = Future()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        try:
            async with Client(config) as client, recording(client, namespace) as recorder:
                ready.set_result(recorder)
                await stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    failures: list[BaseException] = []

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:  # raised in the thread of the test
            failures.append(error)

    thread = threading.Thread(target=run, name="recorder", daemon=True)
    thread.start()
    try:
        yield RecorderThread(ready.result(SETTLED_WITHIN_S), loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(SETTLED_WITHIN_S)
        loop.close()
    for failure in failures:
        raise failure
