"""The `Table` of meta.k8s.io/v1: the columns once, and one row for each object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gangjobs_sandbox.api.conversion import to_version
from gangjobs_sandbox.api.tables.rows import layout_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.store import Object, Stored

__all__ = ["Table", "partial_metadata"]


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
