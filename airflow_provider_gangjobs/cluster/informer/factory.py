"""One informer per event loop, cluster, objects and view, however many gangs wait; one client per cluster.

An informer is leased. After the last lease it lingers, so that a gang that ends just before another begins
does not cost a new list. Every task here has an owner, and ends with its loop at the latest.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Backoff, Slices, Timing
from airflow_provider_gangjobs.cluster.informer.config import Pace
from airflow_provider_gangjobs.cluster.informer.health import Health, InformerStatistics
from airflow_provider_gangjobs.cluster.informer.reflector import Reflector, Target
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata, InformerClosedError, Store, Subscription
from airflow_provider_gangjobs.cluster.loop_local import of_running_loop
from airflow_provider_gangjobs.cluster.structured_log import tell
from airflow_provider_gangjobs.kube.interning import sharing_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.http.options import ClientStatistics
    from airflow_provider_gangjobs.cluster.informer.notify import Wake
    from airflow_provider_gangjobs.cluster.resources import Resource

log = logging.getLogger(__name__)

V = TypeVar("V", bound=HasMetadata)

LINGER_S = 60.0


def informers() -> Informers:
    """The running loop's informers."""
    return of_running_loop(Informers)


@dataclass(frozen=True)
class _Key:
    """What two leases must have in common to share an informer."""

    cluster: str
    target: Target
    kind: type[Any]
    index: Callable[[Any], str | None]


