"""The exceptions of this provider: one tree, which retry policies match by class and field.

    GangJobError
    ├── InvalidGangSpec          the request is invalid; nothing was created
    ├── GangUnsupported          the cluster cannot run the pods as a gang
    ├── SubmissionConflict       the Job exists and was created from other parameters
    ├── SubmissionFailed         the API server refused a step, or did not answer
    ├── GangFailed               the Job ended as failed
    │   ├── AppFailed            a rank's program exited with an error
    │   ├── ImagePullFailed      a rank's image could not be pulled
    │   └── Disrupted            a rank was evicted, or its node was drained or lost
    │       └── Preempted        a pod of higher priority took the place of a rank
    ├── DeadlineExceeded         one of the three deadlines passed
    │   └── Unschedulable        the scheduler never placed the pods, and reported why
    ├── JobDeleted               the Job was deleted before its end
    │   └── JobReplaced          another Job of the same name replaced the Job
    ├── TrackingFailed           the state of the gang is unknown
    ├── OutcomesMissing          the gang succeeded, but its results are unknown
    ├── ResultTooLarge           a rank wrote a result above the limit
    └── LedgerUnavailable        the outcomes could not be read or written

Each exception builds its message from its fields. The message says what happened, the evidence, and what to do.
`retryable` is false if another try with the same parameters must fail in the same way.
"""

# These names appear in logs and retry policies, where the suffix "Error" would add nothing.
# ruff: noqa: N818

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_gangjobs.kube.text import cut_end

RANKS_SHOWN_MAX = 8
EVIDENCE_CHARACTERS_MAX = 1000


