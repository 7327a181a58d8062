"""Reads results of ranks that `result_storage` keeps, for the tasks that use them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

ADDRESS: Final = "gang_result"
"""Key of the address of a stored result. `operators.gangjobs_result`, which runs on the ranks, writes it."""


def read_result(value: Any) -> Any:
    """Return the result of a rank, which is the value itself or is stored at its address.

    :param value: The result as an XCom has it: a JSON value or, for a result that was stored, `{"gang_result": URL,
        "bytes": size}`.

    Raises:
        OSError, ValueError: the storage cannot be read. It may be a volume that this worker does not mount.
    """
    if not is_stored(value):
        return value
    from airflow.sdk import ObjectStoragePath

    text = ObjectStoragePath(value[ADDRESS]).read_text()
    try:
        return json.loads(text)
    except ValueError:  # a program may write text that is not JSON
        return text


def is_stored(value: Any) -> bool:
    """Return whether the value is the address of a stored result."""
    return isinstance(value, Mapping) and set(value) == {ADDRESS, "bytes"} and isinstance(value[ADDRESS], str)


__all__ = ["is_stored", "read_result"]
