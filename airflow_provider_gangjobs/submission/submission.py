"""What a submission asks for, and what it returns. All that is known of it later is in its Job, and nowhere else.

`SubmissionRequest` is one value beside the spec of the gang, which the caller builds and every step reads. A gang
belongs to a task, or to a submission id that the client chose::

    SubmissionRequest.of_task(TaskKey("dag", "run", "task"), "id of the task instance")
    SubmissionRequest.of_id("nightly-2026-01-01", validate="server")

The Job with its labels and annotations outlives every process. A label has the digest of the id, so one list finds all
attempts. The Jobs alone do not show what a pod waits for and which rank failed: follow the gang for these facts.

The rules decide what a task does, given the Jobs that the task already has (`decide`). A gang whose outcome was not
delivered is never run again by accident. A gang that has failed, whose outcome was delivered, or that is being deleted
is never waited for again. So a retry after a lost worker reattaches to the gang, and a finished task that is cleared
runs a new gang. The rules do not use Airflow's try numbers, which begin again if a DAG run is deleted and created with
the same id. Airflow gives each try a new id, a UUID version 7. These ids are ordered by time, so the id that a Job has
as its claim may show that the submission comes too late (`gang_of_later_try`).

A try may have other parameters than the gang that it finds, because somebody has edited the DAG, or because a template
renders differently at each try. Only a user who clears the task asks for a gang of the new parameters, so only a clear
ends a gang of other parameters. `max_tries` of the task instance shows the clear (`_Question.may_continue`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.identity import Claim, GangRef, OperationKey, parse_default_submission_id
from airflow_provider_gangjobs.gang.spec import Validate
from airflow_provider_gangjobs.gang.state.phase import (
    SubmissionState,
    is_live,
    state_of,
)
from airflow_provider_gangjobs.kube.views import end_condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.identity import SubmissionKey, TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.spec import GangSpec, Policies
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.gang.view import GangView


SUBMISSION_DEADLINE_S: Final = 120.0
"""Twice the time that an API server may need to restart. Discovery and all steps of a submission share the deadline."""
SUBMISSION_ID_CHARACTERS_MAX: Final = 512


class ConfirmTry(Protocol):
    """Confirms that the try that submits the gang is the one that Airflow runs.

    A process that was stopped may wake up after its task has ended, and would start a gang that nobody wants.
    """

    async def __call__(self, *, always: bool = False) -> None:
        """Return if the try runs.

        :param always: Ask Airflow in any case, and not only if much time has passed since Airflow last said so.

        Raises:
            UnconfirmedTry: the try has ended, or Airflow does not say whether the try runs.
        """


class UnconfirmedTry(Exception):  # noqa: N818 - the caller of the submission knows the task, and raises the error
    """The try does not run any more, or that is unknown. Nothing was written after that."""

    def __init__(self, *, has_ended: bool) -> None:
        super().__init__()
        self.has_ended = has_ended
        """Whether Airflow has said that the try has ended. Otherwise Airflow has said nothing."""


class PreviousGangs(Struct, frozen=True):
    """How a submission waits for the pods of earlier attempts."""

    wait_s: float = SUBMISSION_DEADLINE_S
    """For how long the submission waits, in seconds. After that, it fails with `PreviousAttemptRunning`."""
    is_retry: bool = False
    """The task may have had gangs whose Jobs are gone. Their pods are looked for, too, with one request."""


class SubmissionRequest(Struct, frozen=True, kw_only=True):
    """A request to submit a gang: whose gang it is, which gang it may adopt, and its limits."""

    key: SubmissionKey
    claim: Claim
    rule: AdoptionRule
    """Which existing gang to adopt."""
    dry_run: bool = False
    """The server validates the Job in a dry run before anything is created."""
    confirm: ConfirmTry | None = None
    """Called before a write that lets pods run, and before a gang of another try is adopted or deleted. None means that
    the task always wants the gang."""
    previous: PreviousGangs | None = None
    """How to wait for the pods of earlier attempts. None means not to wait."""
    deadline_s: float = SUBMISSION_DEADLINE_S
    """For how many seconds requests are retried, in total."""

    @classmethod
    def of_task(
        cls,
        key: TaskKey,
        claim: str = "",
        *,
        durable: bool = True,
        policies: Policies | None = None,
        validate: Validate | str = Validate.CLIENT,
        wait_for_previous_s: float = SUBMISSION_DEADLINE_S,
        deadline_s: float = SUBMISSION_DEADLINE_S,
    ) -> SubmissionRequest:
        """Ask for the gang of a task.

        :param claim: The id of the task instance that is responsible for the gang from now on.
        :param durable: Whether to adopt an existing gang of an earlier try of the task.
        :param policies: What happens to the gang after its task has ended. Only if `key` is a task of Airflow: a
            sweeper asks Airflow for the state of the task.
        :param validate: With `server`, the API server validates the Job in a dry run before anything is created.
        :param wait_for_previous_s: For how many seconds to wait for the pods of an earlier attempt, at most until the
            deadline. No attempt is created while they run.
        :param deadline_s: For how many seconds from now requests are retried, in total.
        """
        return cls(
            key=key,
            claim=Claim(claim, policies),
            rule=TaskRule(durable=durable),
            dry_run=Validate(validate) is Validate.SERVER,
            previous=PreviousGangs(wait_for_previous_s, is_retry=True),
            deadline_s=deadline_s,
        )

    @classmethod
    def of_id(
        cls,
        submission_id: str,
        *,
        validate: Validate | str = Validate.CLIENT,
        wait_for_previous_s: float = SUBMISSION_DEADLINE_S,
        deadline_s: float = SUBMISSION_DEADLINE_S,
    ) -> SubmissionRequest:
        """Ask for the gang of an id that the client chose.

        The same id with the same parameters is the same gang, however often and from wherever it is submitted, also
        after the gang has succeeded, until the submission is deleted or has failed. All clients that submit an id share
        one claim, so a second client takes the claim from nobody. The options are those of `of_task`.

        Raises:
            InvalidGangSpec: the id is invalid.
        """
        if problem := _problem_with_id(submission_id):
            raise InvalidGangSpec((problem,))
        return cls(
            key=OperationKey(submission_id),
            claim=Claim(f"operation:{submission_id}"),
            rule=SubmissionIdRule(),
            dry_run=Validate(validate) is Validate.SERVER,
            previous=PreviousGangs(wait_for_previous_s, is_retry=True),
            deadline_s=deadline_s,
        )

    @property
    def disruptions(self) -> int:
        """How many attempts in a row were lost to disruptions before a new attempt."""
        return self.rule.disruptions if isinstance(self.rule, NextAttemptRule) else 0

    @property
    def keeps_failed(self) -> bool:
        """If the submission can never be completed, stop its Job with the error instead of deleting the Job.

        The record of a submission id then has the error. The error of a task is in Airflow.
        """
        return isinstance(self.rule, SubmissionIdRule)


def _problem_with_id(submission_id: str) -> Problem | None:
    if not submission_id.strip() or not submission_id.isprintable():
        return Problem("submission_id", f"is {submission_id!r:.80}", "Give printable text")
    if len(submission_id) > SUBMISSION_ID_CHARACTERS_MAX:
        what = f"has {len(submission_id)} characters"
        return Problem("submission_id", what, f"At most {SUBMISSION_ID_CHARACTERS_MAX}")
    if parse_default_submission_id(submission_id):
        what = f"is {submission_id}, which has the form of the ids of tasks"
        return Problem("submission_id", what, "Choose another id")
    return None


class Submission(Struct, frozen=True):
    """The one live gang of a task."""

    ref: GangRef
    attempt: int
    workers: int
    """The number of ranks."""
    submission_id: str
    decision: str
    """The value of the Job's annotation: `gang:v1beta1`, `basic:<reason>`, `brought` or `off`."""
    adopted: bool
    """Whether the gang existed before, from an earlier try or a concurrent submitter."""
    state: SubmissionState
    """In progress; or the gang had succeeded before; or it had failed before, and its failure was not handled."""
    is_suspended: bool = False
    """Whether the Job of a gang in progress is suspended. Kueue or the user starts it."""
    disruptions: int = 0
    """How many attempts in a row were lost to disruptions before this one."""
    notes: tuple[str, ...] = ()
    """Guarantees that were requested with `preferred` and that the gang does not have, for the log."""
    queue: str | None = None
    """The Kueue queue that decides when the Job runs."""
    queue_defaults: tuple[str, ...] = ()
    """Which of `queue_name` and `queue_priority` a new gang has from the connection."""
    restarts_max: int = 0
    """How often the programs of the ranks may be restarted in their pods."""
    has_other_parameters: bool = False
    """Whether the gang was submitted with other parameters than those of this submission."""
    names_secrets: bool = False
    """Whether the Job says where the gang has secrets (`jobs.gang_secrets`)."""


