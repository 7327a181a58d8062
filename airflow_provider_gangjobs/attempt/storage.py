"""The storages of a task: a folder of `ObjectStoragePath` for each task run, for whole logs and for large results.

`parameters.storage` has the rules for the URLs. A worker checks the storages before it creates anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from airflow_provider_gangjobs.airflow_api.masking import mask
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.parameters.checks import (
    installation_folder,
    result_folders,
    storage_problems,
    task_folder,
)

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.identity import TaskKey


@dataclass(frozen=True)
class TaskStorages:
    """The storages of one task run, by the rendered parameters `log_storage` and `result_storage`."""

    log_url: str | None
    result_url: str | None
    key: TaskKey
    log: Logger

    @property
    def logs(self) -> TaskStorage | None:
        """Where the whole logs of all ranks are written."""
        return None if self.log_url is None else TaskStorage(self.log_url, self.key, "log_storage")

    @property
    def result_folders(self) -> tuple[str, ...]:
        """Where the ranks may have stored results."""
        return () if self.result_url is None else result_folders(self.result_url, self.key)

    @property
    def result_folder(self) -> str | None:
        """The folder that the ranks know, in which each installation of Airflow has a folder."""
        return None if self.result_url is None else task_folder(self.result_url, self.key)

    def check(self) -> None:
        """Check what this worker can know about the storages, before anything is created.

        Raises:
            InvalidGangSpec: a storage cannot be written.
        """
        given = {"log_storage": self.log_url, "result_storage": self.result_url}
        if problems := tuple(problem for name, url in given.items() for problem in storage_problems(name, url)):
            raise InvalidGangSpec(problems)
        if (names := [name for name, url in given.items() if url is not None]) and not self.key.installation:
            self.log.warning(
                "This Airflow has no installation id. Another Airflow with the same %s overwrites the objects of this"
                " task if the ids of its DAG, run and task are equal. Set [gangjobs] installation_id",
                " or ".join(names),
            )
        if self.logs is not None:
            self.logs.check()
        if self.result_url is not None:
            from airflow_provider_gangjobs.parameters.result_storage import is_local

            if not is_local(self.result_url):
                TaskStorage(self.result_url, self.key, "result_storage").check_for_ranks(self.log)


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
        from airflow.sdk import ObjectStoragePath  # too expensive for a task without a storage

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
