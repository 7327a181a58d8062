"""JSON pointers (RFC 6901), by which a JSON patch names the values of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def annotation_pointer(name: str) -> str:
    """Return the pointer of an annotation."""
    return f"/metadata/annotations/{_escape(name)}"


def pointers_of(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the pointer and the value of each leaf of nested mappings. Lists are leaves.

    :param path: The pointer of `values` itself.
    """
    for key, value in values.items():
        pointer = f"{path}/{_escape(key)}"
        if isinstance(value, dict):
            yield from pointers_of(value, pointer)
        else:
            yield pointer, value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


__all__ = ["annotation_pointer", "pointers_of"]
