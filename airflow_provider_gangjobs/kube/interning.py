"""Keeps equal values once: a hundred thousand pods of one gang differ in name, uid, version and little else."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")

VALUES_MAX: Final = 8192
"""Distinct values in use: nodes, seconds, and what schedulers and kubelets say. A few megabytes."""


def make_interner(values_max: int = VALUES_MAX) -> Callable[[Any], Any]:
    """A function that returns, for each hashable value, the first one it was given that is equal to it.

    Bounded: of more than `values_max` values, the one that was not given for the longest time is forgotten. What is
    forgotten lives on in the objects that have it, and is there twice if it comes again.
    """
    return lru_cache(maxsize=values_max)(_itself)


def interner_of(kind: type[V]) -> Callable[[V, V | None], None] | None:
    """What lets views of this kind share: with all that went before, and with the view before of the same object.

    `None` if the kind has nothing to share, which it says by a method `share(one, before, other)`.
    """
    share = getattr(kind, "share", None)
    if share is None:
        return None
    one = make_interner()
    other: V | None = None

    def let_share(view: V, before: V | None) -> None:
        nonlocal other
        share(view, one, before, other)
        other = view

    return let_share


def _itself(value: Any) -> Any:
    return value
