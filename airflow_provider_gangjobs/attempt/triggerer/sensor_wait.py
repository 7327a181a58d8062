"""The waits of the sensors, for gangs and JobSets of somebody else. Each wait returns one event whatever happens.

The Jobs of the selection are found by the shared informers, so a gang may be submitted after the wait began. Each gang
that is found is followed as a trigger of its own task would follow it: the outcomes of its pods are recorded, and the
end of the gang is confirmed by the API server. The wait claims, halts and deletes no gang.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict as struct_to_dict
from msgspec.structs import replace as replace_event

from airflow_provider_gangjobs.airflow_api.task_log import log_failure, mask_event
from airflow_provider_gangjobs.airflow_api.task_state import (
    TaskInstances,
    explain_missing_gangs,
    is_final_failure,
    read_task_instances,
    read_task_state,
    task_name,
)
from airflow_provider_gangjobs.attempt.deferral import StoredArgs, TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CONNECTION_MAX_AGE_S,
    CONNECTION_READ_FOR_S,
    shared_service,
    wait_for_event,
)
from airflow_provider_gangjobs.exceptions import GangJobError, InvalidGangSpec, JobSetUnavailable, Problem
from airflow_provider_gangjobs.gang.awaited import (
    Answer,
    GangSelection,
    NewestGangs,
    Until,
    WaitFor,
    answer_of,
    decide_wait,
    is_failure,
)
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status, build_event
from airflow_provider_gangjobs.gang.state.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.tracking.awaited_watch import SelectionWatch
    from airflow_provider_gangjobs.tracking.follow import FollowUntil

NOT_SERVED: Final = "JobSetsNotServed"
"""Reason of the event if the cluster serves no JobSets that the provider knows."""
ASK_AGAIN_S: Final = 15.0
"""How often Airflow is asked whether a task has ended whose gang has failed, in seconds."""
ASK_ABOUT_MISSING_S: Final = 45.0
ASK_ABOUT_MISSING_MAX_S: Final = 600.0
"""How often Airflow is asked about the tasks that have no gang, in seconds. The pause doubles up to the second value,
because a thousand sensors may wait for tasks that begin tomorrow."""
ERRORS_MAX: Final = 5
"""How often in a row a gang is followed again that cannot be followed. The pauses in between add up to 15 minutes."""


@dataclass(frozen=True, kw_only=True)
class SelectionArgs(StoredArgs):
    """Arguments of a wait for selected gangs, as JSON values. No secret may be among them.

    The names and types of the fields are a contract: after an upgrade, Airflow creates the triggers of tasks that are
    already deferred with the arguments that an earlier release stored. A new field needs a default.

    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`.
    :param namespace: Namespace of the Jobs.
    :param names: Uid of the Job by its name; the uid is empty if it is not known.
    :param digests: Values of the task label, for each task or submission id.
    :param selector: Label selector of the Jobs.
    :param at_least: How many gangs the label selector selects at least.
    :param until: A value of `gang.awaited.Until`.
    :param wait_for: A value of `gang.awaited.WaitFor`.
    :param must_exist: Whether the connection must exist in Airflow.
    :param tasks: The task of each item of `digests`, as `TaskKey.to_mapping` returns it. The failure of a gang counts
        when its task has ended.
    """

    kubernetes_conn_id: str
    namespace: str
    names: dict[str, str] | None = None
    digests: list[list[str]] | None = None
    selector: str = ""
    at_least: int = 1
    until: str = Until.SUCCEEDED.value
    wait_for: str = WaitFor.ALL.value
    must_exist: bool = False
    tasks: list[dict[str, Any]] | None = None

    @property
    def tasks_by_key(self) -> dict[str, TaskKey]:
        """The tasks, by the keys of `GangSelection.find`."""
        return {
            digests[0]: TaskKey(**task) for digests, task in zip(self.digests or (), self.tasks or (), strict=False)
        }

    @property
    def selection(self) -> GangSelection:
        """The gangs to wait for."""
        return GangSelection(
            namespace=self.namespace,
            names=self.names,
            digests=tuple(map(tuple, self.digests or ())),
            selector=self.selector,
            at_least=self.at_least,
        )

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments as JSON values."""
        return asdict(self)

    def of_gang(self, ref: GangRef, *, errors: int = 0) -> TriggerArgs:
        """Return the arguments with which one of the gangs is followed: without a claim, and without limits."""
        return TriggerArgs(
            kubernetes_conn_id=self.kubernetes_conn_id,
            namespace=ref.namespace,
            name=ref.name,
            uid=ref.uid,
            must_exist=self.must_exist,
            tracking_errors=errors,
        )


async def wait_for_selected(args: SelectionArgs, log: Logger, *, can_ask: bool = True) -> dict[str, Any]:
    """Wait until the selected gangs have reached the state, or cannot reach it any more. Return the event's payload.

    The payload has the fields `v`, `status` (`met`, `failed`, `unknown` or `impossible`), `message`, `gangs`, and
    `problems`. `gangs` has the payloads of the events of the gangs that have reached the state or have ended. With the
    status `impossible`, `problems` says what is wrong with the parameters. The function raises only when it is
    cancelled.

    :param can_ask: Whether Airflow can be asked for the states of tasks. Otherwise each failure of a gang counts.
    """
    wait = _SelectionWait(args, log, args.tasks_by_key if can_ask else {})
    try:
        answer, message = await wait.run()
    except InvalidGangSpec as error:
        return selection_payload(Answer.IMPOSSIBLE, list(wait.events.values()), problems=error.problems)
    except Exception as error:  # a secrets backend may raise anything
        log_failure(log, error, "The selected gangs cannot be watched in this process")
        answer, message = Answer.UNKNOWN, _message_of(error)
    return selection_payload(answer, list(wait.events.values()), message=message)


def answer_of_failure(answer: Answer, task: TaskKey, state: str) -> tuple[Answer, str]:
    """Return what the failure of a task's gang means, and a note about it, which is empty if the failure counts.

    :param answer: What it means if the task submits no other gang.
    :param state: The state of the task, or a value of `AbsentState`.
    """
    name = f"{task.dag_id}.{task.task_id}"
    is_final = is_final_failure(state)
    if is_final is None and answer is Answer.FAILED:
        what = f"Task {name} has succeeded, and the newest of its gangs that still exists has failed"
        return Answer.UNKNOWN, f'{what}. Set on_finish="keep" for the task, so that a sensor finds the other gang'
    if is_final is not False:
        return answer, ""
    return Answer.WAITING, f"A gang of task {name} has failed, and the task may submit another one (state: {state})"


def selection_payload(
    answer: Answer, events: list[GangEvent], *, message: str = "", problems: Iterable[Problem] = ()
) -> dict[str, Any]:
    """Return the payload that says how the wait ended. Ranks that succeeded are left out, since there may be many."""
    short = (replace_event(event, ranks=()) if event.status is Status.SUCCEEDED else event for event in events)
    gangs = [mask_event(event).to_payload() for event in short]
    found = [struct_to_dict(problem) for problem in problems]
    return {"v": 1, "status": answer.value, "message": message, "gangs": gangs, "problems": found}


class _SelectionWait:
    """One wait for selected gangs."""

    def __init__(self, args: SelectionArgs, log: Logger, tasks: Mapping[str, TaskKey]) -> None:
        self.events: dict[str, GangEvent] = {}
        """The event of each gang whose wait is over."""
        self._tasks = tasks
        """The tasks that may submit another gang after one that has failed."""
        self._args = args
        self._log = log
        self._until = Until(args.until)
        self._followed: dict[str, tuple[GangRef, asyncio.Task[GangEvent]]] = {}
        self._errors: Counter[str] = Counter()
        """How many waits in a row for the gang of a key could not follow it."""
        self._newest = NewestGangs()
        self._ask_pause_s = ASK_ABOUT_MISSING_S
        self._ask_at_s = 0.0
        """When Airflow is asked next about the tasks that have no gang, by the clock of the loop."""
        self._notes_on_missing: list[str] = []

    async def run(self) -> tuple[Answer, str]:
        """Return how the wait ended, and further information for people.

        Raises:
            Exception: the connection cannot be read, or the API server refuses to list Jobs.
        """
        self._config = await self._args.hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S, max_age_s=CONNECTION_MAX_AGE_S)
        try:
            async with shared_service(self._config) as service:
                return await self._watch(service.client)
        finally:
            tasks = [task for _, task in self._followed.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, client: Client) -> tuple[Answer, str]:
        from airflow_provider_gangjobs.cluster.informer import InformerClosedError, Notification
        from airflow_provider_gangjobs.tracking.awaited_watch import SelectionWatch

        self._notification = Notification()
        logged = ""
        while True:
            watch = SelectionWatch(client, self._args.selection, self._notification)
            try:
                await watch.sync()
                while True:
                    answer, line, look_in_s = await self._look(watch)
                    if answer is not Answer.WAITING:
                        return answer, line
                    if line != logged:
                        self._log.info("%s", line)
                        logged = line
                    await watch.changed(look_in_s)
            except InformerClosedError:
                continue
            finally:
                watch.close()

    async def _look(self, watch: SelectionWatch) -> tuple[Answer, str, float | None]:
        """Follow each gang that is new, and return the answer with a line that describes it.

        The third item says in how many seconds to look again, if no event of the cluster ends the wait.
        """
        for key in self._followed:
            self._collect(key)
        found = self._newest.update(watch.find())
        for key, gang in found.items():
            followed = self._followed.get(key)
            if gang.ref is not None and (followed is None or followed[0] != gang.ref):
                self._follow(key, gang.ref)
        # A gang that was found before, and whose Job exists no longer, keeps its event.
        keys = {*found, *self._followed}
        if self._args.selector:
            keys = set(self._followed)
        notes: list[str] = []
        # At the same time, so that the questions about the instances of a task share a request.
        answers = await asyncio.gather(*(self._answer(key, notes) for key in keys))
        if self._args.selector:
            answers += [Answer.WAITING] * (self._args.at_least - len(answers))
        done = sum(answer is Answer.MET for answer in answers)
        answer = decide_wait(answers, WaitFor(self._args.wait_for))
        look_in_s = ASK_AGAIN_S if notes else None
        missing = [self._tasks[key] for key in keys if key in self._tasks and key not in self._followed]
        if answer is Answer.WAITING and missing:
            left_s = await self._ask_about_missing(missing)
            look_in_s = left_s if look_in_s is None else min(look_in_s, left_s)
            notes += self._notes_on_missing
        counts = f"{done} of {len(answers)} gangs are {self._until}, and {len(self._followed)} are submitted"
        return answer, ". ".join((counts, *sorted(notes))), look_in_s

    async def _ask_about_missing(self, tasks: Sequence[TaskKey]) -> float:
        """Ask Airflow about tasks that have no gang, if it is time to. Return in how many seconds it is time again.

        Raises:
            InvalidGangSpec: a task instance does not exist, and its DAG run does.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._ask_at_s:
            return self._ask_at_s - now_s
        pause_s, self._ask_pause_s = self._ask_pause_s, min(2 * self._ask_pause_s, ASK_ABOUT_MISSING_MAX_S)
        self._ask_at_s = now_s + pause_s
        instances: dict[str, TaskInstances | None] = {}
        for task in tasks:
            if (name := task_name(task)) not in instances:
                instances[name] = await read_task_instances(task, self._log)
        self._notes_on_missing = explain_missing_gangs(tasks, instances)
        return pause_s

    async def _answer(self, key: str, notes: list[str]) -> Answer:
        """Return what is known about the gang. Its failure counts when its task has ended, and is noted until then."""
        event = self.events.get(key)
        if event is None:
            return Answer.WAITING
        answer = answer_of(event.status, self._until)
        if not is_failure(event.status) or not self._tasks:
            return answer
        task = self._tasks[key]
        answer, note = answer_of_failure(answer, task, await read_task_state(task, self._log))
        notes += [note] if note else []
        return answer

    def _follow(self, key: str, ref: GangRef) -> None:
        """Follow the gang of a key, in place of the earlier attempt that was followed."""
        if key in self._followed:
            self._followed[key][1].cancel()
        self.events.pop(key, None)
        until: FollowUntil = "running" if self._until is Until.RUNNING else "ended"
        args = self._args.of_gang(ref, errors=self._errors[key])
        task = asyncio.create_task(wait_for_event(args, until, self._log, config=self._config), name=f"wait for {ref}")
        task.add_done_callback(lambda _: self._notification.notify())
        self._followed[key] = (ref, task)

    def _collect(self, key: str) -> None:
        """Take the event of a gang whose wait is over. A gang that could not be followed is followed again."""
        ref, task = self._followed[key]
        if not task.done() or key in self.events:
            return
        event = task.result()
        if answer_of(event.status, self._until) is Answer.UNKNOWN and event.tracking_errors < ERRORS_MAX:
            self._errors[key] = event.tracking_errors + 1
            self._log.warning("Gang %s could not be followed (%s). It is followed again", ref, event.reason)
            self._follow(key, ref)
        else:
            self.events[key] = event


async def wait_for_job_set(args: TriggerArgs, log: Logger) -> GangEvent:
    """Wait until the JobSet has ended, and return the event. The function raises only when it is cancelled.

    The status of the event is `error` if the JobSet cannot be read, which says nothing about the JobSet.
    """
    from airflow_provider_gangjobs.tracking.awaited_watch import follow_job_set

    try:
        config = await args.hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S, max_age_s=CONNECTION_MAX_AGE_S)
        async with shared_service(config) as service:
            return await follow_job_set(service.client, args.ref, lambda line: log.info("%s", line))
    except JobSetUnavailable as error:
        reason, message = "Refused" if error.is_served else NOT_SERVED, error.cause
    except Exception as error:  # a secrets backend may raise anything
        log_failure(log, error, f"JobSet {args.ref} cannot be watched in this process")
        reason, message = type(error).__name__, _message_of(error)
    return build_event(args.ref, Status.ERROR, Phase.SUBMITTED, reason=reason, message=message)


def _message_of(error: Exception) -> str:
    """Return a message for an event. Errors of other libraries may contain credentials."""
    return str(error) if isinstance(error, GangJobError) else f"{type(error).__name__}; the log has the details"
