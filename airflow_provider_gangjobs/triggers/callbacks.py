"""The base class of `callbacks`: what a user may run when the phase of a gang changes.

A DAG file imports this module, so it imports no other module of the provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pendulum import DateTime

    from airflow_provider_gangjobs.gang.identity import GangRef


class GangJobCallback:
    """Methods that the provider calls while it follows a gang. A subclass overrides them.

    The methods run in the process that follows the gang: in the triggerer if the task is deferred, otherwise in the
    worker. So a subclass is in a module that both processes can import, such as a module of the plugins folder, and not
    in a DAG file. They run in a thread, in the order of the changes, beside the wait for the gang: they delay neither
    an event nor a deadline, and an error is logged and changes nothing. A method may be a coroutine function. A method
    should set a timeout for whatever it waits for: a callback with three calls that do not end within a minute and
    still run is not called again in this process.

    A triggerer that restarts observes the gang again, and calls the method for the present phase again. A phase that
    lasts less than three seconds may be left out. The triggerer's threads cannot read XComs or variables.
    """

    @staticmethod
    def on_phase_change(
        *,
        gang: GangRef,
        task: Mapping[str, Any],
        phase: str,
        previous: str | None,
        message: str,
        since: DateTime | None,
        **kwargs: Any,
    ) -> Any:
        """Act on another phase of the gang.

        :param gang: Namespace, name and uid of the Job.
        :param task: `dag_id`, `run_id`, `task_id` and `map_index` of the task.
        :param phase: `submitted`, `queued`, `assembling`, `running`, `finishing`, `succeeded`, `failed` or `deleted`.
        :param previous: The phase before; `None` at the first look of this process.
        :param message: The line in the log of the task, such as `assembling: 8 pods, 3 placed`.
        :param since: When the phase began, in UTC, by the clock of the API server; `None` if this is unknown.
        :param kwargs: `category`, the stable name of why the gang is in this phase. Later versions may add values.
        """

    @staticmethod
    def on_progress(
        *,
        gang: GangRef,
        task: Mapping[str, Any],
        event: str,
        message: str,
        progress: Mapping[str, Any] | None,
        restarts: int | None,
        **kwargs: Any,
    ) -> Any:
        """Act on progress, or on a restart in place, as the streamed log of rank 0 tells it.

        :param gang: Namespace, name and uid of the Job.
        :param task: `dag_id`, `run_id`, `task_id` and `map_index` of the task.
        :param event: `progress`, `restart`, or `restarted` when all ranks run again.
        :param message: The line in the log of the task.
        :param progress: `step`, `total`, `rate`, `eta_s` and `metrics` as far as they are known; `None` before the
            first report.
        :param restarts: How often programs were restarted so far; `None` if nobody has told.
        :param kwargs: Later versions may add values.
        """


__all__ = ["GangJobCallback"]