@dataclass(frozen=True)
class Problem:
    """One problem of a request: the path of a parameter or field, what is wrong, and the remedy."""

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
    """The base class of this provider's exceptions. Subclasses have fields and build the message from the fields."""

    @property
    def retryable(self) -> bool:
        """Whether another try with the same parameters may succeed."""
        return True

    @property
    def what(self) -> str:
        """What happened."""
        return type(self).__name__

    @property
    def evidence(self) -> str:
        """What was observed, in the words of the cluster."""
        return ""

    @property
    def remedy(self) -> str:
        """What the user can do."""
        return ""

    def __str__(self) -> str:
        return " ".join(filter(None, map(_sentence, (self.what, self.evidence, self.remedy))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    # Airflow's supervisor and process pools pickle exceptions. The default would call the class without its fields.
    def __reduce__(self) -> tuple[Any, ...]:
        return _build, (type(self), {name: getattr(self, name) for name in self.__dataclass_fields__})


@dataclass(eq=False, repr=False)
class InvalidGangSpec(GangJobError):
    """The request has one or more problems. The exception is raised before anything is created."""

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
    """The task requires a gang, and the cluster cannot run one. The submission left nothing in the cluster."""

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
    """The Job exists and belongs to another submission, or was created from other parameters."""

    ref: str
    """`<namespace>/<name>` of the existing Job."""
    uid: str = ""
    ours_hash: str = ""
    theirs_hash: str | None = None
    fields: tuple[str, ...] = ()
    """The parameters that differ, if both submissions recorded hashes of single parameters."""
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
        differ = f"; different parameters: {', '.join(self.fields)}" if self.fields else ""
        return (
            f"The submission id of the Job (uid {self.uid}) is {self.theirs_trigger_id or 'missing'} "
            f"(here {self.trigger_id}); "
            f"the hash of its parameters is {self.theirs_hash or 'missing'} (here {self.ours_hash}){differ}"
        )

    @property
    def remedy(self) -> str:
        return (
            "Wait until the Job ends, or delete the Job (delete_submission, or kubectl with --cascade=background), "
            'or set reattach="never" to replace the Job. '
            "A template that renders differently at each try, such as ti.try_number, always conflicts"
        )


@dataclass(eq=False, repr=False)
class SubmissionFailed(GangJobError):
    """A step of the submission failed. The next try completes or replaces the incomplete submission."""

    ref: str
    step: str
    """The step that failed, such as `create PodGroup`."""
    cause: str
    """Code, reason and message of the API server, or the kind of the transport error."""
    transient: bool = True
    advice: str = ""

    @property
    def retryable(self) -> bool:
        return self.transient

    @property
    def what(self) -> str:
        return f"The submission of {self.ref} failed at: {self.step}"

    @property
    def evidence(self) -> str:
        return self.cause

    @property
    def remedy(self) -> str:
        if self.advice:
            return self.advice
        return "Run the task again: the next try completes the submission" if self.transient else "Correct the request"


@dataclass(eq=False, repr=False)
class GangFailed(GangJobError):
    """The Job failed."""

    ref: str
    reason: str
    """The reason of the Job's Failed condition, or of the diagnosis."""
    ranks: tuple[int, ...] = ()
    """The ranks that failed, in the order in which they failed."""
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
    """A rank's program exited with an error, and the gang failed."""

    rank: int | None = None
    exit_code: int | None = None
    container: str = ""
    log_tail: str = ""
    """A heading and the last lines of the rank's log or its termination message; empty if neither could be read."""

    @property
    def what(self) -> str:
        rank = "A rank" if self.rank is None else f"Rank {self.rank}"
        return f"{rank} of gang {self.ref} exited with code {self.exit_code} ({self.reason})"

    def __str__(self) -> str:
        # The log tail is not part of the evidence, since the length limit of the evidence would cut the end of the log.
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
    """The cluster ended a rank: the rank was evicted, or its node was drained or lost."""

    node: str = ""
    disruptions: int = 1
    """How many attempts in a row were disrupted, including this one."""
    max_disruptions: int = 0
    """How many disruptions the task allows."""

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
            return (
                f"The task's max_disruptions ({self.max_disruptions}) are used up: raise max_disruptions or set retries"
            )
        return "If the program may run again, set max_disruptions or retries"


@dataclass(eq=False, repr=False)
class Preempted(Disrupted):
    """A pod of higher priority took the place of a rank."""


@dataclass(eq=False, repr=False)
class DeadlineExceeded(GangJobError):
    """A deadline of the gang, or the `execution_timeout` of the task, passed."""

    ref: str
    phase: str
    """`queued`, `assembling` or `running`."""
    seconds: float | None
    """How long the phase was allowed to take; `None` if the limit is no longer known."""
    waiting_for: str = ""
    advice: str = ""
    """What to do; if empty, the message has the usual advice for the phase."""
    limited_by: str = ""
    """`execution_timeout` if that parameter of the task set the limit; empty for a deadline of the phase."""

    @property
    def what(self) -> str:
        limit = f"{self.seconds:g} s" if self.seconds is not None else "its deadline allows"
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
    "queued": "Raise queue_timeout, or find out what blocks the queue",
    "assembling": "Ask for fewer workers or less of each resource, or raise assemble_timeout",
    "running": "Raise run_timeout",
}


@dataclass(eq=False, repr=False)
class Unschedulable(DeadlineExceeded):
    """The scheduler never placed the pods; `waiting_for` has its reason."""


@dataclass(eq=False, repr=False)
class JobDeleted(GangJobError):
    """The Job was deleted before its end was observed."""

    ref: str
    last_phase: str
    last_seen: str = ""
    advice: str = field(default="", kw_only=True)
    """What to do; if empty, the message has the usual advice."""

    @property
    def what(self) -> str:
        return f"Job {self.ref} was deleted while the gang was {self.last_phase}"

    @property
    def evidence(self) -> str:
        return self.last_seen

    @property
    def remedy(self) -> str:
        return self.advice or "Find out who deleted the Job: a user, a TTL, or a clean-up of the namespace"


@dataclass(eq=False, repr=False)
class JobReplaced(JobDeleted):
    """Another Job of the same name, with another uid, replaced the Job."""

    uid: str = ""
    other_uid: str = ""

    @property
    def what(self) -> str:
        other = f" (uid {self.other_uid})" if self.other_uid else ""
        return f"Job {self.ref} (uid {self.uid}) was replaced by another Job{other}"

    @property
    def remedy(self) -> str:
        return self.advice or "Find out who creates Jobs of this name"


@dataclass(eq=False, repr=False)
class TrackingFailed(GangJobError):
    """The state of the gang could not be read. The gang may run, or may have ended."""

    ref: str
    reason: str
    last_phase: str = ""
    message: str = ""

    @property
    def what(self) -> str:
        last_phase = f"; the last known phase is {self.last_phase}" if self.last_phase else ""
        return f"The state of gang {self.ref} could not be read ({self.reason}){last_phase}"

    @property
    def evidence(self) -> str:
        return self.message

    @property
    def remedy(self) -> str:
        return "The gang was not changed. Run the task again: the next try finds a gang that runs or has succeeded"


@dataclass(eq=False, repr=False)
class OutcomesMissing(GangJobError):
    """The gang succeeded, but the outcome of a rank that completed cannot be read, so its result is unknown."""

    ref: str
    ranks: tuple[int, ...] = ()
    """Completed ranks without an outcome; empty if the Job is not Indexed or its completed ranks are unknown."""
    count: int = 0
    """How many outcomes are missing; 0 if the number is unknown."""
    job_is_gone: bool = False
    held: int = 0
    """How many pods the finalizer `gangjobs.airflow/harvest` still holds."""
    problem: str = ""
    """Why outcomes could not be recorded; empty if the reason is unknown."""

    @property
    def retryable(self) -> bool:
        """Whether another try runs the gang again. While the Job exists, another try finds the same gang."""
        return self.job_is_gone

    @property
    def what(self) -> str:
        if not self.count:
            return f"Gang {self.ref} succeeded, but its results are unknown: the completed ranks are unknown"
        missing = f"{self.count} outcome{'s'[: self.count != 1]} of completed ranks"
        return f"Gang {self.ref} succeeded, but its results are unknown: {missing} cannot be read{_ranks(self.ranks)}"

    @property
    def evidence(self) -> str:
        why = (
            "The Job was deleted after its end, and the recorded outcomes with it"
            if self.job_is_gone
            else "The outcomes are not recorded, and the pods no longer exist"
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
    """A rank wrote a result above the limit to GANG_RESULT_PATH."""

    ref: str
    rank: int
    size: int = 0
    """The size in bytes. The kubelet keeps 4096 bytes, so this is a lower bound."""
    limit: int = 4096

    @property
    def retryable(self) -> bool:
        return False

    @property
    def what(self) -> str:
        size = f"{self.size} bytes or more; the limit is {self.limit} bytes"
        return f"Rank {self.rank} of gang {self.ref} wrote a result of {size}"

    @property
    def remedy(self) -> str:
        return "Write large results to storage and return their address"


@dataclass(eq=False, repr=False)
class LedgerUnavailable(GangJobError):
    """The ledger of the ranks' outcomes could not be read or written."""

    ref: str
    cause: str

    @property
    def what(self) -> str:
        return f"The outcomes of gang {self.ref} could not be read or written"

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
