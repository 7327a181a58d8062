"""Storages of a task: a folder of `ObjectStoragePath` for each task run, for whole logs and for large results."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, cast

from airflow.sdk import ObjectStoragePath

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.hooks.masking import mask
from airflow_provider_gangjobs.operators.storage_urls import installation_folder

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.identity import TaskKey

PROBE = "write-test"
REMEDY = "Check the URL, its connection and its permissions, and that the worker has the provider of the storage"


class TaskStorage:
    """The objects of one task run of one installation of Airflow, in the folder that `storage_urls` names.

    :param parameter: The parameter of the operator that gives the URL, for messages.
    """

    def __init__(self, url: str, key: TaskKey, parameter: str) -> None:
        self._url = url
        self._key = key
        self._parameter = parameter

    @property
    def address_of_folder(self) -> str:
        """The URL of the folder."""
        return installation_folder(self._url, self._key)

    @property
    def _folder(self) -> ObjectStoragePath:
        return ObjectStoragePath(self.address_of_folder)

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
            self._write_probe()
        except Exception as error:  # a storage may raise anything
            raise self._problem(error) from error

    def check_for_ranks(self, log: Logger) -> None:
        """Check a storage that the ranks write, with credentials of their own, as far as this worker can know.

        Raises:
            InvalidGangSpec: the storage does not exist, or this worker has no library for its protocol.
        """
        try:
            self._write_probe()
        except (FileNotFoundError, ImportError, ValueError) as error:
            raise self._problem(error) from error
        except Exception as error:  # a storage may raise anything
            what = mask(f"{type(error).__name__}: {error}")
            log.warning(
                "This worker cannot write %s, so nobody knows yet whether the ranks can (%s)", self._parameter, what
            )

    def _write_probe(self) -> None:
        with self.open(PROBE) as file:
            file.write(b"\n")
        (self._folder / PROBE).unlink()

    def _problem(self, error: Exception) -> InvalidGangSpec:
        what = mask(f"{self._url} cannot be written: {type(error).__name__}: {error}")
        return InvalidGangSpec((Problem(self._parameter, what, REMEDY),))
