"""What a submission asks for, and what it returns. All that is known of it later is in its Job, and nowhere else.

`SubmissionRequest` is one value beside the spec of the gang, which the caller builds and every step reads. A gang
belongs to a task, or to a submission id that the client chose::

    SubmissionRequest.of_task(TaskKey("dag", "run", "task"), "id of the task instance")
    SubmissionRequest.of_id("nightly-2026-01-01", validate="server")

The Job with its labels and annotations outlives every process. A label has the digest of the id, so one list finds all
attempts. The Jobs alone do not show what a pod waits for and which rank failed: follow the gang for these facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.identity import Claim, GangRef, OperationKey, parse_default_submission_id
from airflow_provider_gangjobs.gang.spec import Validate
from airflow_provider_gangjobs.gang.state.phase import SubmissionState  # noqa: TC001 - the schema of the REST interface
from airflow_provider_gangjobs.submission.adopt_or_submit import NextAttemptRule, SubmissionIdRule, TaskRule

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import SubmissionKey, TaskKey
    from airflow_provider_gangjobs.gang.spec import Policies
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.submission.adopt_or_submit import AdoptionRule


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


@dataclass(frozen=True)
class Submission:
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


@dataclass(frozen=True)
class SubmissionPage:
    """One page of a list of submissions."""

    gangs: tuple[GangView, ...]
    continue_token: str | None
    """The token of the next page. None on the last page."""
