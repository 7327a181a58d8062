"""Completes a task whose gang has ended: returns results or raises an error, marks the delivery, and cleans up.

The order makes it safe for the worker to die at any point: until Airflow has noted the success of the task, the next
try can find a gang that succeeded. A fault before that fails the try, and never runs the gang again.

A task whose gang runs on (`wait_until`) gives up its claim instead. The Job says from its creation that the gang
outlives its task, so from the moment at which Airflow has stored the success, nothing ends the gang on its behalf.

`error_from_event` and what it calls build the error from the event of a gang that did not succeed, and are pure.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from airflow_provider_gangjobs import exceptions
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowSkipException
from airflow_provider_gangjobs.airflow_api.task_log import log_lines, mask
from airflow_provider_gangjobs.airflow_api.task_state import is_success, read_state
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.exceptions.base import LAST_LINES_OF, GangJobError
from airflow_provider_gangjobs.gang.outcome.event import Disruption, GangEvent, RankEnd, disruption_of
from airflow_provider_gangjobs.gang.outcome.outcomes import (
    Outcome,
    OutcomeKind,
    failures_first,
    format_table,
    last_pods,
)
from airflow_provider_gangjobs.gang.outcome.task_result import partial_results, task_result
from airflow_provider_gangjobs.gang.spec import RESULTS_LIMIT_BYTES, OnFinish, Results
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import REASON_DELETED_ON_PURPOSE, Phase, Status
from airflow_provider_gangjobs.gang.state.pods import REASON_EVICTED
from airflow_provider_gangjobs.gang.state.stopped import BY_EXECUTION_TIMEOUT, EXECUTION_TIMEOUT, REASON_JOB_DEADLINE
from airflow_provider_gangjobs.kube.text import keep_end, to_printable, to_sentence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.spec import LogOptions
    from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.harvest.collect import CollectedOutcomes
    from airflow_provider_gangjobs.tracking.logs.copy import CopiedLog


def error_from_event(event: GangEvent, log_tail: str = "", *, max_disruptions: int = 0) -> GangJobError:
    """Return the error to raise.

    :param event: The event of the gang. Its status is neither `succeeded` nor `running`.
    :param log_tail: The last lines of the rank that failed first, if they could be read.
    :param max_disruptions: How many disruptions in a row the task allows, for the message.
    """
    ref, phase, message = str(event.ref), event.phase, _message(event)
    error: GangJobError
    match event.status:
        case Status.FAILED:
            error = _failed_error(event, log_tail, max_disruptions)
        case Status.TIMEOUT:
            error = _timeout_error(event)
        case Status.DELETED:
            error_class = exceptions.GangDeleted if event.reason == REASON_DELETED_ON_PURPOSE else exceptions.JobDeleted
            error = error_class(ref, phase, message, advice=event.remedy)
        case Status.REPLACED:
            error = exceptions.JobReplaced(ref, phase, message, event.uid, event.other_uid, advice=event.remedy)
        case _:
            message = _message(event, event.remedy)
            error = exceptions.TrackingFailed(ref=ref, reason=event.reason, last_phase=phase, message=message)
    if isinstance(error, exceptions.GangEndError):
        error.category = event.category
    return error


def _failed_error(event: GangEvent, log_tail: str, max_disruptions: int) -> GangJobError:
    failed = [rank for rank in event.ranks if rank.outcome is not OutcomeKind.SUCCEEDED]
    # A rank had several pods if a queue let the gang run again, or if a plain Job replaced a pod.
    succeeded = {rank.rank for rank in event.ranks if rank.outcome is OutcomeKind.SUCCEEDED}
    numbers = [rank.rank for rank in failed if rank.rank is not None and rank.rank not in succeeded]
    ranks = tuple(dict.fromkeys(numbers))
    ref, reason, message = str(event.ref), event.reason, _message(event, event.remedy)
    # A disruption before the activeDeadlineSeconds of the Job passed did not end the Job.
    match failed[0] if failed else None:
        case RankEnd(outcome=OutcomeKind.PREEMPTED, node=node) if reason != REASON_JOB_DEADLINE:
            return exceptions.Preempted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        case RankEnd(outcome=OutcomeKind.EVICTED | OutcomeKind.LOST, node=node) if reason != REASON_JOB_DEADLINE:
            return exceptions.Disrupted(ref, reason, ranks, message, node, event.disruptions + 1, max_disruptions)
        # The exit code of a pod that was evicted because of a limit of its own may be unknown.
        case RankEnd(outcome=OutcomeKind.FAILED, exit_code=code) as first if code or first.reason == REASON_EVICTED:
            evidence = _evidence(first, log_tail, message)
            own_classes: dict[str, type[exceptions.AppFailed]] = {
                Category.OUT_OF_MEMORY: exceptions.OutOfMemory,
                Category.START_FAILED: exceptions.StartFailed,
            }
            error_class = own_classes.get(event.category, exceptions.AppFailed)
            return error_class(ref, reason, ranks, message, first.rank, code, first.container, evidence)
    return exceptions.GangFailed(ref, reason, ranks, message)


def _evidence(rank: RankEnd, log_tail: str, message: str) -> str:
    """Return the last lines of the rank's log or, without a log, its termination message, with a heading.

    :param message: What happened. If the program left no termination message, the rank has the message of the kubelet,
        which is already part of this text.
    """
    name = f"{rank.name} {rank.container}".rstrip()
    if log_tail:
        return f"{LAST_LINES_OF}{name}:\n{to_printable(log_tail)}"
    has_own = rank.message and rank.message.strip(" .") not in message
    return f"Termination message of {name}:\n{rank.message.rstrip()}" if has_own else ""


def _message(event: GangEvent, remedy: str = "") -> str:
    return " ".join(map(to_sentence, filter(None, (event.message, remedy, *event.notes))))


def _timeout_error(event: GangEvent) -> GangJobError:
    ref, reason = str(event.ref), event.reason
    is_late = reason == EXECUTION_TIMEOUT
    if event.category == Category.IMAGE_PULL_FAILED and not is_late:
        return exceptions.ImagePullFailed(ref=ref, reason=reason, message=_message(event), image=event.image)
    error_class = exceptions.DeadlineExceeded if is_late else _class_of_timeout(event)
    return error_class(
        ref=ref,
        phase=event.phase,
        seconds=event.seconds,
        waiting_for="\n".join(filter(None, (event.message, *event.notes))),
        advice=event.remedy,
        limited_by="execution_timeout" if is_late else "",
    )


def _class_of_timeout(event: GangEvent) -> type[exceptions.DeadlineExceeded]:
    from airflow_provider_gangjobs.gang.state.reason import CAUSES, QUEUE_NEVER, UNPLACED

    if event.phase == Phase.QUEUED and event.category in QUEUE_NEVER:
        return exceptions.QueueRefused
    is_placed = 0 < event.counts.get("ranks", 0) <= event.counts.get("placed", 0)
    is_unplaced = event.phase == Phase.ASSEMBLING and event.category in {CAUSES[cause].category for cause in UNPLACED}
    return exceptions.Unschedulable if is_unplaced and not is_placed else exceptions.DeadlineExceeded


LAST_LINES: Final = 10
LAST_CHARACTERS: Final = 1000
"""How much of the failed rank's log the error shows. The log of the task contains more."""
TABLE_ROWS_MAX: Final = 100
"""How many outcomes of an attempt the log shows. The ledger has all outcomes, as long as the Job exists."""


