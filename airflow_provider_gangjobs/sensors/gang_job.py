"""GangJobSensor: a task that waits for gangs that other tasks, or other programs, have submitted.

Importing this module imports no client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_gangjobs.airflow_api.configuration import default_deferrable
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowSensorTimeout, AirflowSkipException
from airflow_provider_gangjobs.airflow_api.task_log import skip_with_never_fail
from airflow_provider_gangjobs.airflow_api.task_state import is_of_earlier_try
from airflow_provider_gangjobs.attempt.deferral import sensor_timeout
from airflow_provider_gangjobs.exceptions import GangJobError, Problem, TrackingFailed
from airflow_provider_gangjobs.gang.client_models import describe_value
from airflow_provider_gangjobs.gang.spec import Results, is_whole_number
from airflow_provider_gangjobs.kube.names import problem_with_label_selector
from airflow_provider_gangjobs.parameters import target_gangs
from airflow_provider_gangjobs.parameters.checks import (
    choice_problems,
    flag_problems,
    is_templated,
    refuse,
    refuse_triggerer,
)
from airflow_provider_gangjobs.parameters.task_parameters import answers_to_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow.sdk import Context

    from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import SelectionArgs
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.awaited import NewestGangs, SelectedGang
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

UNTIL: Final = ("running", "succeeded", "ended")
WAIT_FOR: Final = ("all", "any")
OUTCOMES_WITHIN_S: Final = 300.0
"""How long a poke waits until the outcomes of a gang that has ended are recorded."""


class GangJobSensor(target_gangs.GangTargets, BaseSensorOperator):
    """Wait for gangs that somebody else has submitted: another task, another DAG, or a program with a hook.

    Exactly one of `gangs`, `submission_ids` and `selector` says which gangs. A gang may be submitted after the sensor
    has started. If a task or submission id has several attempts, the newest one counts. The sensor records the outcomes
    of the gangs, as the trigger of their own task does. It is responsible for none of them: it claims, stops and
    deletes no gang, whatever happens to the sensor.

    If the gangs cannot be read, a deferred sensor waits, and fails after some time with `TrackingFailed`. This says
    nothing about the gangs. With `deferrable=False`, the sensor looks again until its `timeout`, unless the API server
    refuses the request.

    :param gangs: Name of a Job, a reference with `namespace`, `name` and `uid` (such as the XCom `gang` of
        `GangJobOperator`, or its result with `wait_until="submitted"`), or a list of them. (templated)
    :param submission_ids: Id of a submission, as `GangJobHook.submit` takes it, or a list of ids. (templated)
    :param selector: Label selector of Jobs, as in `kubectl get jobs --selector`. (templated)
    :param at_least: How many gangs the selector must select before the sensor counts them. Defaults to 1.
    :param namespace: Namespace of the gangs. Defaults to the namespace of the references or of the connection.
        (templated)
    :param until: State that the gangs reach: `running`, `succeeded` (the default), or `ended`, with or without
        success.
    :param wait_for: `all` (the default) or `any` of the gangs.
    :param results: What the sensor returns for each gang that has reached the state: with `none` (the default) its
        `namespace`, `name`, `uid` and `status`; with `rank0` or `all` the results of its ranks, as `GangJobOperator`
        does. The sensor returns a list, or one value if it waits for one gang that is not in a list.
    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`. Defaults to `kubernetes_default`.
        (templated)
    :param deferrable: Whether the sensor waits in the triggerer, on the watches that all triggers share. Defaults to
        Airflow's `[operators] default_deferrable` if that option was set, else to true. Otherwise the sensor looks
        every `poke_interval` seconds, with one request.
    :param kwargs: Parameters of `BaseSensorOperator`. `timeout` limits the whole wait, also while the sensor is
        deferred. With `soft_fail`, the sensor is skipped if a gang fails or the time is over.
    """

    template_fields: Sequence[str] = (*target_gangs.GangTargets.template_fields, "selector")

    def __init__(
        self,
        *,
        selector: str | None = None,
        at_least: int = 1,
        until: str = "succeeded",
        wait_for: str = "all",
        results: Results | str = Results.NONE,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_triggerer(kwargs)
        with answers_to_unknown(GangJobSensor, kwargs):
            super().__init__(**kwargs)
        self.selector = selector
        self.at_least = at_least
        self.until = until
        self.wait_for = wait_for
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self._check(results)
        self.results = Results(results)
        self._events: dict[GangRef, GangEvent] = {}
        """The events of gangs that have ended, of the pokes of this process."""
        self._newest: NewestGangs | None = None

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer, or look every `poke_interval` seconds."""
        if self.deferrable:
            self._defer(context)
        with self._naming_what_is_awaited():
            return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the sensor. After its timeout, the error names what the sensor has waited for."""
        with self._naming_what_is_awaited(), skip_with_never_fail(self):
            return super().resume_execution(next_method, next_kwargs, context)

    @contextmanager
    def _naming_what_is_awaited(self) -> Iterator[None]:
        try:
            yield
        except AirflowSensorTimeout as late:
            raise AirflowSensorTimeout(f"{late} The sensor has waited for {self._awaited()}") from late

    def _awaited(self) -> str:
        """Return which gangs the sensor waits for, for people."""
        if self.selector is not None:
            what = f"{self.at_least} or more gangs with the labels {self.selector}"
        else:
            given = self.gangs if self.gangs is not None else self.submission_ids
            what = f"{'gang' if self.gangs is not None else 'submission'} {given!r:.200}"
        return f"{what}, until {self.until}"

    def _defer(self, context: Context) -> NoReturn:
        from airflow_provider_gangjobs.triggers.sensor import GangSelectionTrigger

        hook, config = self._connect()
        args = self._args(hook, config)
        limit = sensor_timeout(self.timeout, self.execution_timeout)
        self.defer(trigger=GangSelectionTrigger(**args.to_kwargs()), method_name="execute_complete", timeout=limit)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the value of the sensor, or raise the error of the gang that failed.

        A try that Airflow resumes with the event of an earlier try begins with `execute` (`airflow_api.task_state`).
        """
        if is_of_earlier_try(event, context["ti"]):
            return self.execute(context)
        from airflow_provider_gangjobs.attempt.deferral import CONNECTION_MISSING
        from airflow_provider_gangjobs.gang.awaited import Answer
        from airflow_provider_gangjobs.gang.outcome.event import GangEvent

        if event.get("reason") == CONNECTION_MISSING:
            self.log.warning("%s. This worker waits for the gangs", event["message"])
            return super().execute(context)
        answer = Answer(event["status"])
        events = [GangEvent.from_payload(gang) for gang in event["gangs"]]
        hook, config = self._connect()
        return self._finish(hook, config, answer, events, event["message"])

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the gangs once. A failed request is no answer, and the sensor looks again later.

        Raises:
            GangJobError: a gang failed.
            InvalidGangSpec: a parameter is invalid.
            ClusterError: the API server refuses the request.
        """
        from airflow_provider_gangjobs.cluster.errors import ClusterError
        from airflow_provider_gangjobs.gang.awaited import Answer, NewestGangs, decide_wait

        hook, config = self._connect()
        args = self._args(hook, config)
        try:
            found = hook.call(lambda service: service.find_gangs(args.selection), config=config)
        except ClusterError as error:
            if not error.transient:
                raise
            self.log.warning("The gangs could not be read: %s", error)
            return PokeReturnValue(False)
        self._newest = self._newest or NewestGangs()
        found = self._newest.update(found)
        answers = [self._answer(config, args, gang) for gang in found.values()]
        answer = decide_wait(answers, self.wait_for)
        done = sum(each is Answer.MET for each in answers)
        self.log.info("%d of %d gangs are %s", done, len(answers), self.until)
        if answer in (Answer.WAITING, Answer.UNKNOWN):
            return PokeReturnValue(False)
        events = [self._events[gang.ref] for gang in found.values() if gang.ref in self._events]
        return PokeReturnValue(True, self._finish(hook, config, answer, events, ""))

    def _answer(self, config: ClusterConfig, args: SelectionArgs, gang: SelectedGang) -> Any:
        """Return what is known about a gang. If it has ended, its outcomes are recorded first."""
        from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker
        from airflow_provider_gangjobs.gang.awaited import Answer, answer_of
        from airflow_provider_gangjobs.gang.outcome.event import build_event
        from airflow_provider_gangjobs.gang.state.phase import FINAL_PHASES, Phase, Status, phase_of

        if gang.ref is None:
            return Answer.WAITING
        phase = phase_of(gang.job)
        if phase in FINAL_PHASES and gang.ref not in self._events:
            of_gang = args.of_gang(gang.ref)
            event = wait_for_event_in_worker(of_gang, self.log, config=config, limit_s=OUTCOMES_WITHIN_S)
            if event.status in (Status.ERROR, Status.TIMEOUT):
                return Answer.UNKNOWN
            self._events[gang.ref] = event
        elif phase is Phase.RUNNING and self.until == "running":
            self._events[gang.ref] = build_event(gang.ref, Status.RUNNING, phase)
        event_of_gang = self._events.get(gang.ref)
        return Answer.WAITING if event_of_gang is None else answer_of(event_of_gang.status, self.until)

    def _finish(
        self, hook: GangJobHook, config: ClusterConfig, answer: Any, events: list[GangEvent], message: str
    ) -> Any:
        from airflow_provider_gangjobs.attempt.completion import error_from_event, read_results
        from airflow_provider_gangjobs.gang.awaited import Answer, answer_of
        from airflow_provider_gangjobs.gang.state.phase import Status

        met = [event for event in events if answer_of(event.status, self.until) is Answer.MET]
        if answer is Answer.UNKNOWN:
            ref = next((str(event.ref) for event in events if event.status is Status.ERROR), "of the sensor")
            raise TrackingFailed(ref=ref, reason="unknown", message=message)
        if answer is Answer.FAILED:
            failed = (event for event in events if answer_of(event.status, self.until) is Answer.FAILED)
            error: GangJobError = error_from_event(next(failed))
            if self.soft_fail:
                self.log.warning("The sensor is skipped, because soft_fail is set: %s", error)
                raise AirflowSkipException("A gang has failed, and soft_fail is set") from error
            raise error
        values = read_results(hook, config, met, self.results)
        return values[0] if self._is_for_one and values else values

    @property
    def _is_for_one(self) -> bool:
        if self.selector is not None:
            return False
        return target_gangs.is_one(self.gangs if self.gangs is not None else self.submission_ids)

    def _connect(self) -> tuple[GangJobHook, ClusterConfig]:
        from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

        hook = GangJobHook(self.kubernetes_conn_id)
        return hook, hook.config()

    def _args(self, hook: GangJobHook, config: ClusterConfig) -> SelectionArgs:
        from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import SelectionArgs

        refuse(self._selector_problems())
        more: dict[str, Any] = {} if self.selector is None else {"selector": self.selector, "at_least": self.at_least}
        selection = target_gangs.read_selection(self, default_namespace=config.namespace, **more)
        if not (selection.names or selection.digests or selection.selector):
            refuse((Problem("submission_ids", "is empty", "Skip the sensor if there is nothing to wait for"),))
        return SelectionArgs(
            **{**asdict(selection), "digests": list(selection.digests) or None},
            kubernetes_conn_id=self.kubernetes_conn_id,
            until=self.until,
            wait_for=self.wait_for,
            must_exist=bool(hook.exists),
        )

    def _check(self, results: Results | str) -> None:
        """Check the parameters when the DAG file is parsed, as far as their templates allow.

        Raises:
            InvalidGangSpec: a parameter is invalid.
        """
        kinds = ("gangs", "submission_ids", "selector")
        target_gangs.require_one_kind(**{name: getattr(self, name) for name in kinds})
        target_gangs.require_readable(self)
        problems = [
            Problem(name, f"is {value!r}", f"Give one of {', '.join(known)}")
            for name, value, known in (("until", self.until, UNTIL), ("wait_for", self.wait_for, WAIT_FOR))
            if value not in known
        ]
        if self.until == "running" and results != Results.NONE:
            problems.append(Problem("results", f"is {results!r}, and a gang that runs has none", 'Give "none"'))
        if not is_whole_number(self.at_least, 1):
            problems.append(Problem("at_least", f"is {self.at_least!r}", "Give a number from 1"))
        elif self.at_least > 1 and self.selector is None:
            what = f"is {self.at_least!r} without selector, and the other parameters say how many gangs there are"
            problems.append(Problem("at_least", what, "Leave it out"))
        problems += self._selector_problems()
        problems += flag_problems("deferrable", self.deferrable)
        refuse((*problems, *choice_problems(Results, "results", results)))

    def _selector_problems(self) -> list[Problem]:
        given: Any = self.selector
        if given is None or is_templated(given):
            return []
        remedy = "Give a label selector, such as team=vision"
        if not isinstance(given, str):
            if isinstance(given, Mapping):
                remedy = f"Write {','.join(f'{name}={value}' for name, value in given.items())!r}"
            return [Problem("selector", f"is {describe_value(given)} and no text", remedy)]
        if given.strip() in ("", "None"):
            return [Problem("selector", f"is {given!r}", remedy)]
        wrong = problem_with_label_selector(given)
        return [Problem("selector", wrong, remedy)] if wrong else []


__all__ = ["GangJobSensor"]
