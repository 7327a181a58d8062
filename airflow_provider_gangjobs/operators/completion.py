"""Completion: what a task does when its gang has ended: results, errors, the mark of delivery, and clean-up.

The order makes it safe to die anywhere: a gang that succeeded stays findable until Airflow has noted the task's
success, so whatever fails before that fails the task's try, and never runs the gang again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.exceptions import GangJobError, LedgerUnavailable, OutcomesMissing, ResultTooLarge
from airflow_provider_gangjobs.gang.outcome.disruption import Disruption, disruption_of
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind, failures_first, format_table
from airflow_provider_gangjobs.gang.outcome.results import task_result
from airflow_provider_gangjobs.gang.spec import OnFinish, Results
from airflow_provider_gangjobs.hooks.task_state import is_success, read_state
from airflow_provider_gangjobs.kube.text import keep_end
from airflow_provider_gangjobs.operators.errors import error_from_event
from airflow_provider_gangjobs.submission.adopt import Lost
from airflow_provider_gangjobs.triggers.wait import EXECUTION_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.spec import Logs
    from airflow_provider_gangjobs.operators.task_gangs import Custody
    from airflow_provider_gangjobs.service import Gangs
    from airflow_provider_gangjobs.tracking.harvest.collect import CollectedOutcomes
    from airflow_provider_gangjobs.tracking.read.logs import RankLog

LAST_LINES: Final = 10
LAST_CHARACTERS: Final = 1000
"""Of the failed rank's log, for the error; the task's log has more."""
TABLE_ROWS_MAX: Final = 100
"""Of an attempt's outcomes, for the log; the ledger has them all while the Job is there."""