class Completion(Struct, eq=False):
    """Handles the end of one gang in the worker of its task. The caller calls `read` first."""

    gangs: TaskGangs
    event: GangEvent
    on_finish: OnFinish
    max_disruptions: int
    log: Logger
    result_folder: str | None = None
    """Where the ranks store large results. Addresses elsewhere are not followed."""
    outcomes: Sequence[Outcome] = ()
    copied_logs: Sequence[CopiedLog] = ()
    evidence: CollectedOutcomes | None = None
    """The outcomes of a gang that succeeded, and the ranks whose outcome is missing."""
    outcomes_error: exceptions.LedgerUnavailable | None = None
    """Why the outcomes could not be read."""

    def read(self, logs: LogOptions) -> None:
        """Read the outcomes and the logs of the ranks, as far as they exist, and copy the logs to the task's log.

        :param logs: Which logs are copied, and how much of them.
        """
        from airflow_provider_gangjobs.tracking.harvest.collect import collect_outcomes
        from airflow_provider_gangjobs.tracking.logs.copy import TaskLog, copy_logs

        async def read(service: GangService) -> None:
            try:
                if self.event.status is Status.SUCCEEDED:
                    self.evidence = await collect_outcomes(service.client, self.event)
                    self.outcomes = self.evidence.outcomes
                else:
                    self.outcomes = await service.outcomes(self.event.ref)
            except exceptions.LedgerUnavailable as error:
                self.outcomes_error = error
            log = TaskLog(partial(log_lines, log=self.log), mask, self.event.streamed, self.event.whole_logs)
            self.copied_logs = await copy_logs(service.client, self.event.ref, logs, log, outcomes=self.outcomes)

        self.gangs.call(read)

    @property
    def disruption(self) -> Disruption | None:
        """The disruption that ended the gang. `None` if the gang ended for another reason."""
        return disruption_of(self.event, allowed=self.max_disruptions)

    def log_failure(self) -> None:
        """Log how an attempt ended that another attempt follows.

        Once the next attempt has succeeded, the log is the only place where a user sees the failed one.
        """
        for note in self.event.notes:
            self.log.warning("%s", note)
        lost = self.disruption
        self.log.warning("Gang %s failed: %s. Another attempt follows", self.event.ref, lost or self.event.message)
        if self.outcomes:
            self.log.info(
                "Outcomes of its pods:\n%s", mask(format_table(failures_first(self.outcomes, TABLE_ROWS_MAX)))
            )

    def discard(self) -> None:
        """Delete a failed gang if `on_finish` is `delete`. If another attempt follows, that attempt exists by then.

        With `max_disruptions`, a gang that is kept is marked: another try would handle it as a failure that no try has
        reported.
        """
        if self.on_finish is OnFinish.DELETE:
            release_held = self._log_held_pods() > 0
            self._call_or_warn("deleted", lambda service: self._delete(service.client, release_held=release_held))
        elif self.max_disruptions and self.event.reason != EXECUTION_TIMEOUT:  # after which a gang may still run
            self._mark_delivered()

    async def _delete(self, client: Client, *, release_held: bool) -> None:
        """Delete the gang if this try is responsible for it. Its Job stays until the pods are released that are held.

        :param release_held: Some pods of the gang, which has ended, are held.
        """
        from airflow_provider_gangjobs.ending.delete import delete, finish_deletion
        from airflow_provider_gangjobs.jobs.requests import RetryingRequests

        ref, requests = self.event.ref, RetryingRequests(client, self.event.ref.namespace)
        deletion = await delete(
            requests, ref, only_if=lambda gang: gang.holds_claim(self.gangs.claim), foreground=release_held
        )
        await finish_deletion(client, ref, deletion, release_held=release_held)

    def require_success(self) -> None:
        """Return if the gang succeeded. Otherwise clean up and raise. A gang whose state is unknown is left as it is.

        Raises:
            GangJobError: the gang did not succeed, for the reason that the error gives.
        """
        for note in self.event.notes:
            self.log.warning("%s", note)
        if self.event.status is Status.SUCCEEDED:
            return
        if self.event.status is Status.TIMEOUT and self.event.reason == EXECUTION_TIMEOUT:
            self.gangs.end(self.on_finish, why=BY_EXECUTION_TIMEOUT)
            self._release_held_pods()  # of a gang that the trigger has stopped, and whose pods it could not wait for
        if self.event.status in (Status.FAILED, Status.TIMEOUT):
            self.discard()
        error = error_from_event(self.event, self._last_lines(), max_disruptions=self.max_disruptions)
        if isinstance(error, exceptions.GangEndError):
            error.partial_results = partial_results(self.outcomes, self.result_folder)
            error.links = self._links()
        raise error

    def _links(self) -> Mapping[str, str]:
        """Return the links that the error shows. Nothing else of a task needs a view, so only links import it."""
        if not self.gangs.config.links:
            return {}
        from airflow_provider_gangjobs.gang.view import view_end

        return view_end(self.event, self.gangs.key, self.gangs.config.links).first_links

    def results(self, wanted: Results, *, limit: int = RESULTS_LIMIT_BYTES) -> Any:
        """Return the value of the task.

        :param wanted: The ranks whose results the task returns.
        :param limit: How many bytes the results of all ranks may have together.

        Raises:
            LedgerUnavailable: the outcomes could not be read. The next try finds the gang again.
            OutcomesMissing: the outcome of a completed rank is lost. The Job stays as it is and is not delivered.
            ResultRefused, ResultTooLarge: Airflow cannot store a wanted result, or it was cut off. The gang counts as
                delivered, because another run of the gang would write the same result.
            ResultsTooLarge: the results exceed the limit. The Job stays as it is and is not delivered, so a task that
                is cleared after its limit was raised returns the results of this gang.
        """
        if wanted is Results.NONE:
            self._warn_of_unknown_outcomes()
            return None
        if self.outcomes_error is not None:
            raise self.outcomes_error
        evidence = self.evidence
        assert evidence is not None, "the caller has called `read`, and the gang has succeeded"
        try:
            return value_of(self.event, evidence, wanted, limit=limit, folder=self.result_folder)
        except exceptions.OutcomesMissing:
            if evidence.job_is_gone:
                self._release_held_pods()  # no try finds this gang again to read the other outcomes
            raise
        except (exceptions.ResultRefused, exceptions.ResultTooLarge):
            self.deliver()
            raise

    def _warn_of_unknown_outcomes(self) -> None:
        """Log the outcomes that were not recorded. Without a wanted result, the task succeeds if the Job succeeded."""
        unknown: GangJobError | None = self.outcomes_error
        if self.evidence is not None and not self.evidence.is_complete:
            unknown = missing_outcomes(self.event, self.evidence)
        if unknown is not None:
            self.log.warning('The task succeeds, because its Job succeeded and results is "none". %s', unknown)

    def deliver_accepted(self, ti: Any) -> None:
        """Deliver the gang if Airflow's API server has stored the success of the task.

        Airflow also calls success callbacks if the API server has refused the report of the success, or could not be
        reached: the task runner logs the fault and goes on (`task_runner.run` of the Task SDK).

        :param ti: The task instance of the context.
        """
        if _is_accepted(ti, self.event.ref, self.log):
            self.deliver()

    def deliver(self) -> None:
        """Delete the gang, or mark it as delivered, by `on_finish`, if this try still holds the claim.

        A fault is logged. The task stays a success.
        """
        deletes = self.on_finish.deletes(has_succeeded=True)
        self._mark_delivered(release_held=self._log_held_pods() > 0, deletes=deletes)

    def _mark_delivered(self, *, release_held: bool = False, deletes: bool = False) -> None:
        from airflow_provider_gangjobs.ending.deliver import deliver

        event, claim = self.event, self.gangs.claim
        version = event.version_with(claim)
        self._call_or_warn(
            "delivered",
            lambda service: deliver(
                service.client, event.ref, claim, release_held=release_held, deletes=deletes, version=version
            ),
        )

    def _release_held_pods(self) -> None:
        """Release pods whose outcome could not be recorded, because no process will record the outcome later."""
        from airflow_provider_gangjobs.ending.release import release_gang

        if self._log_held_pods():
            ref = self.event.ref
            self._call_or_warn(
                "released",
                lambda service: release_gang(service.client, ref),
            )

    def _log_held_pods(self) -> int:
        held = self.event.counts.get("held", 0) if self.evidence is None else self.evidence.held
        if held:
            self.log.info("Gang %s: releasing %d pods whose outcome could not be recorded", self.event.ref, held)
        return held

    def _last_lines(self) -> str:
        ends = ((rank.pod, rank.container) for rank in self.event.ranks if rank.outcome is OutcomeKind.FAILED)
        failed = next(ends, None)
        of_failed = (
            log.last_lines
            for log in self.copied_logs
            if failed == (log.source.pod, "" if log.source.is_main else log.source.container)
        )
        lines = next(of_failed, "").splitlines()
        return keep_end("\n".join(lines[-LAST_LINES:]), LAST_CHARACTERS)

    def _call_or_warn(self, what: str, action: Callable[[GangService], Awaitable[object]]) -> None:
        try:
            self.gangs.call(action)
        except (ClusterError, GangJobError) as error:
            self.log.warning("Gang %s could not be %s: %s", self.event.ref, what, error)


