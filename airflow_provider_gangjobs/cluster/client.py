"""The client of one API server. Objects are plain dicts.

Typed models would silently drop the fields of newer versions, so objects stay dicts from end to end.
The client retries reads until a deadline. The client retries a write only if the server says that it did not process
the request. After any other failure, the caller reads the current state and decides (`error.may_have_applied`).

The functions write with preconditions: they apply only to the object that the caller has read, or only to the version
of it. Each sends one request.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from airflow_provider_gangjobs.cluster.auth.credentials import Credentials
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import (
    Conflict,
    Gone,
    Invalid,
    NotFound,
    UnexpectedReply,
    is_of_another_uid,
)
from airflow_provider_gangjobs.cluster.http.connections import JSON, Query, Request
from airflow_provider_gangjobs.cluster.http.log_reader import check_not_message, refuse_message, tail_of, whole_lines
from airflow_provider_gangjobs.cluster.http.transport import (
    AGGREGATED_DISCOVERY,
    METADATA_ONLY,
    REQUEST_TIMEOUT_S,
    RETRY_FOR_S,
    ClientStatistics,
    Json,
    LogQuery,
    PatchType,
    PropagationPolicy,
    Retries,
    Transport,
    WatchLimits,
    decode_list,
    decode_object,
)
from airflow_provider_gangjobs.kube.resources import PODS, Resource
from airflow_provider_gangjobs.kube.text import plain_scalar
from airflow_provider_gangjobs.kube.views import ApiGroupView

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping

    from airflow_provider_gangjobs.cluster.clock import ServerClock
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.http.log_reader import LogTail
    from airflow_provider_gangjobs.kube.views import Meta

LIST_TIMEOUT_S = 60.0
"""A page of 500 large pods takes an API server seconds under load."""
PAGE_OBJECTS = 500
LIST_RESTARTS_MAX = 3
LOG_IDLE_TIMEOUT_S = 60.0
REQUESTS_MAX = 100
_encode = msgspec.json.Encoder(enc_hook=plain_scalar).encode
__all__ = [
    "Client",
    "ClientStatistics",
    "LogQuery",
    "PatchType",
    "PropagationPolicy",
    "WatchLimits",
    "delete_uid",
    "patch_uid",
    "patch_unchanged",
    "patch_version",
    "version_of",
]

T = TypeVar("T")
_LIMITS = WatchLimits()


class Client:
    """A client of one API server. Connects at its first request, and belongs to the event loop that first uses it.

    :param answer_within_s: When a request fails whose response has not begun. The default is its own time limit.
    :param requests_max: How many requests are in flight at most, except for streams. Each needs a connection.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        clock: Clock | None = None,
        retry_for_s: float = RETRY_FOR_S,
        answer_within_s: float | None = None,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        self.config = config
        self.clock = clock = clock or Clock()
        self._credentials = Credentials(config, clock=clock)
        self._transport = Transport(
            self._credentials,
            requests_max=requests_max,
            tcp_keepalive=config.tcp_keepalive,
            monotonic=clock.monotonic,
        )
        self._transport.answer_within_s = answer_within_s
        self._retries = Retries(clock, retry_for_s=retry_for_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Safe to repeat."""
        await self._transport.aclose()

    @property
    def server_clock(self) -> ServerClock:
        """The API server's clock, as its responses show it."""
        return self._transport.server_clock

    @property
    def server_software(self) -> str:
        """The software that the server names in its responses; empty if it names none, or has not answered yet."""
        return self._transport.server_software

    def statistics(self) -> ClientStatistics:
        """Return the numbers of requests by verb, of retries, and of renewals of the credentials."""
        return ClientStatistics(dict(self._retries.requests), self._retries.retries, self._credentials.renewals)

    # -- objects ---------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """Return one object.

        Raises:
            NotFound: the object does not exist. After any other error, the caller does not know whether it exists.
        """
        return await self.get_raw(resource.path(namespace, name))

    async def get_raw(self, path: str, *, retry_for_s: float | None = None) -> Json:
        """Return the JSON document at `path`, such as `/version`.

        :param retry_for_s: How long a request is retried that failed, in seconds. The default is that of the client.
        """
        request = Request("GET", path)
        send = partial(self._transport.send, request)
        return decode_object(str(request), await self._retries.send("get", send, retry_for_s=retry_for_s))

    async def version(self) -> Json:
        """Return the document of `/version`, with `major`, `minor` and `gitVersion`."""
        return await self.get_raw("/version")

    async def api_groups(self) -> list[ApiGroupView]:
        """Return the API groups that the server serves, with their versions and resources (aggregated discovery).

        Raises:
            UnexpectedReply: the server has no aggregated discovery. Kubernetes has it since 1.26.
        """
        request = Request("GET", "/apis", accept=AGGREGATED_DISCOVERY)
        body = await self._retries.send("get", partial(self._transport.send, request))
        groups = decode_list(str(request), body, ApiGroupView).items
        if groups is None:
            raise UnexpectedReply(200, request=str(request), message="the server has no aggregated discovery")
        return groups

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        returns_metadata: bool = False,
    ) -> Json:
        """Create an object and return the stored object, or only its metadata.

        The server refuses unknown and duplicate fields.

        Raises:
            AlreadyExists: an object of this name exists, possibly from an earlier request whose response was lost.
        """
        query = {"fieldValidation": "Strict", "dryRun": "All" if dry_run else None}
        request = Request(
            "POST",
            resource.path(namespace),
            query,
            _encode(body),
            accept=METADATA_ONLY if returns_metadata else JSON,
        )
        stored = await self._retries.send("create", partial(self._transport.send, request))
        return decode_object(str(request), stored)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | list[Any],
        *,
        patch_type: PatchType = "merge",
        subresource: str | None = None,
        returns_metadata: bool = False,
    ) -> Json:
        """Change part of an object and return the stored object, or only its metadata.

        A uid or resourceVersion in the body is a precondition.

        Raises:
            Conflict: the precondition does not hold.
            NotFound: the object does not exist.
        """
        path = resource.path(namespace, name, subresource)
        request = Request(
            "PATCH",
            path,
            None,
            _encode(body),
            content_type=f"application/{patch_type}-patch+json",
            accept=METADATA_ONLY if returns_metadata else JSON,
        )
        stored = await self._retries.send("patch", partial(self._transport.send, request))
        return decode_object(str(request), stored)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation_policy: PropagationPolicy = "Background",
        grace_period_s: int | None = None,
    ) -> None:
        """Request the deletion of an object. The object exists until its finalizers are removed.

        :param uid: Delete the object only if it has this uid.
        :param resource_version: Delete the object only if it is in this version.

        Raises:
            Conflict: the object of this name has another uid or another resourceVersion.
            NotFound: the object does not exist.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation_policy}
        expected = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in expected.items() if value is not None}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        request = Request("DELETE", resource.path(namespace, name), body=msgspec.json.encode(options))
        await self._retries.send("delete", partial(self._transport.send, request))

    # -- collections -----------------------------------------------------------------------------------------

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_OBJECTS,
        continue_token: str | None = None,
        retry_for_s: float | None = None,
    ) -> bytes:
        """Return one page of a list as undecoded JSON.

        Raises:
            Gone: the continue token is too old.
        """
        query = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": limit,
            "continue": continue_token,
        }
        send = partial(self._transport.send, Request("GET", resource.path(namespace), query), timeout_s=LIST_TIMEOUT_S)
        return await self._retries.send("list", send, retry_for_s=retry_for_s)

    async def list_views(
        self,
        kind: type[T],
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_OBJECTS,
        ahead: bool = False,
    ) -> AsyncGenerator[list[T], None]:
        """Yield all objects page by page, decoded into `kind`: a view of `kube.views`, or a dict.

        When the continue token expires, the list continues at a newer version if the server offers one, and starts
        again otherwise. An object may therefore appear twice. An object that exists the whole time is never left out.

        :param ahead: Request the next page before a page is decoded, so that the server prepares it meanwhile.

        Raises:
            Gone: the continue token expired more than `LIST_RESTARTS_MAX` times.
        """
        request = Request("GET", resource.path(namespace))
        send = partial(
            self.list_page,
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
        )
        token: str | None = None
        restarts = 0
        following: asyncio.Task[bytes] | None = None
        try:
            while True:
                try:
                    page = await (following or send(continue_token=token))
                except Gone as gone:
                    restarts += 1
                    if restarts > LIST_RESTARTS_MAX:
                        raise
                    token, following = gone.continue_token, None
                    continue
                token = decode_list(str(request), page, msgspec.Raw).metadata.continue_
                following = asyncio.create_task(send(continue_token=token)) if ahead and token else None
                if following:
                    await asyncio.sleep(0)  # sends the request
                yield decode_list(str(request), page, kind).items or []
                if not token:
                    return
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> list[Json]:
        """Return all objects as dicts, each once."""
        objects: dict[tuple[str, str], Json] = {}
        pages = self.list_views(Json, resource, namespace, label_selector=label_selector, field_selector=field_selector)
        async for page in pages:
            objects |= {(o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in page}
        return list(objects.values())

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limits: WatchLimits = _LIMITS,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events after `resource_version`, including bookmarks, as undecoded JSON with one event per line.

        Each yielded part has one or more whole lines, as many as have arrived: waking the caller for each event of a
        burst costs more than the event itself. One call is one connection and does not resume.

        :param on_open: Called when the server has accepted the watch.

        Raises:
            Gone: the version is too old. The server may report this in an event of type ERROR instead, which the
                caller has to read.
            ReplyLost: the connection broke or was idle for too long.
        """
        query: Query = {
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "timeoutSeconds": max(1, round(limits.timeout_s)),
        }
        request = Request("GET", resource.path(namespace), query)
        self._retries.requests["watch"] += 1
        idle_timeout_s = limits.timeout_s + limits.idle_margin_s
        opened = self._transport.stream(request, idle_timeout_s=idle_timeout_s, open_timeout_s=REQUEST_TIMEOUT_S)
        async with opened as chunks:
            if on_open is not None:
                on_open()
            async with aclosing(whole_lines(chunks, str(request), bytes_max=limits.line_bytes_max)) as parts:
                async for lines in parts:
                    yield lines

    # -- logs ------------------------------------------------------------------------------------------------

    async def log_tail(
        self, name: str, namespace: str, *, container: str | None = None, tail_lines: int, bytes_max: int
    ) -> LogTail:
        """Return the end of a container's log: its last `tail_lines` lines, cut to the last `bytes_max` bytes.

        The server transfers all bytes of these lines.

        Raises:
            NotFound: the pod does not exist.
            BadRequest: the container has not started, or the kubelet has removed its log.
        """
        query: Query = {"container": container, "tailLines": tail_lines}
        request = Request("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
        send = partial(self._transport.send_for_end, request, timeout_s=LIST_TIMEOUT_S, bytes_max=bytes_max)
        tail = tail_of(await self._retries.send("log", send), tail_lines)
        check_not_message(tail.text.encode(), str(request))
        return tail

    @asynccontextmanager
    async def open_log(
        self, name: str, namespace: str, query: LogQuery, *, idle_timeout_s: float = LOG_IDLE_TIMEOUT_S
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send one request for a container's log, and yield an iterator over the bytes as they arrive.

        A server answers a request that follows a log with the first line, and not before. The client does not retry.

        Raises:
            NotFound: the pod does not exist.
            BadRequest: the container has not started, or the kubelet has removed its log.
            ReplyLost: the connection broke, or nothing arrived for `idle_timeout_s`.
        """
        request = Request("GET", PODS.path(namespace, name, "log"), query.parameters(), accept="*/*")
        self._retries.requests["log"] += 1
        async with (
            self._transport.stream(request, idle_timeout_s=idle_timeout_s) as chunks,
            aclosing(refuse_message(chunks, str(request))) as log,
        ):
            yield log


async def patch_uid(
    client: Client, resource: Resource, name: str, namespace: str | None, uid: str, body: Mapping[str, Any]
) -> bool:
    """Merge-patch the object of exactly this uid.

    :param body: The merge patch, without a uid.
    :return: False if the object is gone, or if another object has its name.

    Raises:
        Conflict: Others changed the object at the same time.
        ClusterError: The request failed. The patch may have been applied.
    """
    return await _is_applied(client.patch(resource, name, namespace, _with_metadata(body, uid=uid)))


async def patch_version(
    client: Client, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]
) -> Json:
    """Merge-patch an object in the version that was read. Return the object as the server stored it.

    :param metadata: The metadata that was read.
    :param body: The merge patch, without a uid and without a resourceVersion.

    Raises:
        Conflict: The object has changed.
        NotFound: The object does not exist.
        ClusterError: The request failed. The patch may have been applied.
    """
    seen = _with_metadata(body, uid=metadata["uid"], resourceVersion=metadata["resourceVersion"])
    return await client.patch(resource, metadata["name"], metadata["namespace"], seen)


