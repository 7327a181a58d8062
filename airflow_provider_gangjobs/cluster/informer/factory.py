"""Shares informers and clients: one informer per event loop, cluster, objects, and view, and one client per cluster.

Users acquire and release an informer. After its last user, an informer lingers for a while, so that a gang that starts
right after another one has ended does not need a new list. Each task has an owner and ends with its loop at the latest.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock, TimeSlice
from airflow_provider_gangjobs.cluster.informer.health import Health, InformerStatistics
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig, Reflector, Target
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata, InformerClosedError, Store, Subscription
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.kube.text import log_fields
from airflow_provider_gangjobs.kube.views import interner_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from airflow_provider_gangjobs.cluster.clock import ServerClock
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.http.transport import ClientStatistics
    from airflow_provider_gangjobs.cluster.loop_local import Notification
    from airflow_provider_gangjobs.kube.resources import Resource

log = logging.getLogger(__name__)

V = TypeVar("V", bound=HasMetadata)


def informers() -> InformerFactory:
    """Return the informer factory of the running loop."""
    return loop_local(InformerFactory)


@dataclass(frozen=True)
class _Key:
    """Two users share an informer if these values are equal."""

    cluster: str
    target: Target
    kind: type[Any]
    index: Callable[[Any], str | None]


class Informer(Generic[V]):
    """A handle on a shared informer: its current objects by key. The user calls `release` after use."""

    __slots__ = ("_shared", "_subscriptions")

    def __init__(self, shared: _SharedInformer[V]) -> None:
        self._shared = shared
        self._subscriptions: list[Subscription[V]] | None = []

    async def synced(self, timeout_s: float | None = None) -> bool:
        """Wait for the first complete list. Return False if it does not arrive within `timeout_s` seconds.

        Raises:
            InformerClosedError: the factory was closed.
        """
        return await self._shared.store.synced(timeout_s)

    @property
    def is_synced(self) -> bool:
        """True after the first complete list. Before, an object that is missing here may exist."""
        return self._shared.store.is_synced

    @property
    def is_complete_snapshot(self) -> bool:
        """True if the objects are all objects of the server at one moment, so that a missing object did not exist then.

        False while a list is read, and if any object could not be decoded since the informer started.
        """
        return self._shared.store.is_snapshot and not self._shared.reflector.skipped

    def objects(self, key: str) -> dict[str, V]:
        """Return the current objects of a key, by uid."""
        return self._shared.store.objects(key)

    def keys(self) -> list[str]:
        """Return the keys that have objects now."""
        return self._shared.store.keys()

    def subscribe(self, key: str, notification: Notification | None = None) -> Subscription[V]:
        """Subscribe to changes of the objects of one key, until the subscription is closed or `release` is called."""
        if self._subscriptions is None:
            raise InformerClosedError("the informer was released")
        subscription = self._shared.store.subscribe(key, notification)
        self._subscriptions.append(subscription)
        return subscription

    @property
    def staleness_s(self) -> float:
        """Seconds since the last response of the server. Infinite before the first complete list."""
        return self._shared.health.staleness_s

    @property
    def problem(self) -> str | None:
        """Why the objects may be out of date, as text for people, or None if they are current."""
        return self._shared.health.problem

    def statistics(self) -> InformerStatistics:
        """Return the numbers of the shared informer for metrics."""
        return self._shared.reflector.statistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Stop using the informer and close its subscriptions. Safe to repeat."""
        subscriptions, self._subscriptions = self._subscriptions, None
        if subscriptions is not None:
            for subscription in subscriptions:
                subscription.close()
            self._shared.release()


class _SharedInformer(Generic[V]):
    """An informer with its task and the number of its users."""

    def __init__(self, key: _Key, client: Client, clock: Clock, config: InformerConfig) -> None:
        self._clock = clock
        self._linger_s = config.linger_s
        self._users = 0
        self._ends_at: float | None = None
        self._lifetime: asyncio.Timeout | None = None
        self._target = target = key.target
        self.store: Store[V] = Store(key.index, intern=interner_of(key.kind))
        self.health = Health(str(target), clock, healthy_after_s=config.healthy_after_s)
        self.reflector: Reflector[V] = Reflector(
            client, target, key.kind, self.store, health=self.health, clock=clock, config=config
        )

    def acquire(self) -> Informer[V]:
        self._users += 1
        self._end_at(None)
        return Informer(self)

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._end_at(asyncio.get_running_loop().time() + self._linger_s)

    @property
    def is_ending(self) -> bool:
        return self.store.closed or (self._lifetime is not None and self._lifetime.expired())

    async def serve(self) -> None:
        """Run until the informer has had no user for `linger_s`."""
        try:
            async with asyncio.timeout_at(self._ends_at) as self._lifetime, asyncio.TaskGroup() as group:
                group.create_task(self.health.warn_when_stale(), name=f"health of {self._target}")
                await self._run()
        except TimeoutError:
            log_fields(log, logging.DEBUG, "informer stopped, no gang uses it", informer=str(self._target))
            self.store.close()
            await self.store.clear(TimeSlice())
        finally:
            self.store.close()

    async def _run(self) -> None:
        """Run the reflector. After an unexpected exception, log it and list again, so that the gangs keep waiting."""
        backoff = Backoff(self._clock, base_s=1.0, cap_s=60.0)
        while True:
            try:
                await self.reflector.run()
            except Exception:
                log.exception("informer restarts after an unexpected error informer=%r", str(self._target))
            await self._clock.sleep(backoff.next())

    def _end_at(self, when: float | None) -> None:
        self._ends_at = when
        if self._lifetime is not None and not self.is_ending:
            self._lifetime.reschedule(when)


