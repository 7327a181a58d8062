"""Exceptions of a submission: the gang does not run, because the request was refused or a step failed."""

# These names appear in logs and retry policies, where the suffix "Error" would add nothing.
# ruff: noqa: N818

from __future__ import annotations

import re
from typing import Final

from airflow_provider_gangjobs.exceptions.base import GangJobError, Problem, to_short_text
from airflow_provider_gangjobs.kube.text import pluralize

NODES_SHOWN_MAX = 8
PROBLEMS_SHOWN_MAX = 40

SUBMISSION: Final = "submission"
DELETION: Final = "deletion"
UPLOAD: Final = "upload"
"""What a `SubmissionFailed` names as the operation that failed."""


class InvalidGangSpec(GangJobError):
    """The request has one or more problems. The exception is raised before anything is created."""

    problems: tuple[Problem, ...]

    _is_permanent = True  # another try has the same parameters

    @property
    def what(self) -> str:
        return f"The request is invalid: {pluralize(len(self.problems), 'problem')}, nothing was created"

    def __str__(self) -> str:
        return "\n".join([f"{self.what}.", *(f"  * {problem}" for problem in self.shown_problems)])

    @property
    def shown_problems(self) -> tuple[Problem, ...]:
        """The first `PROBLEMS_SHOWN_MAX` problems with texts of a limited length, and how many more there are."""
        more = len(self.problems) - PROBLEMS_SHOWN_MAX
        shown = (map(to_short_text, (one.path, one.what, one.remedy)) for one in self.problems[:PROBLEMS_SHOWN_MAX])
        last = Problem("", f"and {more:,} more problems") if more > 0 else None
        return (*(Problem(*texts) for texts in shown), *filter(None, [last]))


class GangUnsupported(GangJobError):
    """The task requires a gang, and the cluster cannot run one. The submission left nothing in the cluster."""

    reason: str
    advice: str = 'Set gang="preferred" to run without the guarantee.'

    _evidence_field = "reason"
    _is_permanent = True  # the cluster has to change first, or the parameters

    @property
    def what(self) -> str:
        return "The pods cannot be placed as one gang"


class SubmissionConflict(GangJobError):
    """The Job exists and belongs to another submission, or was created from other parameters."""

    ref: str
    """`<namespace>/<name>` of the existing Job."""
    uid: str = ""
    ours_hash: str = ""
    theirs_hash: str | None = None
    fields: tuple[str, ...] = ()
    """The parameters that differ, if both submissions recorded hashes of single parameters."""
    submission_id: str = ""
    theirs_submission_id: str | None = None

    _usual_remedy = (
        "Wait until the Job ends, or delete the Job (delete_submission, or kubectl with --cascade=background), "
        "or submit the gang under another id"
    )
    _is_permanent = True  # another try has the same parameters, and finds the same Job

    @property
    def what(self) -> str:
        if self.theirs_submission_id != self.submission_id:
            return f"Job {self.ref} exists and belongs to another submission"
        return f"Job {self.ref} exists and was submitted with other parameters"

    @property
    def evidence(self) -> str:
        differ = f"; different parameters: {', '.join(self.fields)}" if self.fields else ""
        return (
            f"The submission id of the Job (uid {self.uid}) is {self.theirs_submission_id or 'missing'} "
            f"(here {self.submission_id}); "
            f"the hash of its parameters is {self.theirs_hash or 'missing'} (here {self.ours_hash}){differ}"
        )


_MISSING_NAMESPACE = re.compile(r'namespaces "[^"]*" not found')
_MISSING_PRIORITY_CLASS = re.compile(r"no PriorityClass with name \S+ was found")


class SubmissionFailed(GangJobError):
    """A step of a submission, of a deletion or of an upload failed. Each of them may be repeated.

    The next try of a submission completes or replaces the incomplete submission.
    """

    ref: str
    step: str
    """The step that failed, such as `create PodGroup`."""
    cause: str
    """Code, reason and message of the API server, or the kind of the transport error."""
    transient: bool = True
    advice: str = ""
    operation: str = SUBMISSION
    """What failed: `SUBMISSION`, `DELETION` or `UPLOAD`."""

    _evidence_field = "cause"

    @property
    def retryable(self) -> bool:
        return self.transient

    @property
    def what(self) -> str:
        return f"The {self.operation} of {self.ref} failed at: {self.step}"

    @property
    def remedy(self) -> str:
        if self.advice:
            return self.advice
        if self.transient:
            if self.operation != SUBMISSION:
                return f"Repeat the {self.operation}: repeating it is safe"
            return "Run the task again: the next try completes the submission"
        if _MISSING_NAMESPACE.search(self.cause):
            return "Create the namespace, or correct the parameter namespace or the namespace of the connection"
        if _MISSING_PRIORITY_CLASS.search(self.cause):
            return "Create the PriorityClass, or correct priority_class"
        return "Correct the request"


class PreviousAttemptRunning(GangJobError):
    """Pods of an earlier attempt still run, so another attempt was not submitted. Two attempts never run at once."""

    ref: str
    """`<namespace>/<name>` of the earlier attempt's Job."""
    uid: str = ""
    attempt: int | None = None
    pods: int = 0
    """How many of its pods have not ended."""
    nodes: tuple[str, ...] = ()
    """The nodes of these pods."""

    _usual_remedy = (
        "The pods have until the end of their termination grace period. If a node is lost, delete the node or its "
        "pods (kubectl delete pod --force)"
    )

    @property
    def what(self) -> str:
        which = "the previous attempt" if self.attempt is None else f"attempt {self.attempt}"
        have = "has" if self.pods == 1 else "have"
        return f"The next attempt waits: {pluralize(self.pods, 'pod')} of gang {self.ref} ({which}) {have} not ended"

    @property
    def evidence(self) -> str:
        if not self.nodes:
            return ""
        shown = ", ".join(self.nodes[:NODES_SHOWN_MAX])
        more = len(self.nodes) - NODES_SHOWN_MAX
        return f"On node{'s'[: len(self.nodes) != 1]} {shown}{f' and {more} more' if more > 0 else ''}"
