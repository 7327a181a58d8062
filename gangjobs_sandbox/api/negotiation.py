"""Content negotiation: whole objects, a `Table` with a row for each object, or only the metadata of objects.

A list is encoded in pieces, so that thousands of objects are not encoded in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gangjobs_sandbox.api.bodies import encode, to_version
from gangjobs_sandbox.api.tables.rows import layout_of
from gangjobs_sandbox.errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gangjobs_sandbox.api.listing import Page
    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.store import Object, Stored

__all__ = ["Form", "Table", "form_of", "is_aggregated", "partial_metadata"]


_JSON = {"application/json", "application/*", "*/*", ""}


def partial_metadata(obj: Object) -> Object:
    """Return the object without its content: `PartialObjectMetadata`."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


class Table:
    """Builds the tables of one request. A watch gets the columns with its first row only."""

    def __init__(self, target: Target, clock: Clock, *, include: str = "Metadata") -> None:
        self._target = target
        self._clock = clock
        self._layout = layout_of(target.resource)
        self._include = include
        self._has_sent_columns = False

    def head(self, metadata: Mapping[str, Any]) -> Object:
        """Return the table without its rows."""
        columns = None if self._has_sent_columns else self._layout.definitions()
        self._has_sent_columns = True
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": columns,
        }

    def row(self, stored: Stored) -> bytes:
        """Return the row of one object."""
        return msgspec.json.encode(self._row(stored.obj))

    def of_one(self, stored: Stored) -> bytes:
        """Return a table of one object, for an event of a watch."""
        metadata = {"resourceVersion": str(stored.revision)}
        return msgspec.json.encode({**self.head(metadata), "rows": [self._row(stored.obj)]})

    def _row(self, obj: Object) -> dict[str, Any]:
        row: dict[str, Any] = {"cells": self._layout.cells(obj, self._clock.now())}
        if self._include == "Object":
            row["object"] = to_version(obj, self._target)
        elif self._include != "None":
            row["object"] = partial_metadata(obj)
        return row


@dataclass(frozen=True)
class Form:
    """The format of objects and lists in a response."""

    one: Callable[[Stored], bytes]
    """Encodes a single object, or the object of a watch event."""
    head: Callable[[Page], Object]
    """Encodes a list without its items."""
    item: Callable[[Stored], bytes]
    items: str = "items"
    """The field of the list that contains the items."""

    def pieces(self, page: Page) -> Iterator[bytes]:
        """Return the JSON of a list in pieces: the start, each item, and the end."""
        yield msgspec.json.encode(self.head(page))[:-1] + b',"' + self.items.encode() + b'":['
        for position, stored in enumerate(page.items):
            yield (b"," if position else b"") + self.item(stored)
        yield b"]}"


def form_of(accept: str, target: Target, query: Mapping[str, str], clock: Clock) -> Form:
    """Return the first format in the `Accept` header that this server supports.

    Raises:
        StatusError: 406, the server supports none of them.
    """
    for choice in _choices(accept):
        if choice["type"] not in _JSON:
            continue
        if choice.get("as") == "Table" and choice.get("v", "v1") == "v1":
            return _rows(Table(target, clock, include=query.get("includeObject") or "Metadata"))
        if choice.get("as", "").startswith("PartialObjectMetadata"):
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            return Form(_metadata_json, partial(_head, kind, version), _metadata_json)
        if "as" not in choice:
            whole = partial(encode, target=target)
            return Form(whole, partial(_head, f"{target.resource.kind}List", target.api_version), whole)
    raise _not_acceptable()


def is_aggregated(accept: str) -> bool:
    """Return whether the `Accept` header of a request for the API groups has the type of aggregated discovery.

    Raises:
        StatusError: 406, the server supports no type of the header.
    """
    choices = [choice for choice in _choices(accept) if choice["type"] in _JSON]
    wanted = {"g": "apidiscovery.k8s.io", "v": "v2", "as": "APIGroupDiscoveryList"}
    if any(wanted.items() <= choice.items() for choice in choices):
        return True
    if all("as" in choice for choice in choices):
        raise _not_acceptable()
    return False


def _not_acceptable() -> StatusError:
    return StatusError(406, "NotAcceptable", "only the following media types are accepted: application/json")


def _choices(header: str) -> list[dict[str, str]]:
    """Return the media types of an `Accept` header in order, each with its parameters and its `type`."""
    choices = []
    for part in header.split(","):
        media, *parameters = [item.strip() for item in part.split(";")]
        pairs = (item.partition("=") for item in parameters)
        choices.append({"type": media.lower()} | {name: value for name, _, value in pairs})
    return choices


def _rows(table: Table) -> Form:
    return Form(table.of_one, lambda page: table.head(page.metadata), table.row, "rows")


def _metadata_json(stored: Stored) -> bytes:
    return msgspec.json.encode(partial_metadata(stored.obj))


def _head(kind: str, api_version: str, page: Page) -> Object:
    return {"kind": kind, "apiVersion": api_version, "metadata": page.metadata}
