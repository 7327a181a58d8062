"""A task whose gang is delivered or handed over after Airflow has stored the success of the task.

A task with storages: for the whole logs of its ranks, and for results that are too large for an XCom.

Storages of a task: a folder of `ObjectStoragePath` for each task run, for whole logs and for large results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, cast

from airflow.sdk import ObjectStoragePath

from airflow_provider_gangjobs.airflow_api.masking import mask
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.labels import TERMINATION_MESSAGE_BYTES_MAX
from airflow_provider_gangjobs.gang.spec import OnFinish, Policies, Results, WaitUntil
from airflow_provider_gangjobs.parameters.checks import (
    installation_folder,
    result_folders,
    storage_problems,
    task_folder,
)
from airflow_provider_gangjobs.parameters.task_parameters import GangTaskParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.submission.record import Submission
    from airflow_provider_gangjobs.tracking.follow import FollowUntil

__all__ = ["DeliveredTask", "StoringTask"]


class Delivery(Protocol):
    """What is left to do after the success of the task: `Completion` or `HandOver`."""

    def deliver_accepted(self, ti: Any) -> None:
        """Deliver the gang if Airflow's API server has stored the success of the task."""


class DeliveredTask(GangTaskParameters):
    """The base class of `GangJobOperator` with the success callback that delivers the gang."""

    _to_deliver: Delivery | None = None

    @property
    def on_success_callback(self) -> list[Callable[[Context], Any]]:
        """The callback that delivers the gang, followed by the callbacks of the user.

        Airflow calls them after it has reported the success of the task. The gang may be delivered only after the API
        server has accepted the report. Until then, a fault of the process, of `post_execute`, of an XCom backend or of
        the API server can still fail the task, and the next try must find the gang.
        """
        return [_deliver, *self._on_success]

    @on_success_callback.setter
    def on_success_callback(self, given: Callable[[Context], Any] | Iterable[Callable[[Context], Any]] | None) -> None:
        callbacks = () if given is None else (given,) if callable(given) else given
        self._on_success = [callback for callback in callbacks if callback is not _deliver]

    def deliver(self, ti: Any) -> None:
        """Mark the gang as delivered, and apply `on_finish`, if Airflow has stored the success of the task.

        Does nothing before the gang has succeeded.

        :param ti: The task instance of the context.
        """
        if self._to_deliver is not None:
            self._to_deliver.deliver_accepted(ti)

    def _push_xcom(self, context: Context, key: str, value: Any) -> None:
        """Push an XCom that describes the gang. A fault of the XCom backend is logged.

        The gang runs or has ended. The task must go on to wait for it, or to report its end.
        """
        if not self.do_xcom_push:
            return
        try:
            context["ti"].xcom_push(key, value)
        except Exception as error:  # an XCom backend may raise anything
            self.log.warning("XCom %s could not be pushed (%s). The task goes on", key, type(error).__name__)

    @property
    def _policies(self) -> Policies:
        ends_with_gang = self.wait_until is WaitUntil.ENDED
        return Policies(self.kill_policy, self.on_finish if ends_with_gang else OnFinish.KEEP, self.wait_until)

    @property
    def _until(self) -> FollowUntil:
        return "running" if self.wait_until is WaitUntil.RUNNING else "ended"


def _deliver(context: Context) -> None:
    task = context["task"]
    assert isinstance(task, DeliveredTask)
    task.deliver(context["ti"])


RANK_RESULT_BYTES: Final = TERMINATION_MESSAGE_BYTES_MAX - 1
"""The largest result of one rank that the kubelet keeps whole."""


class StoringTask(DeliveredTask):
    """The base class of `GangJobOperator` with `log_storage`, `result_storage` and `results_limit`."""

    _gangs: TaskGangs | None = None

    def _check_storages(self) -> None:
        """Check what this worker can know about the storages, before anything is created.

        Raises:
            InvalidGangSpec: a storage cannot be written.
        """
        rendered = {"log_storage": self.log_storage, "result_storage": self.result_storage}
        if problems := tuple(problem for name, url in rendered.items() for problem in storage_problems(name, url)):
            raise InvalidGangSpec(problems)
        self._warn_of_missing_installation(tuple(name for name, url in rendered.items() if url is not None))
        if self.log_storage is not None:
            self._storage("log_storage", self.log_storage).check()
        if self.result_storage is not None:
            from airflow_provider_gangjobs.parameters.result_storage import is_local

            if not is_local(self.result_storage):
                self._storage("result_storage", self.result_storage).check_for_ranks(self.log)

    def _warn_of_missing_installation(self, parameters: Sequence[str]) -> None:
        if parameters and not self._opened_gangs.key.installation:
            self.log.warning(
                "This Airflow has no installation id. Another Airflow with the same %s overwrites the objects of this"
                " task if the ids of its DAG, run and task are equal. Set [gangjobs] installation_id",
                " or ".join(parameters),
            )

    @property
    def _opened_gangs(self) -> TaskGangs:
        """The gangs of the task, over the connection that `_session` has opened."""
        assert self._gangs is not None, "the operator opens a session first"
        return self._gangs

    def _log_storage(self) -> TaskStorage | None:
        return None if self.log_storage is None else self._storage("log_storage", self.log_storage)

    def _storage(self, parameter: str, url: str) -> TaskStorage:

        return TaskStorage(url, self._opened_gangs.key, parameter)

    def _spec(self) -> GangSpec:
        """Return the spec, with what the ranks need to write large results."""
        spec = super()._spec()
        if self.result_storage is None:
            return spec
        from airflow_provider_gangjobs.parameters.result_storage import with_result_storage

        return with_result_storage(spec, task_folder(self.result_storage, self._opened_gangs.key))

    def _result_folders(self) -> tuple[str, ...]:
        """Return where the ranks may have stored results."""
        return () if self.result_storage is None else result_folders(self.result_storage, self._opened_gangs.key)

    def _warn_of_large_results(self, submission: Submission) -> None:
        """Log at the submission that the results may exceed the limit, which is enforced at the end of the gang."""
        bytes_max = submission.workers * RANK_RESULT_BYTES
        if self.results is Results.ALL and bytes_max > self.results_limit:
            self.log.warning(
                "The results of %d ranks may have up to %d bytes. With more than %d bytes (results_limit) the task"
                " fails after its gang",
                submission.workers,
                bytes_max,
                self.results_limit,
            )


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
