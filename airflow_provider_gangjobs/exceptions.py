"""What can go wrong with a gang, as one tree that retry policies match by class and field.

    GangJobError
    ├── InvalidGangSpec          the request itself is wrong; nothing was created
    ├── GangUnsupported          this cluster, or this shape, cannot be a gang
    ├── SubmissionConflict       a Job of that identity exists and was made from other parameters
    ├── SubmissionFailed         the server refused a step of the submission, or could not be asked
    ├── GangFailed               the Job ended as failed
    │   ├── AppFailed            a rank's own program ended with an error
    │   ├── ImagePullFailed      a rank's image could not be pulled
    │   └── Disrupted            a rank was evicted, or its node was drained or lost
    │       └── Preempted        something of higher priority took the place
    ├── DeadlineExceeded         one of the three deadlines passed
    │   └── Unschedulable        the pods were never placed, and the scheduler said why
    ├── JobDeleted               the Job vanished before it ended
    │   └── JobReplaced          another Job of the same name stands in its place
    ├── TrackingFailed           nothing is known of how the gang stands
    ├── OutcomesMissing          the gang succeeded, and what its ranks returned is not known
    ├── ResultTooLarge           a rank wrote more than the result may hold
    └── LedgerUnavailable        the outcomes could not be read or written

Each message says what happened, the evidence, and what to do, and is built from the fields.
`retryable` is false where another try with the same parameters must fail in the same way.
"""

# These names are read in logs and retry policies, where the suffix "Error" says nothing more.
# ruff: noqa: N818

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_gangjobs.kube.text import cut_end

