"""Decodes pages and events as far as the informer needs: the envelope, and the caller's view of each object.

All events that arrived together are decoded in one pass. If one of them cannot be decoded, they are decoded again one
by one. An object that cannot be decoded is skipped and counted, so that one odd object does not stop a thousand gangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from airflow_provider_gangjobs.cluster.errors import UnexpectedReply, error_from_watch_event
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


class Undecoded(msgspec.Struct):
    """An object that could not be decoded, except for its uid and version. Either may be empty."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)


class ListPage(msgspec.Struct, Generic[V]):
    """One page of a list."""

    resource_version: str
    continue_token: str | None
    items: Iterator[V | Undecoded]
    """An iterator that decodes each object when it is reached. Decoding 500 objects at once would take a tenth more
    memory for as long as any of them is kept: equal values are interned only afterwards, and the freed duplicates leave
    gaps."""


class WatchEvent(msgspec.Struct, Generic[V], gc=False):
    """One event. `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: V | Undecoded


_page_decoder = msgspec.json.Decoder(_RawPage)
_event_decoder = msgspec.json.Decoder(_RawEvent)
_undecoded_decoder = msgspec.json.Decoder(Undecoded)


class ViewDecoder(Generic[V]):
    """Decodes objects into the view type `kind`.

    An object that does not fit becomes an `Undecoded`. This class does not check that a view has a uid. The caller
    treats a view without a uid as undecoded.
    """

    def __init__(self, kind: type[V]) -> None:
        self._view_decoder = msgspec.json.Decoder(kind)
        event = [("type", str), ("object", kind)]
        self._batch_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct("Event", event, gc=False)
        )

    def decode_page(self, body: bytes) -> ListPage[V]:
        """Decode one page of a list.

        Raises:
            UnexpectedReply: the body is not a list, or the list has no resourceVersion to watch from.
        """
        try:
            page = _page_decoder.decode(body)
        except msgspec.MsgspecError as exc:
            raise UnexpectedReply(200, request="list", message="the response is not a list of objects") from exc
        if not page.metadata.resource_version:
            raise UnexpectedReply(200, request="list", message="the list has no resourceVersion")
        return ListPage(page.metadata.resource_version, page.metadata.continue_, map(self._decode, page.items or ()))

    def decode_events(self, lines: bytes) -> Iterable[WatchEvent[V]]:
        """Decode whole lines into events, in order. The result can be iterated once.

        Raises:
            UnexpectedReply: a line is not a watch event. The iterator raises when it reaches the line.
        """
        try:
            events: list[WatchEvent[V]] = self._batch_decoder.decode_lines(lines)
        except msgspec.MsgspecError:  # Also for bookmarks and errors whose object does not have the view's type.
            return self._events_by_line(lines)
        return events

    def _events_by_line(self, lines: bytes) -> Iterator[WatchEvent[V]]:
        for event in _raw_events(lines):
            has_object = event.type not in ("BOOKMARK", "ERROR")
            yield WatchEvent(event.type, self._decode(event.object) if has_object else _decode_identity(event.object))

    def _decode(self, raw: msgspec.Raw) -> V | Undecoded:
        try:
            return self._view_decoder.decode(raw)
        except msgspec.MsgspecError:
            return _decode_identity(raw)


def error_of_watch(lines: bytes, *, request: str) -> ApiError:
    """Return the error in the first event of type ERROR. The lines must contain one."""
    status = next(event.object for event in _raw_events(lines) if event.type == "ERROR")
    return error_from_watch_event(bytes(status), request=request)


def _raw_events(lines: bytes) -> Iterator[_RawEvent]:
    for line in lines.split(b"\n"):
        if line.strip():
            try:
                event = _event_decoder.decode(line)
            except msgspec.MsgspecError as exc:
                raise UnexpectedReply(200, request="watch", message="a line is not a watch event") from exc
            yield event


def _decode_identity(raw: msgspec.Raw) -> Undecoded:
    try:
        return _undecoded_decoder.decode(raw)
    except msgspec.MsgspecError:
        return Undecoded()
