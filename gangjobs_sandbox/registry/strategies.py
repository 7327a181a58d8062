"""The rules that all resources share, and the methods in which a resource may differ.

A strategy is pure: it gets private copies of objects and a `Context`, changes the new object, and returns the errors.
The order on create is `default`, `prepare_create`, `validate_create`, `validate`; on update it is `default`,
`prepare_update` (or `prepare_status`), `validate`, `validate_update` (or `validate_status`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gangjobs_sandbox.apimachinery import validation
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
    """The information that a strategy has besides the object."""

    release: Release
    now: datetime
    find: Callable[[Resource, str, str], Object | None]
    """Return the stored object of this namespace and name, or None."""
    items: Callable[[Resource, str], Sequence[Object]]
    """Return all stored objects of this namespace."""


class Strategy:
    """The rules that apply unless a resource overrides them: any content, no generation, and immediate deletion."""

    has_status: ClassVar[bool] = False
    propagation: ClassVar[Propagation] = Propagation.BACKGROUND
    unconditional_update: ClassVar[bool] = True
    """Whether an update may omit the resourceVersion."""
    defaults_spec_only: ClassVar[bool] = False
    """Whether `default` changes the spec only, so that an unchanged spec needs no defaults."""
    returns_deleted: ClassVar[bool] = False
    """Whether DELETE returns the object instead of a Status."""

    def problems_with_name(self, name: str, context: Context) -> list[str]:
        """Return the errors in the name of an object of this kind."""
        return validation.dns_subdomain(name)

    def default(self, obj: Object, context: Context) -> None:
        """Set the defaults of omitted fields."""

    def prepare_create(self, obj: Object, context: Context) -> None:
        """Set the initial state of a new object. By default, its status is empty."""
        if self.has_status:
            obj["status"] = {}

    def prepare_update(self, new: Object, old: Object, context: Context) -> None:
        """Revert the fields that the main endpoint must not change: the status."""
        if self.has_status:
            _keep(new, old, "status")

    def prepare_status(self, new: Object, old: Object, context: Context) -> None:
        """Revert the fields that the status endpoint must not change: everything except the status."""
        for field in {*new, *old} - {"status", "metadata", "apiVersion", "kind"}:
            _keep(new, old, field)

    def validate_create(self, obj: Object, context: Context) -> list[Cause]:
        """Return the errors that apply to new objects only."""
        return []

    def validate(self, obj: Object, context: Context) -> list[Cause]:
        """Return the errors in the object itself, except for its metadata."""
        return []

    def validate_update(self, new: Object, old: Object, context: Context) -> list[Cause]:
        """Return the errors in the change."""
        return []

    def validate_status(self, new: Object, old: Object, context: Context) -> list[Cause]:
        """Return the errors in the change of the status."""
        return []

    def canonicalize(self, obj: Object) -> None:
        """Convert a valid new object into its stored form."""

    def warnings(self, obj: Object) -> list[str]:
        """Return the warnings about a valid new object for the client."""
        return []

    def grace_period_s(self, obj: Object, options: DeleteOptions) -> int | None:
        """Return the grace period of a deletion in seconds, or None if this kind of object has none."""
        return None

    def may_remove(self, obj: Object) -> bool:
        """Return whether an object may be removed that has neither a grace period nor finalizers left."""
        return True


def _keep(new: Object, old: Object, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def count_generation(new: Object, old: Mapping[str, Any]) -> None:
    """Increase the generation if the spec has changed."""
    if new.get("spec") != old.get("spec"):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