RANKS_SHOWN_MAX = 8
EVIDENCE_CHARACTERS_MAX = 1000


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a request: where (`spec.template...` or a parameter), what, and the remedy."""

    path: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {_sentence(self.what)} {_sentence(self.remedy)}".rstrip()


def _sentence(text: str) -> str:
    text = cut_end(text.strip(), EVIDENCE_CHARACTERS_MAX)
    return text if not text or text[-1] in ".!?:" else f"{text}."


def _build(kind: type[GangJobError], fields: dict[str, Any]) -> GangJobError:
    return kind(**fields)


@dataclass(eq=False, repr=False)
class GangJobError(Exception):
    """Base of everything this provider raises. Subclasses carry fields; the message comes from them."""

    @property
    def retryable(self) -> bool:
        """Whether another try may end differently."""
        return True

    @property
    def what(self) -> str:
        """What happened."""
        return type(self).__name__

    @property
    def evidence(self) -> str:
        """What was seen, as the cluster put it."""
        return ""

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return ""

    def __str__(self) -> str:
        return " ".join(filter(None, map(_sentence, (self.what, self.evidence, self.remedy))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    # Airflow's supervisor and process pools pickle exceptions; the default would call the class without its fields.
    def __reduce__(self) -> tuple[Any, ...]:
        return _build, (type(self), {name: getattr(self, name) for name in self.__dataclass_fields__})


@dataclass(eq=False, repr=False)
class InvalidGangSpec(GangJobError):
    """The request is wrong in one or more places. Raised before anything is created."""

    problems: tuple[Problem, ...]

    @property
    def retryable(self) -> bool:
        return False

    @property
    def what(self) -> str:
        count = len(self.problems)
        return f"The gang cannot be submitted: {count} problem{'s'[: count != 1]}, nothing was created"

    def __str__(self) -> str:
        return "\n".join([f"{self.what}.", *(f"  * {problem}" for problem in self.problems)])


@dataclass(eq=False, repr=False)
class GangUnsupported(GangJobError):
    """A gang is required and cannot be had. Nothing of it is left in the cluster."""

    reason: str
    advice: str = 'Set gang="preferred" to run without the guarantee.'

    @property
    def retryable(self) -> bool:
        return False

    @property
    def what(self) -> str:
        return "The pods cannot be placed as one gang"

    @property
    def evidence(self) -> str:
        return self.reason

    @property
    def remedy(self) -> str:
        return self.advice


@dataclass(eq=False, repr=False)
class SubmissionConflict(GangJobError):
    """A Job of this identity exists and is not ours, or was made from other parameters."""

    ref: str
    """namespace/name of the Job that is there."""
    uid: str = ""
    ours_hash: str = ""
    theirs_hash: str | None = None
    fields: tuple[str, ...] = ()
    """Parameters that differ, when both sides tell."""
    trigger_id: str = ""
    theirs_trigger_id: str | None = None

    @property
    def retryable(self) -> bool:
        return False

    @property
    def what(self) -> str:
        if self.theirs_trigger_id != self.trigger_id:
            return f"Job {self.ref} exists and belongs to another submission"
        return f"Job {self.ref} exists and was submitted with other parameters"

    @property
    def evidence(self) -> str:
        differ = f", which differ in {', '.join(self.fields)}" if self.fields else ""
        return (
            f"Its submission id is {self.theirs_trigger_id or 'missing'} (here {self.trigger_id}), "
            f"its parameters hash to {self.theirs_hash or 'nothing'} (here {self.ours_hash}){differ}; uid {self.uid}"
        )

    @property
    def remedy(self) -> str:
        return (
            "Wait until it ends, or delete it (delete_submission, or kubectl with --cascade=background); "
            'a task may also set reattach="never" to have it replaced. '
            "A template that renders differently at each try, such as ti.try_number, always conflicts"
        )


@dataclass(eq=False, repr=False)
class SubmissionFailed(GangJobError):
    """One step of the submission did not succeed. The next try completes or replaces what was begun."""

    ref: str
    step: str
    """What was being done, e.g. `create PodGroup`."""
    cause: str
    """Code, reason and message of the server, or the kind of transport fault."""
    transient: bool = True
    advice: str = ""

    @property
    def retryable(self) -> bool:
        return self.transient

    @property
    def what(self) -> str:
        return f"Submission of {self.ref} stopped at: {self.step}"

    @property
    def evidence(self) -> str:
        return self.cause

    @property
    def remedy(self) -> str:
        if self.advice:
            return self.advice
        return "Try again: what was begun is completed" if self.transient else "Correct what the server names"


@dataclass(eq=False, repr=False)
class GangFailed(GangJobError):
    """The Job ended as failed."""

    ref: str
    reason: str
    """Reason of the Job's Failed condition, or of the diagnosis."""
    ranks: tuple[int, ...] = ()
    """Ranks that failed, the first one first."""
    message: str = ""

    @property
    def what(self) -> str:
        return f"Gang {self.ref} failed ({self.reason}){_ranks(self.ranks)}"

    @property
    def evidence(self) -> str:
        return self.message


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    more = f" and {len(ranks) - RANKS_SHOWN_MAX} more" if len(ranks) > RANKS_SHOWN_MAX else ""
    return f" at rank {', '.join(map(str, ranks[:RANKS_SHOWN_MAX]))}{more}"


@dataclass(eq=False, repr=False)
class AppFailed(GangFailed):
    """A rank's own program ended with an error, and the gang with it."""

    rank: int | None = None
    exit_code: int | None = None
    container: str = ""
    log_tail: str = ""
    """Last lines of the rank's log, or its termination message, with a heading; empty if neither could be read."""

    @property
    def what(self) -> str:
        who = "A rank" if self.rank is None else f"Rank {self.rank}"
        return f"{who} of gang {self.ref} exited with code {self.exit_code} ({self.reason})"

    def __str__(self) -> str:
        # The last lines are not part of the evidence: cut to its length, they would lose the exception at their end.
        return "\n".join(filter(None, (super().__str__(), self.log_tail)))


@dataclass(eq=False, repr=False)
class ImagePullFailed(GangFailed):
    """A rank's image could not be pulled."""

    image: str = ""

    @property
    def what(self) -> str:
        return f"Gang {self.ref} could not pull {f'image {self.image}' if self.image else 'an image'} ({self.reason})"

    @property
    def remedy(self) -> str:
        return "Check the image's name and tag and image_pull_secrets"