class InformerFactory:
    """All informers of one event loop and the clients that they share."""

    def __init__(
        self,
        *,
        connect: Callable[[ClusterConfig], Client] = Client,
        clock: Clock | None = None,
        config: InformerConfig | None = None,
    ) -> None:
        self._connect = connect
        self._clock = clock or Clock()
        self._config = config or InformerConfig()
        self._shared: dict[_Key, _SharedInformer[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: dict[str, Client] = {}
        self._client_users: Counter[str] = Counter()

    def acquire(
        self,
        cluster: Client | ClusterConfig,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        decode: type[V],
        index: Callable[[V], str | None],
    ) -> Informer[V]:
        """Return a handle on the shared informer of these objects.

        The caller releases the handle, or uses it in an `async with` statement, which releases it.

        :param cluster: The cluster. Only the config of a Client is used, because the informer may outlive the caller.
        :param decode: The view type of the objects, such as `kube.views.JobView`.
        :param index: Returns the key of an object, or None to leave the object out. Another function means another
            informer, so this must be a function of a module.

        Raises:
            ValueError: `index` is a lambda or an inner function, which is a new function at each call.
        """
        if "<" in getattr(index, "__qualname__", "<"):
            raise ValueError(
                f"index {index!r} must be a function of a module: a new function at each call prevents sharing"
            )
        config = cluster.config if isinstance(cluster, Client) else cluster
        key = _Key(config.key, Target(resource, namespace, label_selector), decode, index)
        shared = self._shared.get(key)
        if shared is None or shared.is_ending:
            shared = self._open(key, config)
        return shared.acquire()

    @asynccontextmanager
    async def client(self, config: ClusterConfig) -> AsyncIterator[Client]:
        """Use the shared client of a cluster. The last user closes the client.

        The client has the config of its first user. Another user's connection to the same cluster may name another
        namespace.
        """
        client = self._acquire_client(config)
        try:
            yield client
        finally:
            await self._release_client(config.key)

    def _acquire_client(self, config: ClusterConfig) -> Client:
        self._client_users[config.key] += 1
        if config.key not in self._clients:
            self._clients[config.key] = self._connect(config)
        return self._clients[config.key]

    async def _release_client(self, key: str) -> None:
        self._client_users[key] -= 1
        if not self._client_users[key]:
            del self._client_users[key]
            await self._clients.pop(key).aclose()

    def forget(self, cluster: str, namespace: str, index: Callable[[Any], str | None], key: str) -> None:
        """Drop the objects of a key from all informers of a namespace that index by it, as `Store.forget` does.

        :param cluster: The key of the cluster's config.
        """
        for each, shared in self._shared.items():
            if (each.cluster, each.target.namespace, each.index) == (cluster, namespace, index):
                shared.store.forget(key)

    def server_clock(self, key: str) -> ServerClock | None:
        """The clock of the API server, by the key of the cluster's config; `None` if there is no client of it now."""
        client = self._clients.get(key)
        return None if client is None else client.server_clock

    def statistics(self) -> dict[str, InformerStatistics]:
        """Return the statistics of each informer by a description of its objects, for tests, metrics, and people."""
        return {
            f"{key.cluster}: {key.target} as {key.kind.__name__} by {key.index.__name__}": shared.reflector.statistics()
            for key, shared in self._shared.items()
        }

    def client_statistics(self) -> dict[str, ClientStatistics]:
        """Return the statistics of each open client by cluster key."""
        return {cluster: client.statistics() for cluster, client in self._clients.items()}

    async def aclose(self) -> None:
        """Stop all informers, even if they are in use. Their subscribers get `InformerClosedError`."""
        tasks, shared = list(self._tasks), dict(self._shared)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key, each in shared.items():
            each.store.close()
            if self._shared.get(key) is each:  # a task that is cancelled before it has begun runs no `finally`
                await self._release_client(key.cluster)
        self._shared.clear()

    def _open(self, key: _Key, config: ClusterConfig) -> _SharedInformer[Any]:
        client = self._acquire_client(config)
        shared: _SharedInformer[Any] = _SharedInformer(key, client, self._clock, self._config)
        self._shared[key] = shared
        self.start_task(self._serve(key, shared), name=f"informer of {key.target}")
        return shared

    def start_task(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run a task that works for several gangs. `aclose` cancels the task if it has not ended by then."""
        # The task gets its own context: a triggerer routes log lines by a context variable, and the task outlives the
        # first trigger.
        task = asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, key: _Key, shared: _SharedInformer[Any]) -> None:
        try:
            await shared.serve()
        finally:
            if self._shared.get(key) is shared:
                del self._shared[key]
            await self._release_client(key.cluster)
