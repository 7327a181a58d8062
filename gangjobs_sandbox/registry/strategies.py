"""The rules that all resources share, and the methods in which a resource may differ.

A strategy is pure: it gets private copies of objects and a `Context`, changes the new object, and returns the errors.
The order on create is `default`, `prepare_create`, `validate_create`, `validate`; on update it is `default`,
`prepare_update` (or `prepare_status`), `validate`, `validate_update` (or `validate_status`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gangjobs_sandbox.registry import naming
from gangjobs_sandbox.registry.deletion import DeleteOptions, Propagation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from gangjobs_sandbox.errors import Cause
    from gangjobs_sandbox.releases import Release
    from gangjobs_sandbox.resources import Resource
    from gangjobs_sandbox.store import Object

__all__ = ["Context", "Strategy", "count_generation"]


@dataclass(frozen=True)
class Context:
    """What a strategy may know beside the object itself."""

    release: Release
    now: datetime
    find: Callable[[Resource, str, str], Object | None]
    """The stored object of this namespace and name, or None."""
    items: Callable[[Resource, str], Sequence[Object]]
    """All stored objects of this namespace."""


class Strategy:
    """A resource without particulars: any content, no generation, deleted at once."""

    has_status: ClassVar[bool] = False
    propagation: ClassVar[Propagation] = Propagation.BACKGROUND
    unconditional_update: ClassVar[bool] = True
    """Whether an update may leave out the resourceVersion."""
    defaults_spec_only: ClassVar[bool] = False
    """Whether `default` is about the spec alone, so that a spec which stays as it is needs none."""
    returns_deleted: ClassVar[bool] = False
    """Whether DELETE answers with the object instead of a Status."""

    def problems_with_name(self, name: str, context: Context) -> list[str]:
        """The complaints about the name of an object of this kind."""
        return naming.dns_subdomain(name)

    def default(self, obj: Object, context: Context) -> None:
        """Fill in the fields that were left out."""

    def prepare_create(self, obj: Object, context: Context) -> None:
        """Bring a new object into its first state; by default its status is empty."""
        if self.has_status:
            obj["status"] = {}

    def prepare_update(self, new: Object, old: Object, context: Context) -> None:
        """Undo what the main endpoint may not change: the status."""
        if self.has_status:
            _keep(new, old, "status")

    def prepare_status(self, new: Object, old: Object, context: Context) -> None:
        """Undo what the status endpoint may not change: everything else of the object."""
        for field in {*new, *old} - {"status", "metadata", "apiVersion", "kind"}:
            _keep(new, old, field)

    def validate_create(self, obj: Object, context: Context) -> list[Cause]:
        """What is wrong with a new object only."""
        return []

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        """What is wrong with the object by itself, metadata aside."""
        return []

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        """What is wrong with the change."""
        return []

    def validate_status(self, new: Object, old: Object, context: Context) -> list[Cause]:
        """What is wrong with the change of status."""
        return []

    def canonicalize(self, obj: Object) -> None:
        """Bring a new object that is fine into the form in which it is kept."""

    def warnings(self, obj: Object) -> list[str]:
        """What a client should know about a new object that is fine."""
        return []

    def grace_period_s(self, obj: Object, options: DeleteOptions) -> int | None:
        """The grace period of a deletion; None if this kind of object has none."""
        return None

    def may_remove(self, obj: Object) -> bool:
        """Whether an object that waits for nothing generic any more may really go."""
        return True


def _keep(new: Object, old: Object, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def count_generation(new: Object, old: Mapping[str, Any]) -> None:
    """A change of the spec is a new generation."""
    if new.get("spec") != old.get("spec"):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