class SubmissionPage(Struct, frozen=True):
    """One page of a list of submissions."""

    gangs: tuple[GangView, ...]
    continue_token: str | None
    """The token of the next page. None on the last page."""


# -- the rules -------------------------------------------------------------------------------------------------------


class Adopt(Struct, frozen=True):
    """Continue with this Job, after the deletion of the superseded Jobs."""

    job: StoredGang
    superseded: tuple[StoredGang, ...] = ()


class SubmitNew(Struct, frozen=True):
    """Submit the attempt of this number, after the deletion of the superseded Jobs."""

    number: int
    superseded: tuple[StoredGang, ...] = ()


class Refuse(Struct, frozen=True):
    """Refuse to submit: this Job was created from other parameters, and it is not known which parameters are wanted."""

    job: StoredGang


class TakenOver(Struct, frozen=True):
    """Do nothing: another try of the task is responsible for this Job, or for the attempt that follows the Job."""

    job: StoredGang


class Foreign(Struct, frozen=True):
    """Do nothing: this Job may run, and its record does not say what it is."""

    job: StoredGang


SubmissionAction = Adopt | SubmitNew | Refuse | TakenOver | Foreign


class TaskRule(Struct, frozen=True):
    """The rule for the first gang of a try of a task."""

    durable: bool = True
    """Adopt a gang of an earlier try that runs, or that succeeded and was not delivered."""
    return_failed: bool = False
    """Adopt the last attempt if it has failed and no try has handled its failure. The caller diagnoses it."""
    return_own_failed: bool = False
    """Adopt the last attempt if it has failed and the same try has submitted it: the process that waited for it died,
    and another process repeats the submission of the same try."""


