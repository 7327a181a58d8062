"""Starts the gang of a task in the triggerer, as a worker would start it, before a trigger follows the gang.

The rules, the requests and the order of a start are those of a worker: the operator is made again from the arguments of
the trigger, its templates are rendered, and the same submission adopts or creates the gang. A start either has a gang
to follow, or says why a worker must start the gang: then nothing is lost, because the worker finds what was begun by
the key of the task and the claim of its try. So a template that fails, a missing connection, an invalid parameter and a
refused submission fail the task in a worker, with the error, the callbacks and the retries that the task has there.

Only the first try of a task starts in the triggerer. Airflow tells only a worker whether a user has cleared the task
(`max_tries`), which decides whether a later try may continue with a gang of other parameters.

A triggerer that was stopped may continue after its task has ended, or while another triggerer has the trigger. Airflow
tells a triggerer the state of the task and not which try has that state. So a start that begins late, or takes long,
asks whether the task is deferred, and leaves everything to a worker if another try has claimed a gang of the task: the
event of a trigger that Airflow does not wait for any more changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG
from asgiref.sync import sync_to_async
from msgspec.structs import asdict, replace

from airflow_provider_gangjobs.airflow_api.task_context import OnlyInWorkerError, describes_tasks, template_context
from airflow_provider_gangjobs.airflow_api.task_end import push_xcom
from airflow_provider_gangjobs.airflow_api.task_log import is_for_users, log_failure
from airflow_provider_gangjobs.airflow_api.task_state import UNKNOWN, is_kill, read_task_state
from airflow_provider_gangjobs.attempt.deferral import (
    ALARM_MARGIN_PART,
    ALARM_MARGIN_S,
    XCOM_GANG,
    trigger_args,
    trigger_end,
)
from airflow_provider_gangjobs.attempt.messages import log_submission, xcom_fault_logged
from airflow_provider_gangjobs.attempt.task_gangs import ENDED, StartGuard, TaskGangs
from airflow_provider_gangjobs.attempt.triggerer.endings import KILL_TIMEOUT_S, KillLimits, sweep_namespace
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import CONNECTION_MAX_AGE_S, shared_service
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.ending.delete import end_live_gangs
from airflow_provider_gangjobs.exceptions import PreviousAttemptRunning, SubmissionConflict
from airflow_provider_gangjobs.gang.render.user_manifest import requested_namespace
from airflow_provider_gangjobs.gang.spec import OnKill, WaitUntil
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.parameters.checks import require_importable
from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters
from airflow_provider_gangjobs.parameters.triggerer_start import NeedsWorkerError, task_parameters
from airflow_provider_gangjobs.submission.submission import PreviousGangs, TaskRule, UnconfirmedTry, created_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.submission.submission import Submission
    from airflow_provider_gangjobs.tracking.follow import FollowUntil

STARTS_AT_ONCE_MAX: Final = 32
"""How many gangs one triggerer starts at the same time."""
STARTS_PER_CONNECTION_MAX: Final = 8
"""How many of them have the same connection, and so the same API server."""
NOT_CONFIRMED: Final = "Airflow does not say whether this try still waits for its gang"
DIFFERENCES: Final = (
    "The triggerer has started this gang, without a slot of a pool, also if deferred tasks take slots of the pool. "
    'The table of "Starts in the triggerer" in docs/operations.md has what else is different'
)
"""Whether deferred tasks take slots of a pool cannot be asked: Airflow 3.3 tells no process of a task about pools."""
PREFIX: Final = "airflow_provider_gangjobs."


@dataclass(frozen=True)
class StartedGang:
    """A gang that was started or adopted."""

    args: TriggerArgs
    until: FollowUntil | None
    """What the trigger waits for. `None` if the task ends with the submission."""


@dataclass(frozen=True)
class RenderedTask:
    """The parameters of a task after their templates were rendered."""

    task: TaskParameters
    spec: GangSpec
    end: Mapping[str, Any] | None
    """How the trigger ends the task; see `TriggerArgs.end`."""
    retries: int


@dataclass(kw_only=True)
class GangStart:
    """One start of the gang of one task, as Airflow has given the task to the trigger. `result` is called once."""

    start: Mapping[str, Any]
    """The operator and its parameters; see `parameters.triggerer_start`."""
    ti: Any
    """The task instance. Its `task` is the operator of the serialized DAG."""
    context: Context
    """The context of its templates."""
    timeout_after: datetime | None
    """When Airflow ends the deferral, by the clock of the scheduler: after the `execution_timeout` of the task."""
    log: Logger = field(repr=False)
    _is_killed: bool = field(default=False, init=False)
    _rendered: RenderedTask | None = field(default=None, init=False)
    _gangs: TaskGangs | None = field(default=None, init=False)
    _running: asyncio.Task[StartedGang] | None = field(default=None, init=False)

    async def result(self) -> StartedGang:
        """Start the gang. The start goes on if the caller is cancelled, until `kill` or `abandon` is called.

        Raises:
            NeedsWorkerError: a worker must start the gang.
        """
        self._running = asyncio.create_task(self._run(), name=f"start of {self.ti.id}")
        return await asyncio.shield(self._running)

    def abandon(self) -> None:
        """End the start as the end of the process would. The trigger begins anew in another triggerer."""
        if self._running is not None and not self._is_killed:
            self._running.cancel()

    async def kill(self) -> None:
        """Stop the start, and delete what it has begun if the task was killed. Never raises.

        The request that was sent gets its answer first, so nothing is created after the deletion.
        """
        self._is_killed = True
        if self._running is None:
            return
        if self._gangs is not None:
            await asyncio.wait({self._running}, timeout=KILL_TIMEOUT_S)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        gangs, rendered, log = self._gangs, self._rendered, self.log
        if gangs is None or rendered is None:
            return  # nothing was sent to the cluster
        if rendered.task.kill_policy is not OnKill.DELETE:
            log.info("The gang is kept, whether or not its task was killed, because on_kill is 'keep'")
            return
        try:
            async with loop_local(KillLimits).kills, asyncio.timeout(KILL_TIMEOUT_S):
                if not await self._is_killed_task(rendered):
                    return
                async with shared_service(gangs.config) as service:
                    await self._end(service, gangs, "the task was killed")
        except Exception:
            log.exception("It is not known whether the gang was deleted. If its task has ended, a sweep ends the gang")

    # -- the start -------------------------------------------------------------------------------------------

    async def _run(self) -> StartedGang:
        if self.ti.try_number > 1:
            raise NeedsWorkerError("only a worker learns whether this try follows a clear of the task")
        try:
            self._rendered = rendered = await sync_to_async(self._render)()
            self._forget_dag()
            async with loop_local(_Turns).take(rendered.task.kubernetes_conn_id):
                gangs, submission, secrets = await self._begin(rendered)
            return await self._started(rendered, gangs, submission, secrets)
        except NeedsWorkerError:
            raise
        except (OnlyInWorkerError, PreviousAttemptRunning, SubmissionConflict) as error:
            raise NeedsWorkerError(str(error)) from error
        except UnconfirmedTry as unconfirmed:
            raise NeedsWorkerError(ENDED if unconfirmed.has_ended else NOT_CONFIRMED) from unconfirmed
        except Exception as error:  # templates, secrets backends and libraries may raise anything
            log_failure(self.log, error, "The gang could not be started in the triggerer")
            # The messages of other libraries may contain credentials, so they go to the log and not into the event.
            why = str(error) if is_for_users(error) else f"{type(error).__name__} in the triggerer"
            raise NeedsWorkerError(why) from error

    async def _begin(self, rendered: RenderedTask) -> tuple[TaskGangs, Submission, bool | None]:
        """Submit the gang, and return `TriggerArgs.secrets`, too."""
        hook = GangJobHook(rendered.task.kubernetes_conn_id)
        config = await hook.aconfig(max_age_s=CONNECTION_MAX_AGE_S)
        gangs = TaskGangs.in_cluster(
            config,
            self.ti,
            requested_namespace(rendered.spec),
            self.log,
            must_exist=bool(hook.exists),
            max_tries=rendered.retries,
        )
        async with shared_service(config) as service:
            self._gangs = gangs
            sweep_namespace(
                rendered.task.kubernetes_conn_id,
                gangs.namespace or service.namespace,
                must_exist=gangs.must_exist,
                installation=gangs.key.installation,
            )
            submission = await self._create_or_adopt(service, gangs, rendered)
            # Another triggerer may have submitted the gang with values that its variables had then.
            own_spec = None if submission.has_other_parameters else rendered.spec
            secrets = submission.names_secrets or await gangs.note_secrets(service, submission.ref, own_spec)
            gangs.server_software = service.client.server_software
            gangs.server_ahead_s = service.client.server_clock.ahead_s or 0.0
            return gangs, submission, secrets

    async def _create_or_adopt(self, service: GangService, gangs: TaskGangs, rendered: RenderedTask) -> Submission:
        """Submit the gang as a worker does.

        Raises:
            UnconfirmedTry: the try may not want its gang any more. The gang of a task that has ended is deleted.
        """
        guard = StartGuard(self._is_deferred, started=_created_at(gangs.claim))
        rule = TaskRule(durable=rendered.task.durable, return_own_failed=True)

        async def confirm(*, always: bool = False) -> None:
            if always or self._is_killed:  # only a worker knows which try runs
                raise UnconfirmedTry(has_ended=False)
            await guard.confirm()

        request = gangs.request(rendered.task.policies, rule, confirm, previous=PreviousGangs(wait_s=0.0))
        try:
            submission = await guard.submit(service, rendered.spec, request, self.log)
        except UnconfirmedTry as unconfirmed:
            deletes = unconfirmed.has_ended and rendered.task.kill_policy is OnKill.DELETE
            if deletes and await self._is_killed_task(rendered):  # or a worker of the same try goes on with the gang
                await self._end(service, gangs, ENDED)
            raise
        return submission

    async def _started(
        self, rendered: RenderedTask, gangs: TaskGangs, submission: Submission, secrets: bool | None
    ) -> StartedGang:
        """Tell the gang to the log and to XCom, and return what the trigger waits for.

        This takes no turn of a start, because it waits for Airflow's supervisor and not for the API server.
        """
        log_submission(rendered.task, submission, self.log, server_software=gangs.server_software)
        self.log.info("%s", DIFFERENCES)
        if rendered.task.do_xcom_push:
            with xcom_fault_logged(XCOM_GANG, self.log):
                is_dag_result = self._returns_dag_result
                await push_xcom(self.ti, XCOM_GANG, asdict(submission.ref), is_dag_result=is_dag_result)
        args = trigger_args(
            rendered.task, gangs, submission.ref, attempt=submission.attempt, disruptions=submission.disruptions
        )
        args = replace(args, secrets=secrets, end=None if secrets is None else rendered.end)
        until = None if rendered.task.wait_until is WaitUntil.SUBMITTED else rendered.task.until
        return StartedGang(self._with_timeout(args, rendered.task, gangs.server_ahead_s), until)

    def _with_timeout(self, args: TriggerArgs, task: TaskParameters, server_ahead_s: float) -> TriggerArgs:
        """Return the arguments with a deadline shortly before that of Airflow, so that the trigger says why."""
        if task.execution_timeout is None or self.timeout_after is None:
            return args
        limit_s = task.execution_timeout.total_seconds()
        margin_s = min(ALARM_MARGIN_S, limit_s * ALARM_MARGIN_PART)
        at = self.timeout_after if self.timeout_after.tzinfo else self.timeout_after.replace(tzinfo=UTC)
        return replace(args, deadline=at.timestamp() - margin_s + server_ahead_s, execution_timeout_s=limit_s)

    async def _end(self, service: GangService, gangs: TaskGangs, why: str) -> None:
        await end_live_gangs(
            service.client,
            gangs.key,
            gangs.claim,
            namespace=gangs.namespace or service.namespace,
            stopped=None,
            on_ended=lambda ref: self.log.info("Gang %s is deleted: %s", ref, why),
        )

    async def _is_killed_task(self, rendered: RenderedTask) -> bool:
        state = await read_task_state(self.ti, self.log)
        is_killed = is_kill(state, outlives_task=not rendered.task.ends_with_gang)
        if not is_killed:
            self.log.info("The task was not killed (its state is %s), so its gang stays", state)
        return is_killed

    async def _is_deferred(self) -> bool | None:
        """Return whether the task is deferred, as it is while it waits for this trigger. `None` if that is unknown."""
        state = await read_task_state(self.ti, self.log)
        return None if state == UNKNOWN else state == "deferred"

    # -- rendering -------------------------------------------------------------------------------------------

    def _render(self) -> RenderedTask:
        """Make the operator of the task again, and render its templates. Blocks, so it runs in a thread.

        Raises:
            NeedsWorkerError: only a worker can resolve a template.
            Exception: a template fails, or a parameter is invalid.
        """
        began = time.perf_counter()
        if describes_tasks():
            raise NeedsWorkerError(
                "only a worker gives the ranks the ids of their task in OpenLineage or OpenTelemetry"
            )
        start, ti, task = self.start, self.ti, self.ti.task
        parameters = task_parameters(start, mapped_values(task), ti.map_index)
        common = dict(start["common"])
        if (limit_s := common.get("execution_timeout")) is not None:
            common["execution_timeout"] = timedelta(seconds=limit_s)
        dag = DAG(ti.dag_id, schedule=None, render_template_as_native_obj=task.dag.render_template_as_native_obj)
        operator = _operator_class(start["operator"]).for_trigger(
            parameters, start.get("source"), task_id=ti.task_id, dag=dag, **common
        )
        operator.render_template_fields(template_context(self.context))
        require_importable(operator.callbacks)
        known, facts = TaskParameters.of(operator), start.get("end")
        known = replace(known, wants_trigger_end=facts is not None, end_facts=(*known.end_facts, *(facts or ())))
        name = type(operator).__name__
        end = trigger_end(known, ti, None, self.log, operator=name, is_dag_result=self._returns_dag_result)
        rendered = RenderedTask(known, operator.gang_spec(), end, task.retries)
        self.log.debug("The operator was made and rendered in %.1f ms", (time.perf_counter() - began) * 1000)
        return rendered

    @property
    def _returns_dag_result(self) -> bool:
        return bool(self.start.get("is_dag_result"))

    def _forget_dag(self) -> None:
        """Let go of the DAG. Airflow would hold it as long as the trigger runs.

        Each trigger has a DAG of its own, with all values over which its tasks are mapped: for 1,000 values 0.2 MB.
        """
        context: Any = self.context
        self.ti.task = None
        context.clear()


def _created_at(claim: str) -> datetime | None:
    """Return when Airflow created the try, as its id says. A task that was created long ago is asked about."""
    milliseconds = created_ms(claim)
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


class _Turns:
    """The turns of one event loop. A gang that waits for the turn of its API server keeps no other gang waiting."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(STARTS_AT_ONCE_MAX)
        self._of_connection: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def take(self, conn_id: str) -> AsyncIterator[None]:
        of_connection = self._of_connection.setdefault(conn_id, asyncio.Semaphore(STARTS_PER_CONNECTION_MAX))
        async with of_connection, self._all:
            yield


def _operator_class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    assert path.startswith(PREFIX), "the arguments of the trigger name an operator of this provider"
    return getattr(import_module(module), name)


def mapped_values(task: Any) -> Any:
    """Return the values over which an operator of the serialized DAG is mapped; `None` if it is not mapped."""
    return getattr(task, task._expand_input_attr).value if task.is_mapped else None  # noqa: SLF001 - as Airflow does
