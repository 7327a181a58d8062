"""One task of a simulated Airflow, in virtual time, with the real operator and the real trigger.

The simulation follows Airflow 3.3: the API server accepts a report only of the task instance that runs, a scheduler
that misses the heartbeats of a worker starts the next try, a triggerer that misses its heartbeats loses its triggers,
and a triggerer whose trigger is no longer its own cancels the trigger "by user action" and calls `on_kill`
(apache/airflow#73454). Each worker and each triggerer is a `Process`, which can be stopped at each of its requests.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from airflow.models.taskinstance import uuid7
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import (
    ErrorResponse,
    GetXCom,
    InactiveAssetsResult,
    SetXCom,
    TaskStatesResult,
    ValidateInletsAndOutlets,
    XComResult,
)
from airflow.triggers.base import TaskSuccessEvent
from sqlalchemy.util import await_only, greenlet_spawn

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException, TaskDeferred
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger, GangStartTrigger
from tests.crashes import ProcessDied
from tests.guarantees.history import FINAL_STATES, TaskChange
from tests.guarantees.process_operator import COMMON, ProcessOperator, ProcessTriggerArgs
from tests.guarantees.processes import Process, current_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from gangjobs_sandbox.store import Event
    from tests.crashes import Crash
    from tests.provider.virtual_control_plane import VirtualControlPlane

Obj = dict[str, Any]

HEARTBEAT_TIMEOUT_S: Final = 60.0
"""A worker or a triggerer counts as lost after so long without a heartbeat."""
SYNC_S: Final = 1.0
"""How long the scheduler and a triggerer take to notice a change."""
ON_KILL_S: Final = 30.0
"""The default of Airflow's `[triggerer] on_kill_timeout`."""
DAG_ID, RUN_ID, TASK_ID = "d", "r", "train"


class Terminated(BaseException):
    """The handler of SIGTERM in a worker, which calls `on_kill` of the operator and ends the process."""


class RefusedError(Exception):
    """The API server of Airflow has refused a report: the task instance does not run any more."""


def new_id(*, ahead_s: float = 0.0) -> str:
    """Return an id of a task instance, which begins with the time in milliseconds."""
    return str(UUID(int=uuid7().int + (round(ahead_s * 1000) << 80)))


@dataclass(frozen=True, eq=False)
class StartRow:
    """The trigger of a task that Airflow's scheduler has deferred itself."""

    start: str


class StartTrigger(GangStartTrigger):
    """The trigger in the process of a triggerer."""

    process: Process

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, ProcessTriggerArgs.of(value, self.process) if name == "args" else value)


def start_arguments(**parameters: Any) -> str:
    """Return what the serialized DAG has for the trigger of the task."""
    with DAG(DAG_ID, schedule=None):
        operator = GangJobOperator(task_id=TASK_ID, start_from_trigger=True, **{**COMMON, **parameters})
    start: str = operator.start_trigger_args.trigger_kwargs["start"]
    return start


@dataclass
class TaskInstance:
    """The task instance in the database of Airflow. Each try gives it a new id."""

    id: str = field(default_factory=new_id)
    try_number: int = 1
    state: str | None = "scheduled"
    trigger: TriggerArgs | StartRow | None = None
    event: Obj | None = None
    was_deferred: bool = False
    """Airflow's scheduler has deferred this try before a worker began with it."""