class NextAttemptRule(Struct, frozen=True):
    """The rule for the attempt that follows a lost one within the same try of a task."""

    lost_attempt: int
    disruptions: int
    """How many attempts in a row were lost to disruptions, including this one."""

    @classmethod
    def after(cls, event: GangEvent, *, max_disruptions: int) -> NextAttemptRule:
        """Return the rule for the attempt that follows the one that ended with this event.

        :param max_disruptions: How many attempts in a row may be lost and replaced without a retry of the task.
        """
        from airflow_provider_gangjobs.gang.outcome.event import disruption_of

        disruption = disruption_of(event, allowed=max_disruptions)
        return cls(event.attempt or 0, disruption.carried_over if disruption else 0)


class SubmissionIdRule(Struct, frozen=True):
    """The rule for a submission id that a client chose."""


AdoptionRule = TaskRule | NextAttemptRule | SubmissionIdRule


def decide(
    rule: AdoptionRule,
    jobs: Sequence[StoredGang],
    *,
    claim: str,
    spec_hash: str,
    min_attempt: int = 0,
    max_tries: int | None = None,
) -> SubmissionAction:
    """Return the action after which one gang of the task or id is live. After `Refuse`, the live gang is unchanged.

    :param jobs: All Jobs of the task or id.
    :param min_attempt: The lowest attempt number that is free.
    :param max_tries: `max_tries` of the task instance; `None` if no task of Airflow submits the gang.
    """
    for job in jobs:
        if state_of(job) is SubmissionState.FOREIGN and end_condition(job.view) is None:
            return Foreign(job)
    ask = _Question(jobs, claim, spec_hash, min_attempt, max_tries)
    match rule:
        case TaskRule():
            return _decide_for_task(ask, rule)
        case NextAttemptRule(lost_attempt):
            return _decide_after_loss(ask, lost_attempt)
        case SubmissionIdRule():
            return _decide_for_id(ask)