@dataclass(eq=False, repr=False)
class Disrupted(GangFailed):
    """A rank was taken away by the cluster, not by its own fault."""

    node: str = ""
    disruptions: int = 1
    """How many attempts in a row were lost so, with this one."""
    max_disruptions: int = 0
    """How many of them the task allowed."""

    @property
    def what(self) -> str:
        where = f" on {self.node}" if self.node else ""
        return f"Gang {self.ref} lost a rank to the cluster{where} ({self.reason}){_ranks(self.ranks)}{self._before}"

    @property
    def _before(self) -> str:
        before = self.disruptions - 1
        if before <= 0:
            return ""
        return f", as did the {before} attempts before it" if before > 1 else ", as did the attempt before it"

    @property
    def remedy(self) -> str:
        if self.max_disruptions:
            return f"Its max_disruptions ({self.max_disruptions}) are used up: raise them, or give the task retries"
        return "Give the task max_disruptions, or retries, if its program may be run again"


@dataclass(eq=False, repr=False)
class Preempted(Disrupted):
    """Something of higher priority took a rank's place."""


@dataclass(eq=False, repr=False)
class DeadlineExceeded(GangJobError):
    """One of the three deadlines passed."""

    ref: str
    phase: str
    """`queued`, `assembling` or `running`."""
    seconds: float | None
    """What the phase was allowed to take; `None` if that is not known any more."""
    waiting_for: str = ""
    advice: str = ""
    """What to do; the usual advice for the phase if empty."""
    limited_by: str = ""
    """The task's parameter that set the limit, if it limits more than the phase: `execution_timeout`."""

    @property
    def what(self) -> str:
        limit = f"{self.seconds:g} s" if self.seconds is not None else "it may be"
        if self.limited_by:
            took = f" of {limit}" if self.seconds is not None else ""
            return f"Gang {self.ref} was {self.phase} when the {self.limited_by}{took} of its task passed"
        return f"Gang {self.ref} was {self.phase} for longer than {limit}"

    @property
    def evidence(self) -> str:
        return self.waiting_for

    @property
    def remedy(self) -> str:
        return self.advice or _DEADLINE_REMEDY.get(self.phase, "")


_DEADLINE_REMEDY = {
    "queued": "Raise queue_timeout, or look at what holds the queue",
    "assembling": "Ask for fewer workers or less of each resource, or raise assemble_timeout",
    "running": "Raise run_timeout",
}


@dataclass(eq=False, repr=False)
class Unschedulable(DeadlineExceeded):
    """The pods were never placed, and the scheduler said why (`waiting_for`)."""


@dataclass(eq=False, repr=False)
class JobDeleted(GangJobError):
    """The Job vanished before its end was seen."""

    ref: str
    last_phase: str
    last_seen: str = ""
    advice: str = field(default="", kw_only=True)
    """What to do; the usual advice if empty."""

    @property
    def what(self) -> str:
        return f"Job {self.ref} was deleted while the gang was {self.last_phase}"

    @property
    def evidence(self) -> str:
        return self.last_seen

    @property
    def remedy(self) -> str:
        return self.advice or "Find out who deleted it: a user, a TTL, or a clean-up of the namespace"


@dataclass(eq=False, repr=False)
class JobReplaced(JobDeleted):
    """Another Job of the same name, with another uid, stands in its place."""

    uid: str = ""
    other_uid: str = ""

    @property
    def what(self) -> str:
        other = f" (uid {self.other_uid})" if self.other_uid else ""
        return f"Job {self.ref} (uid {self.uid}) was replaced by another one{other}"

    @property
    def remedy(self) -> str:
        return self.advice or "Find out who creates Jobs of this name"