def hand_over_accepted(gangs: TaskGangs, ref: GangRef, ti: Any) -> None:
    """Give up the claim of a gang if Airflow's API server has stored the success of its task. A fault is logged.

    :param ti: The task instance of the context.
    """
    from airflow_provider_gangjobs.ending.deliver import hand_over

    if not _is_accepted(ti, ref, gangs.log):
        return
    try:
        handed_over = gangs.call(lambda service: hand_over(service.client, ref, gangs.claim))
    except (ClusterError, GangJobError) as error:
        gangs.log.warning("The claim of gang %s could not be given up: %s", ref, error)
        return
    gangs.log.info("Gang %s %s", ref, "runs on after its task" if handed_over else "is gone, or has another owner")


def is_handed_over(event: GangEvent) -> bool:
    """Return whether the gang has reached the state at which its task ends with success, and runs on."""
    return event.status in (Status.RUNNING, Status.SUCCEEDED)


def _is_accepted(ti: Any, ref: GangRef, log: Logger) -> bool:
    """Return whether Airflow's API server has stored the success of the task. If not, the log says so."""
    state = read_state(ti, ti.get_task_states, log)
    if not is_success(state):
        message = "Gang %s is kept for the next try, because the state of the task at Airflow's API server is %s"
        log.warning(message, ref, state)
    return is_success(state)


