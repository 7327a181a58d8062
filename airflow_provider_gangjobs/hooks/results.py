"""Reads results of ranks that `result_storage` keeps, for the tasks that use them.

An address that a rank wrote is opened with the rights of this worker. So only addresses in the folder of the task that
ran the gang are opened: `gang.outcome.outcomes` has the rule.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.container_programs.gangjobs_result import parse
from airflow_provider_gangjobs.exceptions import ResultAddressRefused
from airflow_provider_gangjobs.gang.outcome.outcomes import ADDRESS, MARK, SIZE, path_in, without_marks
from airflow_provider_gangjobs.gang.outcome.outcomes import is_address as is_stored

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_LOCAL: Final = ("", "file", "local")


def read_result(value: Any, *, storage: str | os.PathLike[str] | ObjectStoragePath | None = None) -> Any:
    """Return the result of a rank, which is the value itself or is stored at its address.

    The address is opened if the task that returned the value has found the address in its own folder. A value that no
    such task has returned, for example that of a sensor or a hook, needs `storage`.

    :param value: The result as an XCom has it: a JSON value or, for a result that was stored, `{"gang_result": URL,
        "bytes": size, "gang_result_folder": URL}`.
    :param storage: The `result_storage` of the task that ran the gang. Every address below it is opened.

    Raises:
        ResultAddressRefused: the address is not in the folder of the task, nor below `storage`. Nothing was opened.
        OSError: the storage cannot be read. It may be a volume that this worker does not mount.
        ValueError: the storage cannot be read, or has something else than what the rank wrote, or what Airflow cannot
            store.
    """
    if not is_stored(value):
        return value
    address: str = value[ADDRESS]
    folder = str(storage) if storage is not None else value.get(MARK, "")
    if not folder or not (path := path_in(folder, address)):
        raise ResultAddressRefused(address=address, folder=folder)
    _refuse_links(folder, path, address)
    from airflow.sdk import ObjectStoragePath

    content = ObjectStoragePath(address).read_bytes()
    if len(content) != (size := value[SIZE]):
        raise ValueError(f"{address} has {len(content)} bytes, and its rank wrote {size}")
    result, problem = parse(content.decode())
    if problem:
        raise ValueError(f"{address} has what Airflow cannot store: {problem}")
    return without_marks(result)


def _refuse_links(folder: str, path: str, address: str) -> None:
    """Refuse a file that a symbolic link below the folder leads to: ranks write the volume, and may write links.

    Raises:
        ResultAddressRefused: there is such a link.
    """
    protocol, mark, rest = folder.partition("://")
    if mark and protocol not in _LOCAL:
        return
    root = os.path.realpath(rest if mark else folder)
    if os.path.realpath(os.path.join(root, path)) != os.path.join(root, path):
        raise ResultAddressRefused(address=address, folder=folder, is_link=True)


__all__ = ["is_stored", "read_result"]
