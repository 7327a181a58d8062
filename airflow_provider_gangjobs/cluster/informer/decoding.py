"""Reads pages and events just as far as needed: the envelope, and the caller's view of the objects.

Events are read in one pass, as many as came at once. An object that cannot be decoded is skipped and counted, so that
one odd object does not stop a thousand gangs; what it came with is then read again, event by event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from airflow_provider_gangjobs.cluster.errors import UnexpectedReply, error_from_event
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider_gangjobs.cluster.errors import ApiError

V = TypeVar("V", bound=HasMetadata)


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_: str | None = msgspec.field(name="continue", default=None)


class _RawPage(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class Unread(msgspec.Struct):
    """An object of which only this could be read: what it is, and in which version. Either may be empty."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)


class Page(msgspec.Struct, Generic[V]):
    """One page of a list."""

    resource_version: str
    continue_token: str | None
    items: Iterator[V | Unread]
    """To be gone through once. Each is decoded when it is its turn: five hundred at once would be a tenth more memory,
    for as long as any of them is kept, because what they have in common is found only then and leaves gaps."""


class WatchEvent(msgspec.Struct, Generic[V], gc=False):
    """One event. `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: V | Unread


_raw_pages = msgspec.json.Decoder(_RawPage)
_raw_events = msgspec.json.Decoder(_RawEvent)
_unread = msgspec.json.Decoder(Unread)


class Views(Generic[V]):
    """Decodes objects into the type that its consumers read.

    What does not fit is an `Unread`. A view may have no uid, since nobody looks at each here; it is as good as unread.
    """

    def __init__(self, kind: type[V]) -> None:
        self._views = msgspec.json.Decoder(kind)
        event = [("type", str), ("object", kind)]
        self._events: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Event", event, gc=False))

    def page(self, body: bytes) -> Page[V]:
        """
        Raises:
            UnexpectedReply: it is no list, or one without a version to watch from.
        """
        try:
            page = _raw_pages.decode(body)
        except msgspec.MsgspecError as exc:
            raise UnexpectedReply(200, request="list", message="the answer is no list of objects") from exc
        if not page.metadata.resource_version:
            raise UnexpectedReply(200, request="list", message="the list has no resourceVersion")
        return Page(page.metadata.resource_version, page.metadata.continue_, map(self._read, page.items or ()))

    def events(self, lines: bytes) -> Iterable[WatchEvent[V]]:
        """The events of these lines, in their order. To be gone through once.

        Raises:
            UnexpectedReply: a line is no watch event. It is raised in its turn: those before it are events.
        """
        try:
            events: list[WatchEvent[V]] = self._events.decode_lines(lines)
        except msgspec.MsgspecError:  # also for many a bookmark and error: what they have is no object of this kind
            return self._events_by_line(lines)
        return events

    def _events_by_line(self, lines: bytes) -> Iterator[WatchEvent[V]]:
        for event in _raw(lines):
            is_of_an_object = event.type not in ("BOOKMARK", "ERROR")
            yield WatchEvent(event.type, self._read(event.object) if is_of_an_object else _identify(event.object))

    def _read(self, raw: msgspec.Raw) -> V | Unread:
        try:
            return self._views.decode(raw)
        except msgspec.MsgspecError:
            return _identify(raw)


def error_in(lines: bytes, *, request: str) -> ApiError:
    """What the server says in the first event of type ERROR; there is one."""
    status = next(event.object for event in _raw(lines) if event.type == "ERROR")
    return error_from_event(bytes(status), request=request)


def _raw(lines: bytes) -> Iterator[_RawEvent]:
    for line in lines.split(b"\n"):
        if line.strip():
            try:
                event = _raw_events.decode(line)
            except msgspec.MsgspecError as exc:
                raise UnexpectedReply(200, request="watch", message="a line is no watch event") from exc
            yield event


def _identify(raw: msgspec.Raw) -> Unread:
    try:
        return _unread.decode(raw)
    except msgspec.MsgspecError:
        return Unread()
