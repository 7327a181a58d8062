"""Stored results: which addresses in the results of ranks are followed. Pure.

A rank whose result is large returns the address of an object, and the task that uses the result opens the address with
the rights of its worker. A rank may write any address. So the task that runs the gang marks the addresses of objects in
its own folder, and only marked addresses are followed. A rank cannot write the mark: `without_marks` removes the mark
from everything that a rank has written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

ADDRESS: Final = "gang_result"
"""Key of the address of a stored result. `operators.gangjobs_result`, which runs on the ranks, writes it."""
SIZE: Final = "bytes"
MARK: Final = "gang_result_folder"
"""Key of the folder that the address was found to be in. The task that runs the gang writes it."""

_OBJECT: Final = re.compile(r"attempt-\d+/(?:rank-\d+|pod-[A-Za-z0-9.-]+)\.json", re.ASCII)
_STEP: Final = re.compile(r"\.{0,2}")


def is_address(value: Any) -> bool:
    """Return whether the value is the address of a stored result, with or without the mark."""
    is_shaped = isinstance(value, Mapping) and value.keys() - {MARK} == {ADDRESS, SIZE}
    types = {ADDRESS: str, SIZE: int, MARK: str}
    return is_shaped and all(isinstance(item, types[name]) for name, item in value.items())


def with_mark(value: Any, folder: str | None) -> Any:
    """Return an address with its mark if it is that of a rank's object in the folder, else the value."""
    if folder is None or not is_address(value) or not _OBJECT.fullmatch(path_in(folder, value[ADDRESS])):
        return value
    return {**value, MARK: folder}


def without_marks(value: Any) -> Any:
    """Remove all marks from a JSON value, at any depth, and return the value."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            item.pop(MARK, None)
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return value


def path_in(folder: str, address: str) -> str:
    """Return the path from the folder to the object; empty if it is not below the folder."""
    root = folder.rstrip("/") + "/"
    path = address.removeprefix(root) if address.startswith(root) else ""
    steps = path.split("/")
    # fsspec takes "a::b" as the path a in the file system b.
    return "" if "::" in path or any(_STEP.fullmatch(step) for step in steps) else path