@contextmanager
def skip_on_exit_codes(codes: Collection[int], outcomes: Iterable[Outcome]) -> Iterator[None]:
    """Replace the error of a failed gang by a skip, if all ranks that failed have one of these exit codes.

    :param codes: The exit codes. Empty if no exit code skips the task.
    :param outcomes: The recorded outcomes of the gang.

    Raises:
        AirflowSkipException: the block raised `GangFailed`, and the exit codes permit to skip the task.
    """
    try:
        yield
    except exceptions.GangFailed as error:
        if codes and fails_only_with(codes, outcomes):
            raise AirflowSkipException(f"The task is skipped, because of skip_on_exit_code: {error.what}") from error
        raise


def fails_only_with(codes: Collection[int], outcomes: Iterable[Outcome]) -> bool:
    """Return whether ranks failed, and all of them with one of these exit codes. Pure.

    Ranks that were stopped because another rank had failed do not count, and neither do pods that were replaced. A rank
    that was lost, preempted or evicted, or whose end is unknown, did not say that there is nothing to do.
    """
    last = last_pods(list(outcomes))
    ends = [outcome for outcome in last if outcome.outcome not in (OutcomeKind.SUCCEEDED, OutcomeKind.DELETED)]
    return bool(ends) and all(end.outcome is OutcomeKind.FAILED and end.exit_code in codes for end in ends)


