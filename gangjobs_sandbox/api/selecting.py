"""Selects the objects of a list or watch by namespace, name, labels and fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.apimachinery.selectors import FieldSelector, Selector
from gangjobs_sandbox.registry.field_selectors import check_fields, matches_fields
from gangjobs_sandbox.store import Event, EventType, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gangjobs_sandbox.api.routing import Target
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.store import Versions

__all__ = ["Selection", "select"]


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