async def patch_unchanged(
    client: Client, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]
) -> bool:
    """Merge-patch an object as `patch_version` does. Return false if the object has changed or is gone.

    Raises:
        ClusterError: The request failed. The patch may have been applied.
    """
    try:
        return await _is_applied(patch_version(client, resource, metadata, body))
    except Conflict:
        return False


async def delete_uid(client: Client, resource: Resource, name: str, namespace: str | None, uid: str) -> bool:
    """Delete the object of exactly this uid, and in the background what it owns.

    :return: False if the object is gone, or if another object has its name.

    Raises:
        ClusterError: The request failed. The object may be deleted.
    """
    return await _is_applied(client.delete(resource, name, namespace, uid=uid))


def version_of(metadata: Meta) -> dict[str, str]:
    """Return the metadata that names an object in the version that was read, as `patch_version` needs them."""
    return {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    }


async def _is_applied(write: Awaitable[object]) -> bool:
    """Send a write, and return false if its object is gone or another object has the name."""
    try:
        await write
    except NotFound:
        return False
    except (Conflict, Invalid) as error:
        if is_of_another_uid(error):
            return False
        raise
    return True


def _with_metadata(body: Mapping[str, Any], **expected: str) -> dict[str, Any]:
    return {**body, "metadata": {**body.get("metadata", {}), **expected}}
