"""The base class of all exceptions, and those of a submission: the request was refused, or a step failed."""

# These names appear in logs and retry policies, where the suffix "Error" would add nothing.
# ruff: noqa: N818

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, dataclass_transform

from msgspec import Struct

from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_printable, to_sentence

_PACKAGE: Final = __name__.rpartition(".")[0]
RANKS_SHOWN_MAX = 8
EVIDENCE_CHARACTERS_MAX = 1000
LAST_LINES_OF: Final = "Last lines of "
"""The beginning of the heading of the last lines of a rank's log."""


class Problem(Struct, frozen=True):
    """One problem of a request: the path of a parameter or field, what is wrong, and the remedy."""

    __module__ = _PACKAGE

    path: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{to_short_sentence(self.what)} {to_short_sentence(self.remedy)}".rstrip()


def to_short_sentence(text: str) -> str:
    """Return the text with a full stop at the end, printable, and cut at `EVIDENCE_CHARACTERS_MAX`."""
    return to_sentence(to_short_text(text))


def to_short_text(text: str) -> str:
    """Return the text, printable, and cut at `EVIDENCE_CHARACTERS_MAX`."""
    return cut_end(to_printable(text.strip()), EVIDENCE_CHARACTERS_MAX)


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Return " at rank 3, 1": at most `RANKS_SHOWN_MAX` ranks, and how many more there are. Empty for no ranks."""
    if not ranks:
        return ""
    more = f" and {len(ranks) - RANKS_SHOWN_MAX} more" if len(ranks) > RANKS_SHOWN_MAX else ""
    return f" at rank {', '.join(map(str, ranks[:RANKS_SHOWN_MAX]))}{more}"


@dataclass_transform(eq_default=False, field_specifiers=(field,))
@dataclass(eq=False, repr=False)
class GangJobError(Exception):
    """The base class of this provider's exceptions. Subclasses have fields and build the message from the fields.

    Each subclass is a dataclass without a decorator.
    """

    __module__ = _PACKAGE

    # The module of a class is part of serialized retry policies, of tracebacks and of pickles. Users import the classes
    # from the package, so the package is the module of each class of this provider.
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith(f"{_PACKAGE}."):
            cls.__module__ = _PACKAGE
        dataclass(eq=False, repr=False)(cls)

    # Without annotations, so that these are no fields of the dataclasses.
    _is_permanent = False
    """Another try with the same parameters fails in the same way."""
    _evidence_field = ""
    """The field with the evidence."""
    _usual_remedy = ""
    category = ""
    """The `Category` of why the gang ended or waited too long; empty if no gang has ended."""

    @property
    def retryable(self) -> bool:
        """Whether another try with the same parameters may succeed."""
        return not self._is_permanent

    @property
    def what(self) -> str:
        """What happened."""
        return type(self).__name__

    @property
    def evidence(self) -> str:
        """What was observed, in the words of the cluster."""
        return getattr(self, self._evidence_field) if self._evidence_field else ""

    @property
    def remedy(self) -> str:
        """What the user can do: the field `advice`, if the error has one with a text, or the usual remedy."""
        return getattr(self, "advice", "") or self._usual_remedy

    @property
    def log_message(self) -> str:
        """The message as the last line of the task's log. What the log has already is left out."""
        return str(self)

    def __str__(self) -> str:
        return " ".join(filter(None, map(to_short_sentence, (self.what, self.evidence, self.remedy))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    # Airflow's supervisor and process pools pickle exceptions. The default would call the class without its fields.
    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **{name: getattr(self, name) for name in self.__dataclass_fields__}), ()


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
