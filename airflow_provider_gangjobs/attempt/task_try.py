"""One try of a task in a worker: submits the gang, waits for its end, recovers, completes, and delivers.

The operator owns a `TaskTry` for each part of the try, which is a process of its own if the task is deferred:

    with this_try.session():
        value = this_try.run()  # or, with the event of a trigger, `this_try.resume(event)`
    ...
    this_try.deliver(ti)  # after Airflow has stored the success of the task

The try may be killed at any moment. So nothing that the next try needs is kept in this process.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowTaskTimeout
from airflow_provider_gangjobs.airflow_api.task_context import task_env
from airflow_provider_gangjobs.attempt import task_gangs
from airflow_provider_gangjobs.attempt.deferral import (
    CONNECTION_MISSING,
    XCOM_END,
    XCOM_GANG,
    XCOM_REFUSED,
    RecoveryAction,
    execution_timeout_error,
    has_retries_left,
    limit_of_previous,
    recovery_action,
    trigger_args,
    trigger_end,
    with_deadline,
    worker_wait_limit_s,
)
from airflow_provider_gangjobs.attempt.messages import log_submission, xcom_fault_logged
from airflow_provider_gangjobs.exceptions import GangJobError, PreviousAttemptRunning
from airflow_provider_gangjobs.gang.spec import OnKill, WaitUntil
from airflow_provider_gangjobs.gang.state.stopped import BY_EXECUTION_TIMEOUT
from airflow_provider_gangjobs.parameters.checks import require_importable
from airflow_provider_gangjobs.parameters.task_parameters import TaskStorages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.completion import Completion
    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.attempt.task_gangs import StartGuard, TaskGangs
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.restarts import TimeUse
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters
    from airflow_provider_gangjobs.submission.submission import AdoptionRule, PreviousGangs, Submission


class Operator(Protocol):
    """What a try asks of the operator that owns it."""

    may_defer_for_previous: bool
    """Whether the triggerer may wait for the pods of an earlier attempt. It may not after a trigger that could not
    count the pods, because the next trigger may fail too, and no wait would reach `assemble_timeout`."""

    def gang_spec(self, result_folder: str | None) -> GangSpec:
        """Return the spec that the rendered parameters describe."""

    def defer_for(self, args: TriggerArgs, timeout: timedelta | None, *, for_previous: bool) -> NoReturn:
        """Defer until the gang has ended or, with `for_previous`, until no pod of an earlier attempt runs."""


class TaskTry(Struct, eq=False):
    """One part of one try. The caller opens `session`, and then calls one method that returns the value of the task."""

    operator: Operator
    task: TaskParameters
    ti: Any
    """The task instance of the context."""
    gangs: TaskGangs
    guard: StartGuard
    began_at: float
    """When this part of the try began, by `time.monotonic`."""
    earlier_use: TimeUse | None = None
    """What the time of the attempts of this try was used for that were lost."""
    deliver: Callable[[Any], None] = lambda ti: None
    """What is left to do after the success of the task, by its task instance; nothing before the gang has succeeded."""
    _secrets: dict[GangRef, bool | None] = {}
    """`TriggerArgs.secrets` of the gangs of this try."""

    @property
    def log(self) -> Logger:
        """The log of the task."""
        return self.gangs.log

    @property
    def storages(self) -> TaskStorages:
        """The folders of this task."""
        return TaskStorages(self.task.result_storage, self.gangs.key, self.log, self.task.checkpoints)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Open one client for all requests of this part of the try. `AirflowTaskTimeout` ends the gang.

        Airflow raises `AirflowTaskTimeout` when `execution_timeout` has passed in a worker. The gang then ends as after
        a deadline of the trigger. Airflow itself would call `on_kill`, which is for tasks that a user ends.
        """
        try:
            with self.gangs.session():
                yield
        except AirflowTaskTimeout as alarm:
            if self.task.execution_timeout is None:
                raise
            raise self.end_late_gang() from alarm

    def run(self) -> Any:
        """Submit the gang, or adopt the gang of an earlier try, and return the value of the task after its end."""
        from airflow_provider_gangjobs.gang.state.phase import SubmissionState
        from airflow_provider_gangjobs.submission.submission import PreviousGangs, TaskRule

        with self._refusal_is_kept():
            require_importable(self.task.callbacks)
            self.storages.check()
        rule = TaskRule(durable=self.task.durable, return_failed=self.task.max_disruptions > 0)
        submission = self._submit(rule, PreviousGangs(self.gangs.wait_for_previous_s, is_retry=self.ti.try_number > 1))
        if submission.state is SubmissionState.FAILED:
            # An earlier try ended before it handled this failure. Its outcomes are recorded, then the task goes on.
            submission = self._start_next_attempt(self._wait_here(self._args_of(submission, submission.disruptions)))
        return self._finish(self._wait(submission))

    def resume(self, event: GangEvent) -> Any:
        """Return the value of the task after the event of its trigger."""
        return self._finish(self._recover(event))

    def only_live_gang(self) -> StoredGang | None:
        """Return the live gang of this try; `None` if there are none or several, or if that is unknown.

        A gang whose submission has stopped half-way would never run, and the next try completes it: it is left out.
        """
        live = self.gangs.live()
        return live[0] if live is not None and len(live) == 1 and live[0].is_submission_complete else None

    def follow(self, gang: StoredGang) -> Any:
        """Return the value of the task after the wait for a gang whose trigger has failed."""
        self.log.warning("The trigger failed. This worker goes on with gang %s", gang.ref)
        return self._finish(self._submitted(gang) or self._wait_here(self._args_of(gang, gang.record.disruptions)))

    def end_late_gang(self) -> DeadlineExceeded:
        """End the gang, because the `execution_timeout` of the task has passed, and return the error of the task."""
        has_gang = self.gangs.live() != []
        self.gangs.end(self.task.on_finish, why=BY_EXECUTION_TIMEOUT)
        return execution_timeout_error(self.gangs.key, self.task.execution_timeout, has_gang=has_gang)

    # -- submission ------------------------------------------------------------------------------------------

    def _submit(self, rule: AdoptionRule, previous: PreviousGangs | None = None) -> Submission:
        """Submit the gang, or adopt the one that is there. While pods of an earlier attempt run, the task waits."""
        env = task_env(self.ti, self.log)
        request = self.gangs.request(self.task.policies, rule, self.guard.confirm, previous=previous, env=env)
        deletes = self.task.kill_policy is OnKill.DELETE
        with self._refusal_is_kept():
            spec = self.operator.gang_spec(self.storages.result_folder)
            while True:
                try:
                    submission = self.gangs.submit(spec, request, self.guard, delete=deletes)
                    break
                except PreviousAttemptRunning as running:
                    self.log.warning("%s", running)
                    self._wait_for_previous(running)
        log_submission(self.task, submission, self.log, server_software=self.gangs.server_software)
        own_spec = None if submission.has_other_parameters else spec
        self._secrets[submission.ref] = submission.names_secrets or self._note_secrets(submission.ref, own_spec)
        return submission

    def _note_secrets(self, ref: GangRef, spec: GangSpec | None = None) -> bool | None:
        return self.gangs.call(lambda service: self.gangs.note_secrets(service, ref, spec))

    @contextmanager
    def _refusal_is_kept(self) -> Iterator[None]:
        """Push the error of a submission as an XCom, which the tab of the task shows."""
        try:
            yield
        except GangJobError as error:
            from airflow_provider_gangjobs.airflow_api.task_log import mask

            self._push_xcom(XCOM_REFUSED, {"error": type(error).__name__, "message": mask(str(error))})
            raise

    def _start_next_attempt(self, event: GangEvent) -> Submission:
        """Submit the attempt after the one that failed with this event, and log how that one failed."""
        from airflow_provider_gangjobs.submission.submission import NextAttemptRule

        # Airflow empties the log of a trigger when the same triggerer gets another trigger of the same try. The logs
        # are therefore copied from their beginning, and not from the place where the stream ended.
        failed = self._read_completion(replace(event, streamed={}, whole_logs=()) if self.task.deferrable else event)
        failed.log_failure()
        self.earlier_use = event.time_use
        submission = self._submit(NextAttemptRule.after(event, max_disruptions=self.task.max_disruptions))
        failed.discard()  # last, because its Job shows how many attempts in a row were lost
        return submission

    def _wait_for_previous(self, running: PreviousAttemptRunning) -> None:
        """Defer the task until the pods of an earlier attempt have ended.

        If the task may not be deferred, the next submission waits, and this method only checks its limit.

        Raises:
            DeadlineExceeded: the task has waited for longer than `limit_of_previous`.
        """
        ref = task_gangs.ref_of(running)
        if self.task.deferrable and self.operator.may_defer_for_previous:
            self._defer(replace(trigger_args(self.task, self.gangs, ref), claim=""), for_previous=True)
        waited_s = time.monotonic() - self.began_at
        limited_by, limit_s = limit_of_previous(self.task.time_limits)
        if limit_s is not None and waited_s >= limit_s:
            what = {"gang": ref, "reason": limited_by, "waited_s": round(waited_s), "pods": running.pods}
            raise task_gangs.deadline_error(what)

    # -- the wait --------------------------------------------------------------------------------------------

    def _wait(self, submission: Submission) -> GangEvent:
        """Defer the task, or wait in this worker and return the event of the gang's end."""
        self._push_xcom(XCOM_GANG, asdict(submission.ref))
        if (event := self._submitted(submission)) is not None:
            return event
        args = self._args_of(submission, submission.disruptions)
        if self.task.deferrable:
            self._defer(args)
        return self._wait_here(args)

    def _submitted(self, gang: Submission | StoredGang) -> GangEvent | None:
        """Return the event of a task that ends with the submission of its gang; `None` for a task that waits longer."""
        if self.task.wait_until is not WaitUntil.SUBMITTED:
            return None
        from airflow_provider_gangjobs.gang.outcome.event import build_event
        from airflow_provider_gangjobs.gang.state.phase import Phase, Status

        return build_event(gang.ref, Status.RUNNING, Phase.SUBMITTED)

    def _wait_here(self, args: TriggerArgs) -> GangEvent:
        from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker

        timeout, started, config = self.task.execution_timeout, self.ti.start_date, self.gangs.config
        limit_s = worker_wait_limit_s(timeout, started, time.monotonic() - self.began_at)
        args, _ = with_deadline(args, timeout, started)
        return wait_for_event_in_worker(args, self.log, config=config, limit_s=limit_s, until=self.task.until)

    def _defer(self, args: TriggerArgs, *, for_previous: bool = False) -> NoReturn:
        if not for_previous:
            if args.ref not in self._secrets:
                self._secrets[args.ref] = self._note_secrets(args.ref)
            secrets = self._secrets[args.ref]
            folder = self.storages.own_result_folder
            end = None if secrets is None else trigger_end(self.task, self.ti, folder, self.log)
            args = replace(args, end=end, secrets=secrets)
        args, backstop = with_deadline(
            args, self.task.execution_timeout, self.ti.start_date, server_ahead_s=self.gangs.server_ahead_s
        )
        self.operator.defer_for(args, backstop, for_previous=for_previous)

    def _args_of(self, gang: Submission | StoredGang | GangEvent, disruptions: int) -> TriggerArgs:
        return trigger_args(
            self.task, self.gangs, gang.ref, attempt=gang.attempt, disruptions=disruptions, earlier_use=self.earlier_use
        )

    def _recover(self, event: GangEvent) -> GangEvent:
        """Return the event or, if the trigger could not follow the gang, act as `recovery_action` says.

        The method either defers the task again, or follows the gang in this worker, or returns the event as it is.
        """
        from airflow_provider_gangjobs.gang.state.phase import Status

        if event.status is not Status.ERROR:
            return event
        errors, self.earlier_use = event.tracking_errors, event.time_use
        will_be_retried = has_retries_left(self.ti)
        action = recovery_action(
            live=self.gangs.is_live(event.ref),
            errors=errors,
            has_retries_left=will_be_retried,
            is_conn_missing=event.reason == CONNECTION_MISSING,
        )
        why = f"Gang {event.ref} could not be followed ({event.reason}: {event.message})"
        if action is RecoveryAction.DEFER:
            self.log.warning("%s. The task is deferred again", why)
            self._defer(replace(self._args_of(event, event.disruptions), tracking_errors=errors + 1))
        if action is RecoveryAction.FOLLOW_IN_WORKER:
            self.log.warning("%s. This worker follows the gang", why)
            return self._wait_here(self._args_of(event, event.disruptions))
        return event

    # -- the end ---------------------------------------------------------------------------------------------

    def _finish(self, event: GangEvent) -> Any:
        """Return the results or raise the error, after further attempts for the disruptions that the task allows."""
        from airflow_provider_gangjobs.attempt.completion import hand_over_accepted, is_handed_over, skip_on_exit_codes
        from airflow_provider_gangjobs.attempt.metrics import log_use, send_use
        from airflow_provider_gangjobs.gang.outcome.event import disruption_of

        while (lost := disruption_of(event, allowed=self.task.max_disruptions)) is not None and lost.is_allowed:
            event = self._wait(self._start_next_attempt(event))
        if not self.task.ends_with_gang and is_handed_over(event):
            self.deliver = partial(hand_over_accepted, self.gangs, event.ref)
            return asdict(event.ref)
        completion = self._read_completion(event)
        self._push_xcom(XCOM_END, completion.event.to_payload())
        log_use(completion.event, self.log)
        send_use(completion.event, self.gangs.key.dag_id, self.gangs.key.task_id)
        with skip_on_exit_codes(self.task.skip_on_exit_code, completion.outcomes):
            completion.require_success()
        value = completion.results(self.task.results, limit=self.task.results_limit)
        self.deliver = completion.deliver_accepted
        return value

    def _read_completion(self, event: GangEvent) -> Completion:
        from airflow_provider_gangjobs.airflow_api.task_log import mask_event
        from airflow_provider_gangjobs.attempt.completion import Completion

        storages, task = self.storages, self.task
        completion = Completion(
            self.gangs, mask_event(event), task.on_finish, task.max_disruptions, self.log, storages.own_result_folder
        )
        completion.read(task.log_options)
        return completion

    def _push_xcom(self, key: str, value: Any) -> None:
        if self.task.do_xcom_push:
            with xcom_fault_logged(key, self.log):
                self.ti.xcom_push(key, value)