class Informer(Generic[V]):
    """A lease on a shared informer: its objects by key, as they change. Ends with `give_back`."""

    __slots__ = ("_shared", "_subscriptions")

    def __init__(self, shared: _Shared[V]) -> None:
        self._shared = shared
        self._subscriptions: list[Subscription[V]] | None = []

    async def synced(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that exists has been seen; False if that has not happened in time.

        Raises:
            InformerClosedError: the registry was closed.
        """
        return await self._shared.store.synced(timeout_s)

    @property
    def is_synced(self) -> bool:
        """Before this is True, an object that is not there may exist nevertheless."""
        return self._shared.store.is_synced

    @property
    def shows_all_of_a_moment(self) -> bool:
        """True if what is shown is all that the server had at one moment: what is missing did not exist then.

        It is not while a list is read, nor if there ever was an object that could not be decoded.
        """
        return self._shared.store.is_of_one_moment and not self._shared.reflector.skipped

    def objects(self, key: str) -> dict[str, V]:
        """The objects of a key that exist now, by uid."""
        return self._shared.store.objects(key)

    def subscribe(self, key: str, wake: Wake | None = None) -> Subscription[V]:
        """Be woken by changes to the objects of one key. Ends with the lease, or when closed."""
        if self._subscriptions is None:
            raise InformerClosedError("the lease has ended")
        subscription = self._shared.store.subscribe(key, wake)
        self._subscriptions.append(subscription)
        return subscription

    @property
    def staleness_s(self) -> float:
        """Seconds since the server was last heard of; infinite before the first list."""
        return self._shared.health.staleness_s

    @property
    def problem(self) -> str | None:
        """Why the state shown may be old, for a log or a person; None if all is well."""
        return self._shared.health.problem

    def statistics(self) -> InformerStatistics:
        return self._shared.reflector.statistics()

    def give_back(self) -> None:
        """End the lease, and with it its subscriptions; safe to repeat."""
        subscriptions, self._subscriptions = self._subscriptions, None
        if subscriptions is not None:
            for subscription in subscriptions:
                subscription.close()
            self._shared.give_back()


class _Shared(Generic[V]):
    """An informer with its task and its leases."""

    def __init__(
        self,
        target: Target,
        kind: type[V],
        index: Callable[[V], str | None],
        client: Client,
        *,
        timing: Timing,
        pace: Pace,
        linger_s: float,
    ) -> None:
        self._timing = timing
        self._linger_s = linger_s
        self._leases = 0
        self._ends_at: float | None = None
        self._lifetime: asyncio.Timeout | None = None
        self._target = target
        self.store: Store[V] = Store(index, share=sharing_of(kind))
        self.health = Health(str(target), timing, proven_s=pace.proven_s)
        self.reflector = Reflector(client, target, kind, self.store, health=self.health, timing=timing, pace=pace)

    def lease(self) -> Informer[V]:
        self._leases += 1
        self._end_at(None)
        return Informer(self)

    def give_back(self) -> None:
        self._leases -= 1
        if self._leases == 0:
            self._end_at(asyncio.get_running_loop().time() + self._linger_s)

    @property
    def is_ending(self) -> bool:
        return self.store.closed or (self._lifetime is not None and self._lifetime.expired())

    async def serve(self) -> None:
        """Run until nobody has leased this for a while."""
        try:
            async with asyncio.timeout_at(self._ends_at) as self._lifetime, asyncio.TaskGroup() as beside:
                beside.create_task(self.health.attend(), name=f"health of {self._target}")
                await self._run()
        except TimeoutError:
            tell(log, logging.DEBUG, "informer ends, nobody uses it", informer=str(self._target))
            self.store.close()
            await self.store.forget(Slices())
        finally:
            self.store.close()

    async def _run(self) -> None:
        """A defect of ours must not stop a thousand gangs: it is logged, and the list is read again."""
        backoff = Backoff(self._timing, base_s=1.0, cap_s=60.0)
        while True:
            try:
                await self.reflector.run()
            except Exception:
                log.exception("informer begins anew after a defect informer=%r", str(self._target))
            await self._timing.sleep(backoff.next())

    def _end_at(self, when: float | None) -> None:
        self._ends_at = when
        if self._lifetime is not None and not self.is_ending:
            self._lifetime.reschedule(when)


class Informers:
    """All informers of one event loop, and the clients that they share."""

    def __init__(
        self,
        *,
        connect: Callable[[ClusterConfig], Client] = Client,
        timing: Timing | None = None,
        pace: Pace | None = None,
        linger_s: float = LINGER_S,
    ) -> None:
        self._connect = connect
        self._timing = timing or Timing()
        self._pace = pace or Pace()
        self._linger_s = linger_s
        self._shared: dict[_Key, _Shared[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: dict[str, Client] = {}
        self._client_users: Counter[str] = Counter()

    @asynccontextmanager
    async def lease(
        self,
        cluster: Client | ClusterConfig,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        field_selector: str | None = None,
        decode: type[V],
        index: Callable[[V], str | None],
    ) -> AsyncGenerator[Informer[V], None]:
        """As `take`, given back with the block."""
        informer = self.take(
            cluster, resource, namespace, label_selector, field_selector=field_selector, decode=decode, index=index
        )
        try:
            yield informer
        finally:
            informer.give_back()

    def take(
        self,
        cluster: Client | ClusterConfig,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        field_selector: str | None = None,
        decode: type[V],
        index: Callable[[V], str | None],
    ) -> Informer[V]:
        """Use the informer of these objects, opening it if it is not there. Who takes it gives it back.

        Of a Client only its config is used: the informer outlives who asks for it. `index` gives the key of an
        object, or None to leave it out; it must be a function with a name, since another one is another informer.

        Raises:
            ValueError: `index` is made anew at each call (a lambda or an inner function).
        """
        if "<" in getattr(index, "__qualname__", "<"):
            raise ValueError(f"index {index!r} must be a function of a module: a new one at each call shares nothing")
        config = cluster.config if isinstance(cluster, Client) else cluster
        key = _Key(config.key, Target(resource, namespace, label_selector, field_selector), decode, index)
        shared = self._shared.get(key)
        if shared is None or shared.is_ending:
            shared = self._open(key, config)
        return shared.lease()

    def take_client(self, config: ClusterConfig) -> Client:
        """The one client of this cluster on this loop. Who takes it gives it back, by the config's key.

        Its `config` is that of whoever came first: another connection to the same cluster, with another namespace.
        """
        self._client_users[config.key] += 1
        if config.key not in self._clients:
            self._clients[config.key] = self._connect(config)
        return self._clients[config.key]

    async def give_back_client(self, key: str) -> None:
        """The last to give it back closes it."""
        self._client_users[key] -= 1
        if not self._client_users[key]:
            del self._client_users[key]
            await self._clients.pop(key).aclose()

    def statistics(self) -> dict[str, InformerStatistics]:
        """By what is watched; for tests, metrics and people."""
        return {
            f"{key.cluster}: {key.target} as {key.kind.__name__} by {key.index.__name__}": shared.reflector.statistics()
            for key, shared in self._shared.items()
        }

    def client_statistics(self) -> dict[str, ClientStatistics]:
        """Of each client that is open now, by cluster."""
        return {cluster: client.statistics() for cluster, client in self._clients.items()}

    async def aclose(self) -> None:
        """End all informers now, whoever uses them; their subscribers are woken with InformerClosedError."""
        tasks, shared = list(self._tasks), list(self._shared.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in shared:
            each.store.close()
        self._shared.clear()

    def _open(self, key: _Key, config: ClusterConfig) -> _Shared[Any]:
        client = self.take_client(config)
        shared = _Shared(
            key.target, key.kind, key.index, client, timing=self._timing, pace=self._pace, linger_s=self._linger_s
        )
        self._shared[key] = shared
        # Its own context: a triggerer routes log lines by a context variable, and this outlives the first trigger.
        task = asyncio.get_running_loop().create_task(
            self._serve(key, shared), name=f"informer of {key.target}", context=contextvars.Context()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return shared

    async def _serve(self, key: _Key, shared: _Shared[Any]) -> None:
        try:
            await shared.serve()
        finally:
            if self._shared.get(key) is shared:
                del self._shared[key]
            await self.give_back_client(key.cluster)
