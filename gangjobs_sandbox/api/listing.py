"""Lists: filtered by namespace, name, labels and fields, paginated, and consistent across pages.

A continue token contains a revision and the last key that was returned. Later pages show the state at that revision,
which is read from the history of the store. They end with 410 when the history no longer contains that revision.
Watches use the same selections.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gangjobs_sandbox import errors
from gangjobs_sandbox.api.bodies import integer, options_error
from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.apimachinery.selectors import FieldSelector, Selector
from gangjobs_sandbox.registry.field_selectors import check_fields, matches_fields
from gangjobs_sandbox.store import Event, EventType, Expired, Store, Stored, Versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.store import Versions

__all__ = ["Page", "Selection", "page_of", "parse_revision", "select"]


_EXPIRED_PAGE = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You must start a new list without the continue parameter."
)
_EXPIRED_LIST = "The resourceVersion for the provided list is too old."


@dataclass(frozen=True)
class Selection:
    """A condition on the objects of one resource."""

    namespace: str | None
    labels: Selector
    fields: FieldSelector

    @property
    def is_everything(self) -> bool:
        """Return whether the selection has no other condition than the namespace."""
        return not self.labels.requirements and not self.fields.terms

    def matches(self, stored: Stored) -> bool:
        return self.labels.matches(stored.labels) and (not self.fields.terms or matches_fields(stored.obj, self.fields))

    def filter(self, found: Iterable[Stored]) -> Cooperative[Versions]:
        """Return the objects that match."""
        matching: Versions = []
        for stored in found:
            if self.matches(stored):
                matching.append(stored)
            yield
        return matching

    def events(self, changes: list[Event]) -> Iterator[tuple[EventType, Stored]]:
        """Yield the changes of the selection: an object that starts to match is ADDED, one that stops is DELETED."""
        for change in changes:
            if self.namespace is not None and change.obj["metadata"].get("namespace") != self.namespace:
                continue
            is_in = change.type is not EventType.DELETED and self.matches(change.stored)
            was_in = change.old_stored is not None and self.matches(change.old_stored)
            if is_in:
                yield (EventType.MODIFIED if was_in else EventType.ADDED), change.stored
            elif was_in:
                yield EventType.DELETED, change.stored


def select(target: Target, query: Mapping[str, str]) -> Selection:
    """Build the selection from the path and the parameters of a request.

    Raises:
        StatusError: 400, a selector is invalid or the resource does not support one of its fields.
    """
    try:
        labels = selectors.parse(query.get("labelSelector"))
        fields = selectors.parse_fields(query.get("fieldSelector"))
    except ValueError as exc:
        raise errors.bad_request(str(exc)) from exc
    check_fields(target.resource, fields.fields)
    if target.name is not None:
        fields = FieldSelector((*fields.terms, ("metadata.name", target.name, True)))
    return Selection(target.namespace, labels, fields)


@dataclass(frozen=True)
class Page:
    """Some of the objects of a list, and the position at which the next page starts."""

    items: Versions
    revision: int
    next: str | None = None
    remaining: int | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        meta: dict[str, Any] = {"resourceVersion": str(self.revision)}
        if self.next:
            meta["continue"] = self.next
        if self.remaining:
            meta["remainingItemCount"] = self.remaining
        return meta


class _Token(msgspec.Struct, array_like=True):
    revision: int
    namespace: str
    name: str


def page_of(store: Store, target: Target, query: Mapping[str, str]) -> Cooperative[Page]:
    """Return the requested page of the list, at the revision of the first page.

    Raises:
        StatusError: 400, 410 the revision is no longer kept, 504 it has not been reached.
    """
    selection = select(target, query)
    limit = integer(query, "limit") or 0
    token = _decode(query["continue"]) if query.get("continue") else None
    revision = token.revision if token else _revision(query, store.revision)
    if revision is None:
        revision = store.revision
        found = store.list(target.resource, selection.namespace, selection.labels)
    else:
        found = _at(store, target, revision, selection.namespace, is_page=token is not None)
    if token:
        found = found[bisect_right(found, (token.namespace, token.name), key=_key) :]
    if not selection.is_everything:
        found = yield from selection.filter(found)
    if not limit or len(found) <= limit:
        return Page(found, revision)
    last = found[limit - 1]
    remaining = len(found) - limit if selection.is_everything else None
    return Page(found[:limit], revision, _encode(_Token(revision, *_key(last))), remaining)


def _key(stored: Stored) -> tuple[str, str]:
    metadata = stored.obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def parse_revision(text: str | None) -> int:
    """Return a resourceVersion parameter as a number, or 0 if there is none.

    Raises:
        StatusError: 400, the value is not a version of this server.
    """
    if not (text or "0").isdecimal():
        problem = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise errors.bad_request(f"invalid resource version: {problem}")
    return int(text or 0)


def _revision(query: Mapping[str, str], current: int) -> int | None:
    """Return the earlier revision that a list must show, or None for the current state."""
    wanted, match = query.get("resourceVersion"), query.get("resourceVersionMatch")
    if match and not wanted:
        cause = errors.forbidden_field(
            "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
        raise options_error("ListOptions", cause)
    if match not in {None, "", "Exact", "NotOlderThan"}:
        cause = errors.not_supported("resourceVersionMatch", match, ("Exact", "NotOlderThan", ""))
        raise options_error("ListOptions", cause)
    revision = parse_revision(wanted)
    if revision > current:
        raise errors.too_large_resource_version(revision, current)
    return revision if match == "Exact" else None


def _at(store: Store, target: Target, revision: int, namespace: str | None, *, is_page: bool) -> Versions:
    if revision > store.revision:
        raise errors.too_large_resource_version(revision, store.revision)
    try:
        return store.list_at(target.resource, revision, namespace)
    except Expired as exc:
        raise errors.expired(_EXPIRED_PAGE if is_page else _EXPIRED_LIST) from exc


def _encode(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


def _decode(text: str) -> _Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Token)
    except (binascii.Error, msgspec.DecodeError, ValueError) as exc:
        raise errors.bad_request(
            "invalid continue token: continue key is not valid: it does not come from this server"
        ) from exc