class _Question(Struct, frozen=True):
    jobs: Sequence[StoredGang]
    claim: str
    spec_hash: str
    min_attempt: int
    max_tries: int | None

    @property
    def newest_first(self) -> list[StoredGang]:
        return sorted(self.jobs, key=_attempt, reverse=True)

    @property
    def next_number(self) -> int:
        return max([self.min_attempt, *(job.attempt + 1 for job in self.jobs)])

    def has_same_spec(self, job: StoredGang) -> bool:
        return job.record.spec_hash == self.spec_hash

    def may_continue(self, job: StoredGang) -> bool:
        """Return whether the task may continue with a gang, as far as the parameters of the gang decide that.

        A gang of other parameters is continued unless a user has cleared the task since another task instance claimed
        it. When a user clears a task, Airflow sets `max_tries` to the number of the last try plus `retries`; a retry
        leaves `max_tries` as it is, also after an edit of the DAG. The version of the DAG is no criterion: an edit of
        another task changes it, and so does each parse of a DAG file that writes the present time into the DAG. If the
        Job has no `max_tries`, it is not known whether the task was cleared, and the gang is continued.
        """
        if self.max_tries is None or self.has_same_spec(job):
            return self.has_same_spec(job)
        return job.claim.max_tries is None or job.claim.max_tries == self.max_tries


def _decide_for_task(ask: _Question, rule: TaskRule) -> SubmissionAction:
    """Return the action of the first submission of a try.

    1. A gang that the same claim has submitted before is adopted, whatever the rule.
    2. Otherwise a live gang is adopted, or superseded if the rule is not durable. A live gang of other
       parameters is adopted, too, unless a user has cleared the task since, or the gang cannot be continued, because
       its submission is incomplete: then it is superseded. Without `max_tries` it is refused.
    3. If no gang is live, a success that was not delivered is adopted by a durable rule. With `return_failed`, a
       failure of the last attempt is adopted in the same way, so that the caller can diagnose it; with
       `return_own_failed`, only a failure of the same claim. A gang of other parameters is adopted if no user has
       cleared the task since.
    """
    newest = ask.newest_first
    own = [job for job in newest if job.holds_claim(ask.claim)]
    live = [job for job in newest if is_live(job)]
    candidates = [job for job in live if job in own] or (live if rule.durable else [])
    if candidates:
        return _adopt_newest(ask, candidates, live)
    undelivered = own[:1]
    if rule.durable:
        undelivered += newest[:1]
    for job in undelivered:
        if state_of(job) is SubmissionState.SUCCEEDED and ask.may_continue(job):
            return Adopt(job, tuple(live))
    for job in newest[:1]:
        is_wanted = rule.return_failed or (rule.return_own_failed and job in own)
        is_failure = is_wanted and state_of(job) is SubmissionState.FAILED
        if is_failure and ask.may_continue(job) and (job in own or rule.durable):
            return Adopt(job, tuple(live))
    return SubmitNew(ask.next_number, tuple(live))


