"""Reads pages and events just as far as needed: the envelope, and the caller's view of the object.

An object that cannot be decoded is skipped and counted, so that one odd object does not stop a thousand gangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from airflow_provider_gangjobs.cluster.errors import UnexpectedReply
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata
from airflow_provider_gangjobs.objects.sharing import sharing

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V", bound=HasMetadata)


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_: str | None = msgspec.field(name="continue", default=None)


class Page(msgspec.Struct):
    """One page of a list, its objects undecoded."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct):
    """One event, its object undecoded. `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Identified(msgspec.Struct):
    metadata: _Meta


_pages = msgspec.json.Decoder(Page)
_events = msgspec.json.Decoder(WatchEvent)
_identified = msgspec.json.Decoder(_Identified)


def read_page(body: bytes) -> Page:
    """
    Raises:
        UnexpectedReply: it is no list, or one without a version to watch from.
    """
    try:
        page = _pages.decode(body)
    except msgspec.MsgspecError as exc:
        raise UnexpectedReply(200, request="list", message="the answer is no list of objects") from exc
    if not page.metadata.resource_version:
        raise UnexpectedReply(200, request="list", message="the list has no resourceVersion")
    return page


def read_event(line: bytes) -> WatchEvent:
    """
    Raises:
        UnexpectedReply: it is no watch event.
    """
    try:
        return _events.decode(line)
    except msgspec.MsgspecError as exc:
        raise UnexpectedReply(200, request="watch", message="a line is no watch event") from exc


def version_of(raw: msgspec.Raw) -> str:
    """The version of any object, of a bookmark too; empty if it has none."""
    return _meta_of(raw).resource_version


def uid_of(raw: msgspec.Raw) -> str:
    """The uid of an object of which nothing else may be readable; empty if that is not either."""
    return _meta_of(raw).uid


def _meta_of(raw: msgspec.Raw) -> _Meta:
    try:
        return _identified.decode(raw).metadata
    except msgspec.MsgspecError:
        return _Meta()


class Views(Generic[V]):
    """Decodes objects into the type that its consumers read, and counts those that it cannot.

    What is equal in many of them is kept once, if the type says what that may be (`share`).
    """

    def __init__(self, kind: type[V]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._share: Callable[[V, Callable[[Any], Any]], None] | None = getattr(kind, "share", None)
        self._one = sharing()
        self.errors = 0

    def read(self, raw: msgspec.Raw) -> V | None:
        try:
            view = self._decoder.decode(raw)
        except msgspec.MsgspecError:
            self.errors += 1
            return None
        if not view.metadata.uid:
            self.errors += 1
            return None
        if self._share is not None:
            self._share(view, self._one)
        return view