def missing_outcomes(event: GangEvent, evidence: CollectedOutcomes) -> exceptions.OutcomesMissing:
    """Return the error that names the completed ranks of a gang whose outcome cannot be read."""
    missing = evidence.missing
    return exceptions.OutcomesMissing(
        ref=str(event.ref),
        ranks=() if isinstance(missing, int) else tuple(sorted(missing)),
        count=missing if isinstance(missing, int) else len(missing),
        job_is_gone=evidence.job_is_gone,
        held=0 if evidence.job_is_gone else evidence.held,
        problem=evidence.problem,
    )


def value_of(event: GangEvent, evidence: CollectedOutcomes, wanted: Results, **limits: Any) -> Any:
    """Return the wanted results of a gang that has succeeded.

    :param limits: `limit` and `folder` of `task_result`.

    Raises:
        OutcomesMissing: the outcome of a completed rank is lost.
        ResultRefused, ResultTooLarge, ResultsTooLarge: as `task_result` does.
    """
    if evidence.completed is None or not evidence.is_complete:
        raise missing_outcomes(event, evidence)
    return task_result(evidence.outcomes, evidence.completed, wanted, event.ref, **limits)


def read_results(hook: GangJobHook, config: ClusterConfig, events: Sequence[GangEvent], wanted: Results) -> list[Any]:
    """Return the value of each gang: its reference and status, or the results of its ranks.

    The value of a gang that has ended without success is `None` if results are wanted.

    Raises:
        LedgerUnavailable: the outcomes of a gang could not be read.
        OutcomesMissing: the outcome of a completed rank is lost.
        ResultRefused, ResultTooLarge: Airflow cannot store a result, or it was cut off.
    """
    if wanted is Results.NONE:
        return [{**asdict(event.ref), "status": event.status.value} for event in events]

    async def read(service: GangService, event: GangEvent) -> Any:
        from airflow_provider_gangjobs.tracking.harvest.collect import collect_outcomes

        if event.status is not Status.SUCCEEDED:
            return None
        return value_of(event, await collect_outcomes(service.client, event), wanted)

    async def read_all(service: GangService) -> list[Any]:
        return [await read(service, event) for event in events]

    return hook.call(read_all, config=config)
