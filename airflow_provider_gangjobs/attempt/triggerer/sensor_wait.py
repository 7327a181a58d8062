"""The wait of the sensor for gangs of somebody else. It returns one event whatever happens.

The Jobs of the selection are found by the shared informers, so a gang may be submitted after the wait began. Each gang
that is found is followed as a trigger of its own task would follow it: the outcomes of its pods are recorded, and the
end of the gang is confirmed by the API server. The wait claims, stops and deletes no gang.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace as replace_event

from airflow_provider_gangjobs.airflow_api.task_log import is_for_users, log_failure, mask_event
from airflow_provider_gangjobs.attempt.deferral import StoredArgs, TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CONNECTION_MAX_AGE_S,
    CONNECTION_READ_FOR_S,
    shared_service,
    wait_for_event,
)
from airflow_provider_gangjobs.gang.awaited import (
    Answer,
    GangSelection,
    NewestGangs,
    answer_of,
    decide_wait,
)
from airflow_provider_gangjobs.gang.state.phase import Status

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.tracking.follow import FollowUntil
    from airflow_provider_gangjobs.tracking.gang_watch import SelectionWatch

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
    :param digests: Value of the task label of each submission id.
    :param selector: Label selector of the Jobs.
    :param at_least: How many gangs the label selector selects at least.
    :param until: `running`, `succeeded`, or `ended`; see `gang.awaited.answer_of`.
    :param wait_for: `all` or `any`; see `gang.awaited.decide_wait`.
    :param must_exist: Whether the connection must exist in Airflow.
    """

    kubernetes_conn_id: str
    namespace: str
    names: dict[str, str] | None = None
    digests: list[str] | None = None
    selector: str = ""
    at_least: int = 1
    until: str = "succeeded"
    wait_for: str = "all"
    must_exist: bool = False

    @property
    def selection(self) -> GangSelection:
        """The gangs to wait for."""
        return GangSelection(
            namespace=self.namespace,
            names=self.names,
            digests=tuple(self.digests or ()),
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


async def wait_for_selected(args: SelectionArgs, log: Logger) -> dict[str, Any]:
    """Wait until the selected gangs have reached the state, or cannot reach it any more. Return the event's payload.

    The payload has the fields `v`, `status` (`met`, `failed` or `unknown`), `message`, `gangs`, which has the payloads
    of the events of the gangs that have reached the state or have ended, and the `reason` of a wait that could not go
    on. The function raises only when it is cancelled.
    """
    wait = _SelectionWait(args, log)
    try:
        answer, message = await wait.run()
    except Exception as error:  # a secrets backend may raise anything
        log_failure(log, error, "The selected gangs cannot be watched in this process")
        payload = selection_payload(Answer.UNKNOWN, list(wait.events.values()), message=_message_of(error))
        return {**payload, "reason": type(error).__name__}
    return selection_payload(answer, list(wait.events.values()), message=message)


def selection_payload(answer: Answer, events: list[GangEvent], *, message: str = "") -> dict[str, Any]:
    """Return the payload that says how the wait ended. Ranks that succeeded are left out, since there may be many."""
    short = (replace_event(event, ranks=()) if event.status is Status.SUCCEEDED else event for event in events)
    gangs = [mask_event(event).to_payload() for event in short]
    return {"v": 1, "status": answer.value, "message": message, "gangs": gangs}


class _SelectionWait:
    """One wait for selected gangs."""

    def __init__(self, args: SelectionArgs, log: Logger) -> None:
        self.events: dict[str, GangEvent] = {}
        """The event of each gang whose wait is over."""
        self._args = args
        self._log = log
        self._until = args.until
        self._followed: dict[str, tuple[GangRef, asyncio.Task[GangEvent]]] = {}
        self._errors: Counter[str] = Counter()
        """How many waits in a row for the gang of a key could not follow it."""
        self._newest = NewestGangs()

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
        from airflow_provider_gangjobs.tracking.gang_watch import SelectionWatch

        self._notification = Notification()
        logged = ""
        while True:
            watch = SelectionWatch(client, self._args.selection, self._notification)
            try:
                await watch.sync()
                while True:
                    answer, line = self._look(watch)
                    if answer is not Answer.WAITING:
                        return answer, line
                    if line != logged:
                        self._log.info("%s", line)
                        logged = line
                    await watch.changed()
            except InformerClosedError:
                continue
            finally:
                watch.close()

    def _look(self, watch: SelectionWatch) -> tuple[Answer, str]:
        """Follow each gang that is new, and return the answer with a line that describes it."""
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
        answers = [self._answer(key) for key in keys]
        if self._args.selector:
            answers += [Answer.WAITING] * (self._args.at_least - len(answers))
        done = sum(answer is Answer.MET for answer in answers)
        answer = decide_wait(answers, self._args.wait_for)
        return answer, f"{done} of {len(answers)} gangs are {self._until}, and {len(self._followed)} are submitted"

    def _answer(self, key: str) -> Answer:
        event = self.events.get(key)
        return Answer.WAITING if event is None else answer_of(event.status, self._until)

    def _follow(self, key: str, ref: GangRef) -> None:
        """Follow the gang of a key, in place of the earlier attempt that was followed."""
        if key in self._followed:
            self._followed[key][1].cancel()
        self.events.pop(key, None)
        until: FollowUntil = "running" if self._until == "running" else "ended"
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


def _message_of(error: Exception) -> str:
    """Return a message for an event. Errors of other libraries may contain credentials."""
    return str(error) if is_for_users(error) else f"{type(error).__name__}; the log has the details"
