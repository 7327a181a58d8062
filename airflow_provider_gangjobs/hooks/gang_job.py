"""GangJobHook: gangs for any Python task, through Airflow's `kubernetes` connection.

The import of this module loads no client library. The first call loads it.

Times of the public API are pendulum `DateTime`s in UTC, as everywhere in Airflow. Inside the provider, times are
`datetime`s with a time zone, because msgspec decodes them at no cost. They are converted where they leave the provider:
`PublicService` is the service as users get it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import msgspec
from airflow.sdk import BaseHook
from asgiref.sync import sync_to_async

from airflow_provider_gangjobs.airflow_api.configuration import configured_links
from airflow_provider_gangjobs.airflow_api.connection import (
    DEFAULT_CONN_ID,
    ConnectionMissing,
    SharedReads,
    is_missing,
    pauses_of,
    read_extras,
)
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.service import GangService, follow
from airflow_provider_gangjobs.service.gangs import GangSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

    from kubernetes.client import ApiClient, BatchV1Api, CoreV1Api

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.state.gang_state import Deadlines, GangState
    from airflow_provider_gangjobs.tracking.follow import FollowUntil

P = ParamSpec("P")
T = TypeVar("T")


def with_pendulum_times(value: T) -> T:
    """Return the value with a pendulum `DateTime` in UTC in the place of each time.

    Objects that contain no time are returned themselves, and not as a copy.
    """
    return cast("T", _convert(value))


def _convert(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    if isinstance(value, datetime):
        from pendulum import UTC, instance

        return instance(value.astimezone(UTC))
    if isinstance(value, (list, tuple)):
        return _convert_items(value)
    if isinstance(value, Mapping):
        converted = {key: _convert(item) for key, item in value.items()}
        return converted if any(converted[key] is not item for key, item in value.items()) else value
    if isinstance(value, msgspec.Struct):
        changed = _changed(value, value.__struct_fields__)
        return msgspec.structs.replace(value, **changed) if changed else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = _changed(value, [field.name for field in dataclasses.fields(value) if field.init])
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _convert_items(value: list[Any] | tuple[Any, ...]) -> Any:
    converted = [_convert(item) for item in value]
    if all(new is old for new, old in zip(converted, value, strict=True)):
        return value
    return converted if isinstance(value, list) else tuple(converted)


def _changed(value: Any, names: Any) -> dict[str, Any]:
    fields = {name: (old, _convert(old)) for name in names if (old := getattr(value, name)) is not None}
    return {name: new for name, (old, new) in fields.items() if new is not old}


class PublicService(GangService, frozen=True):
    """The service as users get it: its coroutines return pendulum times."""


def _convert_returned(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return with_pendulum_times(await method(*args, **kwargs))

    return call


for _name, _method in inspect.getmembers(GangService, inspect.iscoroutinefunction):
    if not _name.startswith("_"):
        setattr(PublicService, _name, _convert_returned(_method))


def blocking(
    method: Callable[Concatenate[GangService, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[GangJobHook, P], T]:
    """Return the method of the hook that runs a coroutine method of the service and blocks until it is done."""

    @wraps(method)
    def call(hook: GangJobHook, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return with_pendulum_times(hook.call(lambda service: method(service, *args, **kwargs)))

    return call


class GangJobHook(BaseHook):
    """Submit gangs, read their state, and end them.

    The methods block. Code on an event loop uses `async with hook.connect() as service` instead, which has the same
    methods as coroutines. Each blocking call opens and closes a client; `call` makes several requests over one client.
    Each time is a pendulum `DateTime` in UTC.

    :param kubernetes_conn_id: A connection of type `kubernetes`, with the extras that the cncf.kubernetes provider
        documents. If there is no `kubernetes_default`, the default kubeconfig or the pod's service account is used.
    :param must_exist: Fail if the connection is missing, also if it is the default connection. Airflow reports a
        connection as missing also if it could not be read, and the default kubeconfig may be of another cluster.
    """

    conn_name_attr = "kubernetes_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "kubernetes"
    hook_name = "Kubernetes gang jobs"

    def __init__(self, kubernetes_conn_id: str = DEFAULT_CONN_ID, *, must_exist: bool = False) -> None:
        super().__init__()
        self.kubernetes_conn_id = kubernetes_conn_id
        self.exists: bool | None = None
        """Whether Airflow had the connection when the hook last read it. None before the first read."""
        self._must_exist = must_exist

    def config(self, *, retry_for_s: float = 0.0) -> ClusterConfig:
        """Read the connection. Returns the cluster and the credentials.

        :param retry_for_s: How many seconds to retry if the connection cannot be read or used. Airflow reports a
            connection as missing also if a secrets backend could not be reached.

        Raises:
            AirflowNotFoundException: the connection is missing.
            InvalidConnection: its extras contradict each other, or a link cannot be read.
        """
        pauses = pauses_of(retry_for_s)
        while True:
            try:
                return self._config(read_extras(self.kubernetes_conn_id))
            except Exception as error:
                time.sleep(self._pause_s(pauses, error))

    async def aconfig(self, *, retry_for_s: float = 0.0, max_age_s: float = 0.0) -> ClusterConfig:
        """Read the connection as `config` does, on an event loop. Does not retry if the connection is really missing.

        :param max_age_s: Accept a read of this event loop that began at most so many seconds ago.

        Raises:
            ConnectionMissing: this process does not know the connection.
        """
        from airflow_provider_gangjobs.cluster.loop_local import loop_local

        pauses = pauses_of(retry_for_s)
        while True:
            try:
                return self._config(await loop_local(SharedReads).read(self.kubernetes_conn_id, max_age_s=max_age_s))
            except AirflowNotFoundException as error:
                if retry_for_s and await sync_to_async(is_missing)(self.kubernetes_conn_id):
                    raise ConnectionMissing(self.kubernetes_conn_id) from error
                await asyncio.sleep(self._pause_s(pauses, error))
            except Exception as error:
                await asyncio.sleep(self._pause_s(pauses, error))

    def _pause_s(self, pauses: Iterator[float], error: Exception) -> float:
        pause_s = next(pauses, None)
        if pause_s is None:
            raise error
        # The text of the error is not logged: the error of a secrets backend may contain a credential.
        name, kind = self.kubernetes_conn_id, type(error).__name__
        self.log.warning("Connection %r could not be read (%s); trying again in %.0f s", name, kind, pause_s)
        return pause_s

    def _config(self, extras: dict[str, Any] | None) -> ClusterConfig:
        from airflow_provider_gangjobs.cluster.config import ClusterConfig
        from airflow_provider_gangjobs.cluster.errors import InvalidConnection

        self.exists = extras is not None
        if self._must_exist and extras is None:
            raise AirflowNotFoundException(
                f"Connection {self.kubernetes_conn_id!r} was there before, and cannot be read"
            )
        config = ClusterConfig.from_extras(self.kubernetes_conn_id, extras or {})
        try:
            return msgspec.structs.replace(config, links=(*configured_links(), *config.links))
        except ValueError as error:
            problem, remedy = f"[gangjobs] links {error}", "Correct it in the configuration of Airflow."
            raise InvalidConnection(self.kubernetes_conn_id, problem, remedy) from None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[GangService]:
        """Open a client of the connection's cluster for the duration of the block. For code on an event loop."""
        async with PublicService.connect(await self.aconfig()) as service:
            yield service

    async def afollow(
        self,
        ref: GangRef,
        *,
        until: FollowUntil = "ended",
        deadlines: Deadlines | None = None,
        report: Callable[[GangState], None] = lambda _: None,
        config: ClusterConfig | None = None,
    ) -> GangEvent:
        """Wait until a gang runs or has ended, as `service.follow` does.

        :param config: The cluster. By default the hook reads the connection.
        """
        config = config or await self.aconfig()
        return with_pendulum_times(await follow(config, ref, until=until, deadlines=deadlines, report=report))

    def call(self, action: Callable[[GangService], Awaitable[T]], *, config: ClusterConfig | None = None) -> T:
        """Run coroutines of the service over one client, and block until they are done.

        :param action: Called with the service on an event loop in a thread of its own. Returns an awaitable.
        :param config: The cluster. By default the hook reads the connection.
        """
        with GangSession(config or self.config(), connect=PublicService.connect) as session:
            return session.call(action)

    # The use cases of users. Signature, defaults and documentation are those of the service's coroutines.
    capabilities = blocking(GangService.capabilities)
    submit = blocking(GangService.submit)
    submission = blocking(GangService.submission)
    submissions = blocking(GangService.submissions)
    delete_submission = blocking(GangService.delete_submission)
    tidy = blocking(GangService.tidy)
    upload = blocking(GangService.upload)
    uploads = blocking(GangService.uploads)
    delete_upload = blocking(GangService.delete_upload)
    outcomes = blocking(GangService.outcomes)
    logs = blocking(GangService.logs)
    stop = blocking(GangService.stop)
    delete = blocking(GangService.delete)
    release_finalizers = blocking(GangService.release_finalizers)

    # The official clients, by the names of the KubernetesHook of the cncf.kubernetes provider.

    def get_conn(self) -> ApiClient:
        """Return a client of the official Python library for this connection. The caller closes the client.

        The `KubernetesHook` of the cncf.kubernetes provider reads the connection for the official client.

        Raises:
            AirflowNotFoundException: the connection is missing.
        """
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

        self.config()  # reports what is missing or contradictory in the connection as all other calls do
        client: ApiClient = KubernetesHook(conn_id=self.kubernetes_conn_id).get_conn()
        return client

    @property
    def core_v1_client(self) -> CoreV1Api:
        """The core API (pods, ConfigMaps, events) of a new official client."""
        from kubernetes.client import CoreV1Api

        return CoreV1Api(self.get_conn())

    @property
    def batch_v1_client(self) -> BatchV1Api:
        """The batch API (Jobs) of a new official client."""
        from kubernetes.client import BatchV1Api

        return BatchV1Api(self.get_conn())

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the cluster answers, and the version of the server or the error."""
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        try:
            version = self.call(lambda service: service.client.version())
        except (ClusterError, GangJobError) as error:
            return False, str(error)
        return True, f"Kubernetes {version.get('gitVersion', 'of unknown version')}"


__all__ = ["GangJobHook"]
