"""Everything that talks to an API server, over plain dicts.

Typed models would silently drop the fields of newer versions, so objects stay dicts from end to end.
Reads are repeated until a deadline. A write is repeated only if the server said that it did not act;
after any other failure the caller looks at what is there and decides (`error.may_have_applied`).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from airflow_provider_gangjobs.cluster.auth.credentials import Credentials
from airflow_provider_gangjobs.cluster.clock import Timing
from airflow_provider_gangjobs.cluster.errors import Gone
from airflow_provider_gangjobs.cluster.http.lines import split_lines, whole_lines
from airflow_provider_gangjobs.cluster.http.options import Answer, ClientStatistics, Patch, Propagation
from airflow_provider_gangjobs.cluster.http.responses import Json, read_object, read_page
from airflow_provider_gangjobs.cluster.http.retry import RETRY_FOR_S, Persistent
from airflow_provider_gangjobs.cluster.http.transport import Exchange, Query, Transport
from airflow_provider_gangjobs.cluster.resources import PODS, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from types import TracebackType

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.http.log_tail import LogTail
    from airflow_provider_gangjobs.cluster.server_clock import ServerClock

REQUEST_TIMEOUT_S = 30.0
LIST_TIMEOUT_S = 60.0
"""A page of 500 large pods takes an API server seconds under load."""
PAGE_OBJECTS = 500
LIST_RESTARTS_MAX = 3
WATCH_MARGIN_S = 30.0
"""A watch ends by itself after its `timeoutSeconds`; one that is silent for this much longer is dead."""
LOG_LINE_BYTES_MAX = 2**16
LOG_SILENCE_S = 3600.0
WATCH_LINE_BYTES_MAX = 16 * 2**20
"""An object of etcd is at most 1.5 MiB; JSON and managedFields make it longer, but not tenfold."""

__all__ = ["Answer", "Client", "ClientStatistics", "Patch", "Propagation"]

T = TypeVar("T")
_DONE = frozenset({200})
_DONE_OR_GONE = frozenset({200, 404})


class Client:
    """One API server. Connects at the first request; belongs to the event loop that it is first used on."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        timing: Timing | None = None,
        retry_for_s: float = RETRY_FOR_S,
        credentials: Credentials | None = None,
    ) -> None:
        self.config = config
        timing = timing or Timing()
        self._credentials = credentials or Credentials(config, timing=timing)
        self._transport = Transport(self._credentials, tcp_keepalive=config.tcp_keepalive, monotonic=timing.monotonic)
        self._persistent = Persistent(self._transport, timing, retry_for_s=retry_for_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; safe to repeat."""
        await self._transport.aclose()

    @property
    def clock(self) -> ServerClock:
        """The API server's clock, learned from its answers."""
        return self._transport.clock

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(dict(self._persistent.requests), self._persistent.retries, self._credentials.renewals)

    # -- objects ---------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """One object as it is stored.

        Raises:
            NotFound: there is none; anything else means that this is not known.
        """
        return await self.raw_get(resource.path(namespace, name))

    async def raw_get(self, path: str) -> Json:
        """Whatever is at `path`, such as /version or a group's discovery document."""
        exchange = Exchange("GET", path)
        return read_object(exchange, await self._persistent.read("get", exchange, timeout_s=REQUEST_TIMEOUT_S))

    async def version(self) -> Json:
        return await self.raw_get("/version")

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        answer: Answer = Answer.OBJECT,
    ) -> Json:
        """Create an object; unknown and duplicate fields are refused. Returns what was stored, as far as `answer` says.

        Raises:
            AlreadyExists: one of this name is there, possibly from a request of ours whose answer was lost.
        """
        query = {"fieldValidation": "Strict", "dryRun": "All" if dry_run else None}
        exchange = Exchange("POST", resource.path(namespace), query, msgspec.json.encode(body), accept=answer.value)
        return read_object(
            exchange, await self._persistent.write("create", exchange, timeout_s=REQUEST_TIMEOUT_S), answer
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | list[Any],
        *,
        kind: Patch = Patch.MERGE,
        subresource: str | None = None,
        dry_run: bool = False,
        answer: Answer = Answer.OBJECT,
    ) -> Json:
        """Change part of an object. A uid or resourceVersion in the body is a precondition.

        Returns what is stored now, as far as `answer` says.

        Raises:
            Conflict: the precondition does not hold.
            NotFound: there is no such object.
        """
        path = resource.path(namespace, name, subresource)
        query = {"dryRun": "All"} if dry_run else None
        exchange = Exchange("PATCH", path, query, msgspec.json.encode(body), content_type=kind, accept=answer.value)
        return read_object(
            exchange, await self._persistent.write("patch", exchange, timeout_s=REQUEST_TIMEOUT_S), answer
        )

    async def patch_many(
        self,
        resource: Resource,
        patches: Iterable[tuple[T, str, str | None, Mapping[str, Any]]],
        done: Callable[[T], None],
        *,
        kind: Patch = Patch.MERGE,
        gone_is_done: bool = False,
        connections: int,
    ) -> tuple[list[T], bool]:
        """Patch many objects, for a fraction of the CPU of `patch`. For patches that may be applied twice.

        :param patches: What each is for, its object's name and namespace, and the patch. Taken one by one, until there
            are no more or the server has had enough.
        :param done: Told of each that is applied; with `gone_is_done` also of each whose object does not exist.
        :return: Those that were taken and are left for `patch`, which knows what to make of a refusal; and whether any
            was applied in this way.
        """
        requests = (
            (what, resource.path(namespace, name), msgspec.json.encode(body)) for what, name, namespace, body in patches
        )
        run = await self._transport.express(
            "PATCH",
            requests,
            done,
            content_type=kind,
            accept=Answer.METADATA.value,
            hoped=_DONE_OR_GONE if gone_is_done else _DONE,
            connections=connections,
            timeout_s=REQUEST_TIMEOUT_S,
        )
        if run is None:
            return [], False
        self._persistent.requests["patch"] += run.sent
        return run.given_back, run.succeeded > 0

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
        grace_period_s: int | None = None,
    ) -> None:
        """Ask for an object to be deleted; its finalizers decide when it is gone.

        Raises:
            Conflict: the object of this name has another uid.
            NotFound: there is no such object.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        exchange = Exchange("DELETE", resource.path(namespace, name), body=msgspec.json.encode(options))
        await self._persistent.write("delete", exchange, timeout_s=REQUEST_TIMEOUT_S)

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
        """One page of a list, undecoded.

        Raises:
            Gone: the continue token is too old.
        """
        query = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": limit,
            "continue": continue_token,
        }
        exchange = Exchange("GET", resource.path(namespace), query)
        return await self._persistent.read("list", exchange, timeout_s=LIST_TIMEOUT_S, retry_for_s=retry_for_s)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_OBJECTS,
    ) -> AsyncGenerator[list[Json], None]:
        """All objects, page by page; as `views`."""
        pages = self.views(
            Json, resource, namespace, label_selector=label_selector, field_selector=field_selector, limit=limit
        )
        async with aclosing(pages):
            async for page in pages:
                yield page

    async def views(
        self,
        kind: type[T],
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_OBJECTS,
    ) -> AsyncGenerator[list[T], None]:
        """All objects, page by page, decoded into `kind`: a view, or a dict.

        A list that grew too old goes on if the server allows, or starts again, so an object may come twice;
        none that exists all the while is left out.

        Raises:
            Gone: the list grew too old again and again.
        """
        token: str | None = None
        restarts = 0
        while True:
            try:
                page = await self.list_page(
                    resource,
                    namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                    limit=limit,
                    continue_token=token,
                )
            except Gone as gone:
                restarts += 1
                if restarts > LIST_RESTARTS_MAX:
                    raise
                token = gone.continue_token
                continue
            read = read_page(Exchange("GET", resource.path(namespace)), page, kind)
            yield read.items or []
            token = read.metadata.continue_
            if not token:
                return

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_OBJECTS,
    ) -> list[Json]:
        """All objects, each once, in the state last seen."""
        found: dict[tuple[str, str], Json] = {}
        pages = self.pages(
            resource, namespace, label_selector=label_selector, field_selector=field_selector, limit=limit
        )
        async for page in pages:
            found |= {(o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in page}
        return list(found.values())

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: float = 300,
        silence_s: float | None = None,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The events after `resource_version`, bookmarks included: one connection, undecoded, an event a line.

        What has come is given at once, so each part is one or more whole lines: to be woken for each event of a burst
        costs more than the event does.

        Ends when the server ends it, by `timeout_s` at the latest; never resumes by itself. `silence_s` is how
        long nothing may come before the connection counts as lost: by default a little longer than it may last.

        Raises:
            Gone: the version is too old (also an event of type ERROR may say so; that is the caller's to read).
            ReplyLost: the connection broke, or was silent for longer than it may be.
        """
        query: Query = {
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "timeoutSeconds": max(1, round(timeout_s)),
        }
        exchange = Exchange("GET", resource.path(namespace), query)
        self._persistent.requests["watch"] += 1
        silence_s = timeout_s + WATCH_MARGIN_S if silence_s is None else silence_s
        async with self._transport.stream(exchange, silence_s=silence_s, open_timeout_s=REQUEST_TIMEOUT_S) as chunks:
            if on_open is not None:
                on_open()
            async with aclosing(whole_lines(chunks, bytes_max=WATCH_LINE_BYTES_MAX)) as parts:
                async for lines in parts:
                    yield lines

    # -- logs ------------------------------------------------------------------------------------------------

    async def log_tail(
        self, name: str, namespace: str, *, container: str | None = None, tail_lines: int, bytes_max: int
    ) -> LogTail:
        """The end of what a container has written: the last lines, and of these at most `bytes_max`.

        What `tail_lines` chooses is transferred whole.

        Raises:
            NotFound: the pod is gone.
            BadRequest: the container has not started.
        """
        query: Query = {"container": container, "tailLines": tail_lines}
        exchange = Exchange("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
        end = await self._persistent.read_end("log", exchange, timeout_s=LIST_TIMEOUT_S, bytes_max=bytes_max)
        return end.tail(tail_lines=tail_lines)

    async def follow_log(
        self,
        name: str,
        namespace: str,
        *,
        container: str | None = None,
        tail_lines: int | None = None,
        since_s: int | None = None,
        silence_s: float = LOG_SILENCE_S,
    ) -> AsyncGenerator[str, None]:
        """A container's lines as they come, until it ends. Very long lines come in parts. Never resumes by itself."""
        query: Query = {"container": container, "follow": True, "tailLines": tail_lines, "sinceSeconds": since_s}
        exchange = Exchange("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
        self._persistent.requests["log"] += 1
        async with self._transport.stream(exchange, silence_s=silence_s) as chunks:
            lines = split_lines(chunks, bytes_max=LOG_LINE_BYTES_MAX)
            async with aclosing(lines):
                async for line in lines:
                    yield line.decode(errors="replace")
