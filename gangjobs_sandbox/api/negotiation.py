"""Content negotiation: whole objects, rows of a table, or only the metadata of objects.

A list is encoded in pieces, so that thousands of objects are not encoded in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gangjobs_sandbox.api.conversion import encode
from gangjobs_sandbox.api.tables import Table
from gangjobs_sandbox.api.tables.table import partial_metadata
from gangjobs_sandbox.errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gangjobs_sandbox.api.listing import Page
    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.store import Object, Stored

__all__ = ["Form", "form_of"]

_JSON = {"application/json", "application/*", "*/*", ""}


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
    message = "only the following media types are accepted: application/json"
    raise StatusError(406, "NotAcceptable", message)


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
