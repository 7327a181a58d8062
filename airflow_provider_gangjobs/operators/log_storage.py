"""The storage of whole logs: a folder of `ObjectStoragePath` for each task run."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, cast

from airflow.sdk import ObjectStoragePath

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.hooks.masking import mask

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import TaskKey

PROBE = "write-test"


class LogStorage:
    """The objects of one task run, under `<url>/<dag id>/<run id>/<task id>`, and the map index of a mapped task."""

    def __init__(self, url: str, key: TaskKey) -> None:
        self._url = url
        self._key = key

    @property
    def _folder(self) -> ObjectStoragePath:
        key = self._key
        folder = ObjectStoragePath(self._url) / key.dag_id / key.run_id / key.task_id
        return folder / str(key.map_index) if key.map_index >= 0 else folder

    def address(self, name: str) -> str:
        """Return the URL of an object. Airflow keeps credentials in the connection, not in the URL."""
        return str(self._folder / name)

    def open(self, name: str) -> BinaryIO:
        """Create or replace an object, and the folders above it where the storage has folders."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", path.open("wb"))  # type: ignore[no-untyped-call]

    def check(self) -> None:
        """Write and remove an object, before anything is created in the cluster.

        Raises:
            InvalidGangSpec: the storage cannot be written.
        """
        try:
            with self.open(PROBE) as file:
                file.write(b"\n")
            (self._folder / PROBE).unlink()
        except Exception as error:  # a storage may raise anything
            what = mask(f"{self._url} cannot be written: {type(error).__name__}: {error}")
            remedy = (
                "Check the URL, its connection and its permissions, and that the worker has the provider of the storage"
            )
            raise InvalidGangSpec((Problem("log_storage", what, remedy),)) from error