@dataclass
class Completion:
    """The end of one gang, as its task's worker deals with it. `look` comes first."""

    custody: Custody
    event: GangEvent
    on_finish: OnFinish
    max_disruptions: int
    log: Logger
    outcomes: Sequence[Outcome] = field(default=(), init=False)
    rank_logs: Sequence[RankLog] = field(default=(), init=False)
    evidence: CollectedOutcomes | None = field(default=None, init=False)
    """Of a gang that succeeded: its outcomes, and what is missing of them."""
    outcomes_error: LedgerUnavailable | None = field(default=None, init=False)
    """Why there are no outcomes."""

    def read(self, logs: Logs) -> None:
        """Read the outcomes and the ranks' logs, and show the latter in the task's log, as far as both are there."""

        async def read(gangs: Gangs) -> None:
            try:
                if self.event.status is Status.SUCCEEDED:
                    self.evidence = await gangs.collect_outcomes(self.event)
                    self.outcomes = self.evidence.outcomes
                else:
                    self.outcomes = await gangs.outcomes(self.event.ref)
            except LedgerUnavailable as error:
                self.outcomes_error = error
            self.rank_logs = await gangs.logs(self.event.ref, logs, outcomes=self.outcomes)

        self.custody.call(read)
        for line in (line for rank_log in self.rank_logs for line in rank_log.lines()):
            self.log.info("%s", line)

    @property
    def disruption(self) -> Disruption | None:
        """What the gang was lost to, if that was the cluster's doing."""
        return disruption_of(self.event, allowed=self.max_disruptions)

    def log_failure(self) -> Lost:
        """Say in the log what came of an attempt that another one follows. Returns what that one follows.

        The log is all that a user sees of it, once the next attempt has succeeded.
        """
        for note in self.event.notes:
            self.log.warning("%s", note)
        lost = self.disruption
        self.log.warning("Gang %s failed: %s. Another attempt follows it", self.event.ref, lost or self.event.message)
        if self.outcomes:
            self.log.info("Its pods ended as follows:\n%s", format_table(failures_first(self.outcomes, TABLE_ROWS_MAX)))
        return Lost(self.event.attempt or 0, lost.carried_over if lost else 0)

    def discard(self) -> None:
        """Delete a failed gang, if `on_finish` says so, once another attempt stands for it."""
        if self.on_finish is OnFinish.DELETE:
            ref, claim, free_held = self.event.ref, self.custody.claim, self._log_held_pods() > 0
            self._call_or_warn("deleted", lambda gangs: gangs.discard(ref, claim, free_held=free_held))

    def require_success(self) -> None:
        """Nothing, if the gang succeeded; else clean up and raise. A gang of which nothing is known is left as it is.

        Raises:
            GangJobError: why it did not.
        """
        for note in self.event.notes:
            self.log.warning("%s", note)
        if self.event.status is Status.SUCCEEDED:
            return
        if self.event.status is Status.TIMEOUT and self.event.reason == EXECUTION_TIMEOUT:
            self.custody.end(self.on_finish, why=EXECUTION_TIMEOUT)
        if self.event.status in (Status.FAILED, Status.TIMEOUT):
            self.discard()
        if self.event.status is Status.FAILED and self.max_disruptions and self.on_finish is not OnFinish.DELETE:
            # Else the next try would look at it once more, as at one that failed while nobody looked.
            self._mark_delivered()
        raise error_from_event(self.event, self._last_lines(), max_disruptions=self.max_disruptions)

    def results(self, wanted: Results) -> Any:
        """What the task returns.

        Raises:
            LedgerUnavailable: the outcomes could not be read; the next try finds the gang again.
            OutcomesMissing: the outcome of a completed rank is lost. The Job stays as it is and is not delivered.
            ResultTooLarge: a result that is wanted was cut. The gang counts as delivered, it would do it again.
        """
        if wanted is Results.NONE:
            self._warn_of_unknown_outcomes()
            return None
        if self.outcomes_error is not None:
            raise self.outcomes_error
        evidence = self.evidence
        assert evidence is not None, "`look` comes first, and the gang has succeeded"
        if evidence.completed is None or not evidence.is_complete:
            if evidence.job_is_gone:
                self._release_held_pods()  # no try finds this gang again, so nobody reads the rest of its outcomes
            raise _missing(self.event, evidence)
        try:
            return task_result(evidence.outcomes, evidence.completed, wanted, self.event.ref)
        except ResultTooLarge:
            self.deliver()
            raise

    def _warn_of_unknown_outcomes(self) -> None:
        """The success of the Job is the task's success if no result is wanted; the log says what was not recorded."""
        unknown: GangJobError | None = self.outcomes_error
        if self.evidence is not None and not self.evidence.is_complete:
            unknown = _missing(self.event, self.evidence)
        if unknown is not None:
            self.log.warning('The task has results="none", so it succeeds as its Job did. %s', unknown)

    def deliver_accepted(self, ti: Any) -> None:
        """As `deliver`, if Airflow's API server has the task as a success.

        Airflow calls success callbacks also when the report of the success was refused or could not be sent: the task
        runner logs that and goes on (`task_runner.run` of the Task SDK).
        """
        state = read_state(ti, ti.get_task_states, self.log)
        if is_success(state):
            self.deliver()
        else:
            said = (
                "Gang %s is kept for the next try: Airflow's API server has the state of the task as %s, not as success"
            )
            self.log.warning(said, self.event.ref, state)

    def deliver(self) -> None:
        """Mark the gang as delivered, then clean up, if this try still answers for it.

        A fault is told, and changes nothing about the task's success.
        """
        clean_up = self.on_finish in (OnFinish.DELETE, OnFinish.DELETE_SUCCEEDED)
        self._mark_delivered(free_held=self._log_held_pods() > 0, delete=clean_up)

    def _mark_delivered(self, *, free_held: bool = False, delete: bool = False) -> None:
        ref, claim = self.event.ref, self.custody.claim
        self._call_or_warn("delivered", lambda gangs: gangs.deliver(ref, claim, free_held=free_held, delete=delete))

    def _release_held_pods(self) -> None:
        """Release pods whose outcome could not be recorded: nobody comes back for them after this."""
        if self._log_held_pods():
            self._call_or_warn("released", lambda gangs: gangs.let_go(self.event.ref))

    def _log_held_pods(self) -> int:
        """How many pods are held because their outcome could not be recorded, for the log and for the clean-up."""
        held = self.event.counts.get("held", 0) if self.evidence is None else self.evidence.held
        if held:
            self.log.info("Gang %s: %d pods whose outcome is not recorded are released", self.event.ref, held)
        return held

    def _last_lines(self) -> str:
        """Of the rank that failed first."""
        failed = next((rank.pod for rank in self.event.ranks if rank.outcome is OutcomeKind.FAILED), None)
        lines = next((rank_log.text for rank_log in self.rank_logs if rank_log.pod == failed), "").splitlines()
        return keep_end("\n".join(lines[-LAST_LINES:]), LAST_CHARACTERS)

    def _call_or_warn(self, what: str, action: Callable[[Gangs], Awaitable[object]]) -> None:
        try:
            self.custody.call(action)
        except (ClusterError, GangJobError) as error:
            self.log.warning("Gang %s could not be %s: %s", self.event.ref, what, error)


def _missing(event: GangEvent, evidence: CollectedOutcomes) -> OutcomesMissing:
    return OutcomesMissing(
        ref=str(event.ref),
        ranks=evidence.missing.ranks,
        count=evidence.missing.count,
        job_is_gone=evidence.job_is_gone,
        held=0 if evidence.job_is_gone else evidence.held,
        problem=evidence.problem,
    )