class SimulatedAirflow:
    """The task, its scheduler, and the processes that work on it.

    :param stops: at which request the process of a name stops: `worker-0` runs first, then `worker-1`, and so on.
    :param retries: how often Airflow starts another try after a failure.
    :param first_try_ahead_s: how far the clock was ahead that made the id of the first try, in seconds.
    :param request_s: how long each request of a worker to the API server of Kubernetes takes, in seconds.
    :param in_triggerer: whether Airflow's scheduler defers each try itself, so that the triggerer starts the gang.
    :param parameters: parameters of the operator.
    """

    def __init__(
        self,
        plane: VirtualControlPlane,
        *,
        stops: Mapping[str, Crash] | None = None,
        retries: int = 2,
        first_try_ahead_s: float = 0.0,
        request_s: float = 0.0,
        in_triggerer: bool = False,
        **parameters: Any,
    ) -> None:
        self.plane = plane
        self.request_s = request_s
        self.stops = dict(stops or {})
        self.retries = self.max_tries = retries
        self.parameters = {"results": "all", **parameters}
        self.start = start_arguments(**self.parameters) if in_triggerer else None
        self.ti = TaskInstance(id=new_id(ahead_s=first_try_ahead_s))
        self.key: TaskKey | None = None if not in_triggerer else TaskKey(DAG_ID, RUN_ID, TASK_ID, -1, "simulated")
        self.processes: list[Process] = []
        self.questions = 0
        """How often workers have asked for the state of their task."""
        self.refused_reports = 0
        """How many reports of a success the API server still refuses."""
        self.xcoms: dict[str, Any] = {}
        """What workers and triggers have pushed."""
        self.late_xcoms: list[str] = []
        """The keys of what triggers have pushed while the task was not deferred."""
        self.lost_events = 0
        """How many events of triggers are still lost, with the triggerer that has sent them."""
        self._changed = asyncio.Event()
        self._notice = asyncio.Event()
        """Set when an object, the task, or a process has changed."""
        plane.registry.observe(lambda _: self._notice.set())
        self._work: set[asyncio.Task[Any]] = set()
        self._states: list[tuple[float, str, str | None, bool, tuple[Any, ...] | None]] = []

    @classmethod
    @asynccontextmanager
    async def running(cls, plane: VirtualControlPlane, **options: Any) -> AsyncIterator[SimulatedAirflow]:
        """Schedule the task during the block."""
        airflow = cls(plane, **options)
        airflow._begin(airflow._schedule())
        try:
            yield airflow
        finally:
            await airflow._close()

    async def _close(self) -> None:
        for process in self.processes:
            process.wake()
        for task in self._work:
            task.cancel()
        for process in self.processes:
            await process.close()
        await asyncio.gather(*self._work, return_exceptions=True)

    # -- what a test does and awaits ---------------------------------------------------------------------------

    async def until(self, holds: Callable[[], Any], *, within_s: float = 3600.0) -> None:
        """Wait in virtual time until this holds."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._notice.clear()
                await self._notice.wait()

    async def settled(self, for_s: float) -> None:
        """Let all stopped processes continue, wait for the end of the task, and then wait for `for_s` seconds."""
        for process in self.processes:
            process.wake()
        await self.until(lambda: self.ti.state in FINAL_STATES)
        await asyncio.sleep(for_s)
        self._raise_defects()

    def _raise_defects(self) -> None:
        """Raise the exception that has ended a part of the simulation."""
        for task in self._work:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

    def mark(self, state: str) -> None:
        """A user marks the task as failed, or as success."""
        self._set(state, by_user=True)
        self.ti.trigger = None

    def clear(self) -> None:
        """A user clears the task: the next try begins."""
        self._set(None, by_user=True)
        self.max_tries = self.ti.try_number + self.retries
        self._next_try()

    def process(self, role: str) -> Process:
        """Start another process of this role."""
        number = sum(process.name.startswith(role) for process in self.processes)
        name = f"{role}-{number}"
        request_s = self.request_s if role == "worker" else 0.0
        process = Process(self.plane.config, name, self.stops.get(name), request_s=request_s, on_stop=self._notice.set)
        self.processes.append(process)
        self._notice.set()
        return process

    @property
    def requests(self) -> dict[str, list[str]]:
        """What each process has sent, by its name."""
        return {process.name: process.requests for process in self.processes}

    def named(self, name: str) -> Process | None:
        return next((process for process in self.processes if process.name == name), None)

    # -- the API server ----------------------------------------------------------------------------------------

    def _set(self, state: str | None, *, by_user: bool = False, results: tuple[Any, ...] | None = None) -> None:
        self.ti.state = state
        self._states.append((self.plane.moment(), self.ti.id, state, by_user, results))
        self._changed.set()
        self._notice.set()

    def record(self) -> None:
        """Add the changes of the task to the history of the control plane."""
        assert self.key is not None, "no worker has begun"
        self.plane.history.tasks = [
            TaskChange(at, self.key.digest, claim, state, by_user, results)
            for at, claim, state, by_user, results in self._states
        ]
        self.plane.history.ended_at = self.plane.moment()

    def states(self) -> dict[str, dict[str, str | None]]:
        """Return what the API server answers to `get_task_states`."""
        return {RUN_ID: {TASK_ID: self.ti.state}}

    def send(self, message: Any) -> Any:
        """Answer a request of a trigger or a task, in place of `SUPERVISOR_COMMS`."""
        if isinstance(message, ValidateInletsAndOutlets):
            if str(message.ti_id) != self.ti.id:
                raise AirflowRuntimeError(ErrorResponse(detail={"status_code": 404}))
            return InactiveAssetsResult(inactive_assets=[])
        return TaskStatesResult(task_states=self.states())

    async def asend(self, message: SetXCom | GetXCom) -> Any:
        """Store or return an XCom of a trigger."""
        if isinstance(message, GetXCom):
            return XComResult(key=message.key, value=self.xcoms.get(message.key))

        async def store() -> None:
            self.xcoms[message.key] = message.value
            if self.ti.state != "deferred":
                self.late_xcoms.append(message.key)

        return await current_process().send(f"SetXCom {message.key}", store)

    def _require_running(self, claim: str) -> None:
        if (self.ti.id, self.ti.state) != (claim, "running"):
            raise RefusedError

    def _defer(self, claim: str, args: TriggerArgs) -> None:
        self._require_running(claim)
        self.ti.trigger = args
        self._set("deferred")
        self._begin(self._run_trigger(args, claim))

    def _succeed(self, claim: str, value: Any) -> None:
        self._require_running(claim)
        if self.refused_reports:
            self.refused_reports -= 1
            raise RefusedError
        self._set("success", results=tuple(value) if isinstance(value, list) else None)

    def _fail(self, claim: str, *, may_retry: bool = True) -> None:
        self._require_running(claim)
        if may_retry and self.ti.try_number <= self.retries:
            self._set("up_for_retry")
            self._next_try()
        else:
            self._set("failed")

    def _next_try(self) -> None:
        self.ti = TaskInstance(try_number=self.ti.try_number + 1)
        self._set("scheduled")

    # -- the scheduler -----------------------------------------------------------------------------------------

    def _begin(self, coroutine: Any, process: Process | None = None) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine) if process is None else process.start(coroutine)
        self._work.add(task)
        return task

    async def _schedule(self) -> None:
        """Start a worker whenever the task is scheduled, and the next try when the worker has stopped."""
        while True:
            if self.ti.state == "scheduled" and self.start is not None and not self.ti.was_deferred:
                self.ti.was_deferred = True
                self.ti.trigger = StartRow(self.start)
                self._set("deferred")
                self._begin(self._run_trigger(self.ti.trigger, self.ti.id))
            elif self.ti.state == "scheduled":
                await asyncio.sleep(SYNC_S)
                self._set("running")
                process = self.process("worker")
                self._begin(self._work_on(process, self.ti), process)
                self._begin(self._watch_worker(process, self.ti.id))
            self._changed.clear()
            await self._changed.wait()

    async def _watch_worker(self, process: Process, claim: str) -> None:
        """Start the next try when the worker has stopped for too long."""
        await process.stopped.wait()
        await asyncio.sleep(HEARTBEAT_TIMEOUT_S)
        self._reported(lambda: self._fail(claim))

    # -- a worker ----------------------------------------------------------------------------------------------

    async def _work_on(self, process: Process, ti: TaskInstance) -> None:
        """Run one part of a try, as Airflow's task runner does."""
        context = self._context(process, ti)
        operator = ProcessOperator.make(process, DAG_ID, TASK_ID, self._set_key, **self.parameters)
        context["ti"].task = operator
        try:
            if ti.event is None:
                value = await greenlet_spawn(operator.execute, context)
            else:
                value = await greenlet_spawn(operator.execute_complete, context, ti.event)
            await process.reach()
            await self._report_success(operator, context, ti.id, value)
        except TaskDeferred as left:
            args = left.trigger.args
            await process.reach()
            self._reported(lambda: self._defer(ti.id, args))
        except Terminated:
            await greenlet_spawn(operator.on_kill)
        except ProcessDied:
            pass
        except Exception as error:
            await process.reach()
            may_retry = not isinstance(error, AirflowFailException)
            self._reported(lambda: self._fail(ti.id, may_retry=may_retry))

    async def _report_success(self, operator: GangJobOperator, context: Any, claim: str, value: Any) -> None:
        """Report the success, and call the callbacks even if the report was refused, as the task runner does."""
        self._reported(lambda: self._succeed(claim, value))
        for callback in operator.on_success_callback:
            await greenlet_spawn(callback, {**context, "task": operator})
        # If the report was refused, the supervisor reports that the process has ended without a state.
        self._reported(lambda: self._fail(claim))

    def _reported(self, report: Callable[[], None]) -> None:
        """Send a report of a process, which the API server may refuse."""
        with suppress(RefusedError):
            report()

    def _context(self, process: Process, ti: TaskInstance) -> Any:
        known = {"id": ti.id, "try_number": ti.try_number, "max_tries": self.max_tries, "map_index": -1}
        names = {"dag_id": DAG_ID, "run_id": RUN_ID, "task_id": TASK_ID}
        calls = {"xcom_push": self.xcoms.__setitem__, "get_task_states": lambda **_: self._asked(process)}
        return {"ti": SimpleNamespace(**known, **names, **calls, start_date=datetime.now(UTC))}

    def _set_key(self, key: TaskKey) -> None:
        self.key = key

    def _asked(self, process: Process) -> dict[str, dict[str, str | None]]:
        await_only(process.reach())
        self.questions += 1
        return self.states()

    # -- the triggerers ----------------------------------------------------------------------------------------

    async def _run_trigger(self, args: TriggerArgs | StartRow, claim: str) -> None:
        """Run the trigger in one triggerer after the other, until it is not needed any more."""
        while self._is_waiting(args):
            process = self.process("triggerer")
            running = self._begin(self._follow(process, args, claim), process)
            stopped = asyncio.create_task(process.stopped.wait())
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            await asyncio.sleep(HEARTBEAT_TIMEOUT_S if process.stopped.is_set() else SYNC_S)

    def _is_waiting(self, args: TriggerArgs | StartRow) -> bool:
        return self.ti.state == "deferred" and self.ti.trigger is args

    def _trigger(self, process: Process, args: TriggerArgs | StartRow, claim: str) -> Any:
        """Return the trigger as a triggerer creates it."""
        ti: Any = SimpleNamespace(id=claim, dag_id=DAG_ID, run_id=RUN_ID, task_id=TASK_ID, map_index=-1)
        if not isinstance(args, StartRow):
            trigger = GangJobTrigger(**args.to_kwargs())
            trigger.args, trigger.task_instance = ProcessTriggerArgs.of(args, process), ti
            return trigger
        start = StartTrigger(start=args.start)
        start.process = process
        ti.try_number, ti.xcom_push = self.ti.try_number, lambda *_: None
        ti.task = SimpleNamespace(
            is_mapped=False,
            retries=self.retries,
            template_ext=(),
            start_trigger_args=None,
            dag=SimpleNamespace(render_template_as_native_obj=False),
        )
        start.task_instance = ti
        start.render_template_fields({"ti": ti, "run_id": RUN_ID})
        return start

    async def _follow(self, process: Process, args: TriggerArgs | StartRow, claim: str) -> None:
        """Run the trigger in one triggerer, and cancel the trigger when it is no longer assigned to this triggerer."""
        trigger = self._trigger(process, args, claim)
        running = self._begin(self._first_event(trigger), process)
        while not running.done():
            await asyncio.wait({running}, timeout=SYNC_S)
            await process.reach()
            if not running.done() and not (self._is_waiting(args) and self._newest("triggerer") is process):
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                try:
                    async with asyncio.timeout(ON_KILL_S):
                        await trigger.on_kill()
                except TimeoutError:
                    pass
                await trigger.cleanup()
                return
        await process.reach()
        if self.lost_events:
            self.lost_events -= 1
            process.stop()
        elif self._is_waiting(args):
            self._accept(running.result())

    def _accept(self, event: Any) -> None:
        """Store the event of a trigger."""
        self.ti.trigger = None
        if isinstance(event, TaskSuccessEvent):
            self._set("success", results=tuple(self.xcoms["return_value"]))
        else:
            self.ti.event = json.loads(json.dumps(event.payload))
            self._set("scheduled")

    async def _first_event(self, trigger: Any) -> Any:
        async for event in trigger.run():
            return event
        raise AssertionError("the trigger has ended without an event")

    def _newest(self, role: str) -> Process:
        return [process for process in self.processes if process.name.startswith(role)][-1]


class Programs:
    """The programs of all ranks: each runs for some time, writes its rank as its result, and succeeds."""

    def __init__(self, plane: VirtualControlPlane, run_s: float) -> None:
        self._plane = plane
        self._run_s = run_s
        self._started: set[str] = set()

    def observe(self, event: Event) -> None:
        """Start the program of a pod that runs. To be called for each change of an object."""
        pod = event.obj
        if event.resource.plural != "pods" or (pod.get("status") or {}).get("phase") != "Running":
            return
        uid = pod["metadata"]["uid"]
        if uid not in self._started:
            self._started.add(uid)
            self._plane.logs[pod["metadata"]["name"]] = ""
            asyncio.get_running_loop().call_later(self._run_s, self._end, uid)

    def _end(self, uid: str) -> None:
        pod = self._plane._find(uid)
        if pod is not None and pod["status"].get("phase") == "Running":
            rank = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
            self._plane._end(pod, 0, rank)
