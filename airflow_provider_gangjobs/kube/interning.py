"""Stores equal values once: 100,000 pods of one gang differ in name, uid, version, and little else."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")

VALUES_MAX: Final = 8192
"""Limits the distinct values: node names, timestamps, and messages of schedulers and kubelets. A few megabytes."""


def make_interner(values_max: int = VALUES_MAX) -> Callable[[Any], Any]:
    """Return a function that maps each hashable value to the first equal value that the function received.

    The function remembers at most `values_max` values and forgets the least recently used one. Objects keep a forgotten
    value, and an equal value that arrives later is stored a second time.
    """
    return lru_cache(maxsize=values_max)(_identity)


def interner_of(kind: type[V]) -> Callable[[V, V | None], None] | None:
    """Return a function that interns the values of a view, given the view and the previous view of the same object.

    Return `None` if views of this kind have no method `intern(intern_value, previous, latest)`.
    """
    intern = getattr(kind, "intern", None)
    if intern is None:
        return None
    intern_value = make_interner()
    latest: V | None = None

    def intern_view(view: V, previous: V | None) -> None:
        nonlocal latest
        intern(view, intern_value, previous, latest)
        latest = view

    return intern_view


def _identity(value: Any) -> Any:
    return value