@dataclass(eq=False, repr=False)
class TrackingFailed(GangJobError):
    """It could not be found out how the gang stands. It may run, or have ended."""

    ref: str
    reason: str
    last_phase: str = ""
    message: str = ""

    @property
    def what(self) -> str:
        seen = f", last seen {self.last_phase}" if self.last_phase else ""
        return f"Gang {self.ref} could not be followed ({self.reason}){seen}"

    @property
    def evidence(self) -> str:
        return self.message

    @property
    def remedy(self) -> str:
        return "The gang was left as it is. Try again: one that still runs, or has succeeded, is found again"


@dataclass(eq=False, repr=False)
class OutcomesMissing(GangJobError):
    """The gang succeeded, but the outcome of a rank that completed cannot be read, so its result is unknown."""

    ref: str
    ranks: tuple[int, ...] = ()
    """Completed ranks without an outcome; empty if the Job has no indexes or its completed ranks are unknown."""
    count: int = 0
    """How many outcomes are missing; 0 if that is unknown, too."""
    job_is_gone: bool = False
    held: int = 0
    """Pods that the finalizer `gangjobs.airflow/harvest` still holds."""
    problem: str = ""
    """What hindered recording outcomes, if that is known."""

    @property
    def retryable(self) -> bool:
        """Once the Job is gone another try runs the gang again; while the Job is there it finds the same gang."""
        return self.job_is_gone

    @property
    def what(self) -> str:
        if not self.count:
            return f"Gang {self.ref} succeeded, but its results are unknown: nothing tells which ranks completed"
        missing = f"{self.count} outcome{'s'[: self.count != 1]} of completed ranks"
        return f"Gang {self.ref} succeeded, but its results are unknown: {missing} cannot be read{_ranks(self.ranks)}"

    @property
    def evidence(self) -> str:
        why = (
            "The Job was deleted after its end, and the recorded outcomes with it"
            if self.job_is_gone
            else "The outcomes are not recorded, and the pods are gone"
        )
        held = f"{self.held} pods are still held by the finalizer gangjobs.airflow/harvest" if self.held else ""
        return " ".join(filter(None, (_sentence(why), _sentence(self.problem), held)))

    @property
    def remedy(self) -> str:
        accept = 'If the task needs no results, set results="none"'
        release = " Free the held pods with `gangjobs release`." if self.held else ""
        if self.job_is_gone:
            return (
                "Set a longer ttl_after_finished, or find out who deletes the Job; another try runs the gang again. "
                f"{accept}.{release}"
            )
        return (
            "Check the quota and the permissions for ConfigMaps in the namespace. The Job is kept: delete the Job and "
            f"clear the task to run the gang again. {accept}.{release}"
        )


@dataclass(eq=False, repr=False)
class ResultTooLarge(GangJobError):
    """A rank wrote more into GANG_RESULT_PATH than its result may hold."""

    ref: str
    rank: int
    size: int = 0
    """Bytes seen. The kubelet keeps 4096, so this is a lower bound."""
    limit: int = 4096

    @property
    def retryable(self) -> bool:
        return False

    @property
    def what(self) -> str:
        return f"Rank {self.rank} of gang {self.ref} wrote {self.size} bytes of result or more, {self.limit} are kept"

    @property
    def remedy(self) -> str:
        return "Write large results to storage and return their address"


@dataclass(eq=False, repr=False)
class LedgerUnavailable(GangJobError):
    """The ranks' outcomes could not be read or written."""

    ref: str
    cause: str

    @property
    def what(self) -> str:
        return f"The outcomes of gang {self.ref} are not available"

    @property
    def evidence(self) -> str:
        return self.cause

    @property
    def remedy(self) -> str:
        return "The task's service account needs get, list, create and patch on configmaps in the namespace"


__all__ = [
    "AppFailed",
    "DeadlineExceeded",
    "Disrupted",
    "GangFailed",
    "GangJobError",
    "GangUnsupported",
    "ImagePullFailed",
    "InvalidGangSpec",
    "JobDeleted",
    "JobReplaced",
    "LedgerUnavailable",
    "OutcomesMissing",
    "Preempted",
    "Problem",
    "ResultTooLarge",
    "SubmissionConflict",
    "SubmissionFailed",
    "TrackingFailed",
    "Unschedulable",
]