def gang_of_later_try(jobs: Sequence[StoredGang], claim: str) -> StoredGang | None:
    """Return the newest Job whose claim is the id of a try that seems to be later than the try that holds `claim`.

    Such a Job is a suspicion. A worker that was stopped for longer than Airflow waits for its heartbeat may continue
    while the next try runs, and must then change nothing. But the ids are as right as the clocks of the processes that
    create them: after a clock was ahead, the try that runs has an earlier id than the try before it. So Airflow is
    asked which try runs.
    """
    later = (job for job in jobs if _has_later_claim(job, claim))
    return max(later, key=_attempt, default=None)


def _has_later_claim(job: StoredGang, claim: str) -> bool:
    theirs, ours = created_ms(job.claim.id), created_ms(claim)
    return theirs is not None and ours is not None and theirs > ours


def created_ms(claim: str) -> int | None:
    """Return the time in a UUID version 7, in milliseconds since 1970. `None` for a claim of another form."""
    try:
        uuid = UUID(claim)
    except ValueError:
        return None
    return uuid.int >> 80 if uuid.version == 7 else None


def _decide_after_loss(ask: _Question, lost_attempt: int) -> SubmissionAction:
    """Return the action after an attempt was lost, within the same try of the task.

    The action is to submit the next attempt, unless another try of the task has adopted the lost attempt or has
    submitted the next attempt.
    """
    since = (job for job in ask.jobs if job.attempt >= lost_attempt)
    theirs = (job for job in since if job.claim.id and not job.holds_claim(ask.claim))
    if (taken := next(theirs, None)) is not None:
        return TakenOver(taken)
    ask = replace(ask, min_attempt=max(ask.min_attempt, lost_attempt + 1))
    return _decide_for_task(ask, TaskRule(durable=False))


def _decide_for_id(ask: _Question) -> SubmissionAction:
    """Return the action for a submission id that a client chose.

    The same id is the same gang, also after the gang has succeeded. If the gang was created from other parameters, the
    submission is refused. A gang that has failed, was stopped, or is being deleted is followed by the next attempt,
    which may have other parameters.
    """
    current = [job for job in ask.newest_first if _is_current(job)]
    if not current:
        return SubmitNew(ask.next_number)
    same = next((job for job in current if ask.has_same_spec(job)), None)
    if same is None:
        return Refuse(current[0])
    others = (job for job in current if job is not same)
    return Adopt(same, tuple(job for job in others if is_live(job)))


def _is_current(job: StoredGang) -> bool:
    """Return whether the gang is live or has succeeded, also if its outcome was delivered."""
    is_abandoned = job.is_being_deleted or job.is_dropped
    return is_live(job) or (job.complete_condition is not None and not is_abandoned)


def _adopt_newest(ask: _Question, candidates: list[StoredGang], live: list[StoredGang]) -> SubmissionAction:
    """Adopt the newest candidate that the task may continue with, and supersede all other live gangs.

    A candidate that was created from these parameters comes first. An incomplete submission of other parameters cannot
    be completed, because the stored Job does not contain the parameters.
    """
    found = next(filter(ask.has_same_spec, candidates), None)
    if found is None:
        ran = [job for job in candidates if not job.never_ran]
        if ran and ask.max_tries is None:
            return Refuse(ran[0])
        found = next((job for job in ran if job.is_submission_complete and ask.may_continue(job)), None)
    if found is None:
        return SubmitNew(ask.next_number, tuple(live))
    return Adopt(found, tuple(job for job in live if job is not found))


def differing_fields(spec: GangSpec, job: StoredGang) -> tuple[str, ...]:
    """Return the names of the parameters whose digests differ between the spec and the Job, sorted."""
    ours, theirs = spec.field_digests, job.record.fields
    if not theirs:
        return ()
    return tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def _attempt(job: StoredGang) -> int:
    return job.attempt
