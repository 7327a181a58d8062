"""GangJobOperator: one Airflow task whose pods run together or not at all.

Between `execute` and `execute_complete` the operator needs no process: `execute_complete` reads everything from the
cluster and from the event. The parameters are declared in `parameters.declaration`, and what a try does is in
`attempt.task_try`. Parsing a DAG file imports no client library.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferralError, TaskDeferralTimeout
from airflow_provider_gangjobs.airflow_api.task_end import applying, replaced_methods
from airflow_provider_gangjobs.airflow_api.task_state import (
    has_reported,
    is_of_earlier_try,
    is_running_try,
    reason_to_start_in_worker,
)
from airflow_provider_gangjobs.gang.spec import GangSpec, OnKill, WaitUntil
from airflow_provider_gangjobs.parameters.declaration import PARAMETERS, documentation, gang_job_parameters, takes
from airflow_provider_gangjobs.parameters.task_parameters import (
    ForScheduler,
    GangParameters,
    TaskParameters,
    answers_to_unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta

    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.attempt.task_gangs import StartGuard, TaskGangs
    from airflow_provider_gangjobs.attempt.task_try import TaskTry
    from airflow_provider_gangjobs.parameters.triggerer_start import TriggererStart

COMPLETING_METHODS: Final = ("execute_complete", "resume_execution", "post_execute", "deliver")
"""The methods that only a worker calls at the end of the gang."""
NOT_DEFERRED: Final = "the task is mapped over values that only a worker resolves, or runs in dag.test()"
RESUMED_READS_CONNECTION_FOR_S: Final = 60.0
"""How long a resumed worker retries the reading of its connection, which existed when the gang was submitted."""


class GangJobOperator(GangParameters):
    __doc__ = documentation()

    start_from_trigger: Any = ForScheduler(False, lambda task: task.triggerer_start.arguments is not None)
    start_trigger_args: Any = ForScheduler(None, lambda task: task.triggerer_start.arguments)
    __supports_durable_execution: ClassVar[bool] = True  # read by the Airflow Registry (apache/airflow#70291)
    _reason_for_worker: str | None = None
    """Why the trigger has left the start of the gang to this worker."""
    may_defer_for_previous: bool = True
    _try: TaskTry | None = None

    @takes(gang_job_parameters)
    def __init__(self, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name, parameter.default) for name, parameter in PARAMETERS.items()}
        with answers_to_unknown(type(self), kwargs):
            # With `resources` in default_args, Airflow would take them for its own.
            super().__init__(**kwargs, resources=None)
        self._set_parameters(given)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return what `.expand()` makes mapped tasks of, as Airflow does."""
        with answers_to_unknown(cls, kwargs):
            made = super().partial(**kwargs)
        from airflow_provider_gangjobs.parameters.triggerer_start import gang_partial

        return gang_partial(made)

    @classmethod
    def for_trigger(cls, parameters: Mapping[str, Any], source: Mapping[str, Any] | None, **common: Any) -> Self:
        """Return the operator of a task whose trigger starts the gang.

        :param parameters: The parameters that `triggerer_start` has given to the trigger.
        :param source: The function of a decorated task.
        :param common: Parameters of `BaseOperator`.
        """
        return cls(**parameters, **common)

    @property
    def triggerer_start(self) -> TriggererStart:
        """Whether the triggerer can start the gang, and with which arguments. Known when the whole DAG is known."""
        from airflow_provider_gangjobs.parameters.triggerer_start import start_of

        return start_of(self)

    def execute(self, context: Context) -> Any:
        """Submit the gang, or adopt the gang of an earlier try. Then wait for its end, in the triggerer if possible."""
        self._log_start_in_worker()
        with self._opened_try(context) as this_try:
            return this_try.run()

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Complete the task with the event of the trigger. Everything else is read from the cluster.

        A try that Airflow resumes with the event of an earlier try begins with `execute` (`airflow_api.task_state`).

        :param event: `None` if no trigger has run: `airflow tasks test` resumes a task that the scheduler would defer.
        """
        if event is None:
            return self.execute(context)
        if is_of_earlier_try(event, context["ti"]):
            self.log.warning("The task was cleared while a worker completed it, so this try begins anew")
            return self.execute(context)
        if (reason := reason_to_start_in_worker(event)) is not None:
            self._reason_for_worker = reason
            return self.execute(context)
        from airflow_provider_gangjobs.gang.outcome.event import GangEvent

        with self._opened_try(context, retry_for_s=RESUMED_READS_CONNECTION_FOR_S) as this_try:
            return this_try.resume(GangEvent.from_payload(event))

    def execute_after_previous(self, context: Context, event: dict[str, Any]) -> Any:
        """Submit the gang after the wait for the pods of an earlier attempt.

        Raises:
            DeadlineExceeded: a time limit of the task has passed meanwhile.
        """
        from airflow_provider_gangjobs.attempt.task_gangs import deadline_error
        from airflow_provider_gangjobs.gang.state.phase import Status

        if event.get("status") == Status.TIMEOUT and not is_of_earlier_try(event, context["ti"]):
            raise deadline_error(event)
        self.may_defer_for_previous = event.get("status") != Status.ERROR
        return self.execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task, also if Airflow has ended the deferral: after its time limit, or after a failed trigger."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as late:
            # Airflow ends a deferral some time after the trigger should have ended it with the same error.
            raise self._new_try(context, retry_for_s=RESUMED_READS_CONNECTION_FOR_S).end_late_gang() from late
        except TaskDeferralError:
            # The trigger could not run, so the state of the gang is unknown.
            with self._opened_try(context, retry_for_s=RESUMED_READS_CONNECTION_FOR_S) as this_try:
                gang = this_try.only_live_gang()
                if gang is None:
                    raise
                return this_try.follow(gang)

    def dry_run(self) -> None:
        """Print the objects that the task would create, as YAML, without a cluster and without Airflow's secrets.

        The hash in the names differs from run to run, and a cluster may serve another version of the Workload API.
        """
        from airflow_provider_gangjobs.airflow_api.task_log import mask
        from airflow_provider_gangjobs.gang.identity import TaskKey
        from airflow_provider_gangjobs.gang.preview import preview, to_yaml
        from airflow_provider_gangjobs.gang.render.user_manifest import changes_of

        spec = self.gang_spec()
        objects = preview(spec, TaskKey(self.dag_id, "dry-run", self.task_id))
        print(mask(to_yaml(objects, changes_of(spec, objects[0]))))  # noqa: T201 - as the operators of cncf.kubernetes do

    def on_kill(self) -> None:
        """Delete the live gang of this try, unless `on_kill` is `keep`. Airflow allows five seconds.

        A gang that has ended is kept with its results, and so is a gang that another try has adopted, and the gang of a
        try whose end or deferral Airflow knows already (`has_reported`).
        """
        if self._try is not None and self.kill_policy is OnKill.DELETE and not has_reported(self._try.ti):
            self._try.gangs.kill(why="the task was killed")

    @property
    def on_success_callback(self) -> list[Callable[[Context], Any]]:
        """The callbacks of the user, after the one that delivers the gang in the process of a try.

        Airflow calls them after it has reported the success of the task. The gang may be delivered only after the API
        server has accepted the report. Until then, a fault of the process, of `post_execute`, of an XCom backend or of
        the API server can still fail the task, and the next try must find the gang. A process without a try, such as
        the DAG processor, has nothing to deliver.
        """
        return self._on_success if self._try is None else [_deliver, *self._on_success]

    @on_success_callback.setter
    def on_success_callback(self, given: Callable[[Context], Any] | Iterable[Callable[[Context], Any]] | None) -> None:
        callbacks = () if given is None else (given,) if callable(given) else given
        self._on_success = [callback for callback in callbacks if callback is not _deliver]

    @property
    def end_facts(self) -> tuple[str, ...]:
        """What only a worker does at the end of the task (`airflow_api.task_end`)."""
        facts = applying(
            waits_in_worker=not self.deferrable,
            ends_before_gang=self.wait_until != WaitUntil.ENDED,
            outlets=bool(self.outlets),
            post_execute=self._post_execute_hook is not None,
            on_success_callback=bool(self._on_success),
            multiple_outputs=bool(self.multiple_outputs),
            extra_links=bool(self.operator_extra_links),
        )
        return (*facts, *replaced_methods(self, GangJobOperator, COMPLETING_METHODS))

    def deliver(self, ti: Any) -> None:
        """Mark the gang as delivered, and apply `on_finish`, if Airflow has stored the success of the task.

        Does nothing before the gang has succeeded.

        :param ti: The task instance of the context.
        """
        if self._try is not None:
            self._try.deliver(ti)

    def defer_for(self, args: TriggerArgs, timeout: timedelta | None, *, for_previous: bool) -> NoReturn:
        """Defer until the gang has ended or, with `for_previous`, until no pod of an earlier attempt runs."""
        from airflow_provider_gangjobs.triggers import gang_job

        if for_previous:
            trigger, method_name = gang_job.PreviousGangTrigger(**args.to_kwargs()), "execute_after_previous"
            self.defer(trigger=trigger, method_name=method_name, timeout=timeout)
        kind = gang_job.GangSubmissionTrigger if self.wait_until is WaitUntil.RUNNING else gang_job.GangJobTrigger
        self.defer(trigger=kind(**args.to_kwargs()), method_name="execute_complete", timeout=timeout)

    def _log_start_in_worker(self) -> None:
        """Log why this worker starts the gang, if the task wants that the triggerer does."""
        if self.wants_triggerer or self._reason_for_worker:
            reason = self._reason_for_worker or self.triggerer_start.reason or NOT_DEFERRED
            self.log.info("This worker starts the gang, and not the triggerer: %s", reason)

    @contextmanager
    def _opened_try(self, context: Context, *, retry_for_s: float = 0.0) -> Iterator[TaskTry]:
        this_try = self._new_try(context, retry_for_s=retry_for_s)
        with this_try.session():
            yield this_try

    def _new_try(self, context: Context, *, retry_for_s: float) -> TaskTry:
        """Return this try of the task. `on_kill` and the success callback find it."""
        from airflow_provider_gangjobs.attempt.task_try import TaskTry

        began_at, ti = time.monotonic(), context["ti"]
        guard = self._new_start_guard(ti)
        gangs = self._open_gangs(context, retry_for_s=retry_for_s)
        self._try = TaskTry(self, TaskParameters.of(self), ti, gangs, guard, began_at)
        return self._try

    def _open_gangs(self, context: Context, *, retry_for_s: float = 0.0) -> TaskGangs:
        from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
        from airflow_provider_gangjobs.gang.render.user_manifest import requested_namespace

        self._read_files_of_mapped_task(context)
        namespace = requested_namespace(GangSpec(namespace=self.namespace, manifest=self.manifest))
        return TaskGangs.of(self.kubernetes_conn_id, context["ti"], namespace, self.log, retry_for_s=retry_for_s)

    def _new_start_guard(self, ti: Any) -> StartGuard:
        from airflow_provider_gangjobs.attempt.task_gangs import StartGuard

        # The submission runs on an event loop, which must stay open to a kill while Airflow is asked.
        return StartGuard(partial(asyncio.to_thread, is_running_try, ti, self.log), started=ti.start_date)


def _deliver(context: Context) -> None:
    task = context["task"]
    assert isinstance(task, GangJobOperator)
    task.deliver(context["ti"])


__all__ = ["GangJobOperator"]
