"""A task with storages: for the whole logs of its ranks, and for results that are too large for an XCom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.labels import TERMINATION_MESSAGE_BYTES_MAX
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.operators.delivery import DeliveredTask
from airflow_provider_gangjobs.operators.storage_urls import result_folders, storage_problems, task_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.operators.task_gangs import TaskGangs
    from airflow_provider_gangjobs.operators.task_storage import TaskStorage
    from airflow_provider_gangjobs.submission.submission import Submission

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
            from airflow_provider_gangjobs.operators.result_storage import is_local

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
        from airflow_provider_gangjobs.operators.task_storage import TaskStorage

        return TaskStorage(url, self._opened_gangs.key, parameter)

    def _spec(self) -> GangSpec:
        """Return the spec, with what the ranks need to write large results."""
        spec = super()._spec()
        if self.result_storage is None:
            return spec
        from airflow_provider_gangjobs.operators.result_storage import with_result_storage

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


__all__ = ["StoringTask"]
