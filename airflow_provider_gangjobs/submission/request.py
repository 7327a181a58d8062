"""What a submission asks for, besides the spec of the gang: one value, which the caller builds and every step reads.

A gang belongs to a task, or to a submission id that the client chose::

    SubmissionRequest.of_task(TaskKey("dag", "run", "task"), "id of the task instance")
    SubmissionRequest.of_id("nightly-2026-01-01", validate="server")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.identity import Claim, OperationKey, parse_default_submission_id
from airflow_provider_gangjobs.gang.spec import Reattach, Validate
from airflow_provider_gangjobs.submission.adopt_or_submit import NextAttemptRule, SubmissionIdRule, TaskRule

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import SubmissionKey, TaskKey
    from airflow_provider_gangjobs.gang.spec import Policies
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
        reattach: Reattach | str = Reattach.RUNNING_OR_SUCCEEDED,
        policies: Policies | None = None,
        validate: Validate | str = Validate.CLIENT,
        wait_for_previous_s: float = SUBMISSION_DEADLINE_S,
        deadline_s: float = SUBMISSION_DEADLINE_S,
    ) -> SubmissionRequest:
        """Ask for the gang of a task.

        :param claim: The id of the task instance that is responsible for the gang from now on.
        :param reattach: Which existing gang of the task to adopt.
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
            rule=TaskRule(Reattach(reattach)),
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
            previous=PreviousGangs(wait_for_previous_s),
            deadline_s=deadline_s,
        )

    @property
    def disruptions(self) -> int:
        """How many attempts in a row were lost to disruptions before a new attempt."""
        return self.rule.disruptions if isinstance(self.rule, NextAttemptRule) else 0

    @property
    def keeps_failed(self) -> bool:
        """If the submission can never be completed, halt its Job with the error instead of deleting the Job.

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
