"""Exceptions of the end of a gang: a failure, a deadline, a deletion."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions.base import GangJobError, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping


# These names appear in logs and retry policies, where the suffix "Error" would add nothing.
# ruff: noqa: N818


LAST_LINES_OF: Final = "Last lines of "
"""The beginning of the heading of the last lines of a rank's log."""


class GangEndError(GangJobError):
    """The base class of the errors of gangs that have ended without success."""

    partial_results: Mapping[int, Any] = field(default_factory=dict, kw_only=True)
    """The results of the ranks that succeeded before the gang ended, by rank, as far as they are recorded. A callback
    of the task reads them: `context["exception"].partial_results`."""
    category: str = field(default="", kw_only=True)
    """The stable name of the cause, a `Category`."""
    links: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Addresses of the gang, and of the rank that failed first, in other systems, by the name of the link."""

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"{name}: {url}" for name, url in self.links.items())])


class GangFailed(GangEndError):
    """The Job failed."""

    ref: str
    reason: str
    """The reason of the Job's Failed condition, or the code of the cause."""
    ranks: tuple[int, ...] = ()
    """The ranks that failed, in the order in which they failed."""
    message: str = ""

    _evidence_field = "message"

    @property
    def what(self) -> str:
        return f"Gang {self.ref} failed ({self.reason}){format_ranks(self.ranks)}"


class AppFailed(GangFailed):
    """A rank's program exited with an error or exceeded a limit of its pod, and the gang failed."""

    rank: int | None = None
    exit_code: int | None = None
    """The exit code; `None` if the kubelet evicted the pod and did not observe the exit code."""
    container: str = ""
    log_tail: str = ""
    """A heading and the last lines of the rank's log or its termination message; empty if neither could be read."""

    @property
    def what(self) -> str:
        if self.message:  # the evidence, which names the rank and the exit code
            return f"Gang {self.ref} failed ({self.reason})"
        rank = "A rank" if self.rank is None else f"Rank {self.rank}"
        return f"{rank} of gang {self.ref} exited with code {self.exit_code} ({self.reason})"

    @property
    def evidence(self) -> str:
        return self.message[:1].upper() + self.message[1:]

    @property
    def log_message(self) -> str:
        """The message without the last lines of the rank's log, which the log of the task has above."""
        is_in_log = self.log_tail.startswith(LAST_LINES_OF)
        return "\n".join(filter(None, ("" if is_in_log else self.log_tail, super().__str__())))

    def __str__(self) -> str:
        # The log tail is not part of the evidence, since the length limit of the evidence would cut the end of the log.
        return "\n".join(filter(None, (super().__str__(), self.log_tail)))


class OutOfMemory(AppFailed):
    """A rank used more memory than its limit. Another try with the same limit fails in the same way."""


class StartFailed(AppFailed):
    """The command of a rank could not be run: it is missing in the image, or cannot be executed."""


class ImagePullFailed(GangFailed):
    """A rank's image could not be pulled."""

    image: str = ""

    _usual_remedy = "Check the image's name and tag and image_pull_secrets"

    @property
    def what(self) -> str:
        return f"Gang {self.ref} could not pull {f'image {self.image}' if self.image else 'an image'} ({self.reason})"


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
        return (
            f"Gang {self.ref} lost a rank to the cluster{where} ({self.reason}){format_ranks(self.ranks)}{self._before}"
        )

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


class Preempted(Disrupted):
    """A pod of higher priority took the place of a rank."""


class DeadlineExceeded(GangEndError):
    """A deadline of the gang, or the `execution_timeout` of the task, passed."""

    ref: str
    phase: str
    """`queued`, `assembling` or `running`. With `limited_by`, any phase of the gang, `under way` if the phase is not
    known, `not submitted, or had ended,` if there is no live gang, or `still ending` if the task waited for the pods of
    the previous attempt."""
    seconds: float | None
    """How long the phase was allowed to take; `None` if the limit is no longer known."""
    waiting_for: str = ""
    advice: str = ""
    """What to do; if empty, the message has the usual advice for the phase."""
    limited_by: str = ""
    """The parameter of the task that set the limit: `execution_timeout`, or `assemble_timeout` if the task waited for
    the pods of the previous attempt. Empty for a deadline of the phase."""

    _evidence_field = "waiting_for"

    @property
    def what(self) -> str:
        limit = f"{self.seconds:g} s" if self.seconds is not None else "its deadline allows"
        if self.limited_by:
            took = f" of {limit}" if self.seconds is not None else ""
            return f"Gang {self.ref} was {self.phase} when the {self.limited_by}{took} of its task passed"
        return f"Gang {self.ref} was {self.phase} for longer than {limit}"

    @property
    def remedy(self) -> str:
        return self.advice or _DEADLINE_REMEDY.get(self.phase, "")


_DEADLINE_REMEDY = {
    "queued": "Raise queue_timeout, or find out what blocks the queue",
    "assembling": "Ask for fewer workers or less of each resource, or raise assemble_timeout",
    "running": "Raise run_timeout",
}


class Unschedulable(DeadlineExceeded):
    """The scheduler never placed the pods; `waiting_for` has its reason."""


class QueueRefused(DeadlineExceeded):
    """The queue cannot admit the gang until somebody changes the gang or the queue; `category` says why."""


class JobDeleted(GangEndError):
    """The Job was deleted before its end was observed."""

    ref: str
    last_phase: str
    last_seen: str = ""
    advice: str = field(default="", kw_only=True)
    """What to do; if empty, the message has the usual advice."""

    _evidence_field = "last_seen"
    _usual_remedy = "Find out who deleted the Job: a user, a TTL, or a clean-up of the namespace"

    @property
    def what(self) -> str:
        return f"Job {self.ref} was deleted while the gang was {self.last_phase}"


class GangDeleted(JobDeleted):
    """Somebody deleted the gang on purpose, such as a `GangJobDeleteOperator`. The message says who."""

    _usual_remedy = "Clear the task to run the gang again"
    _is_permanent = True  # another try would run a gang again that is not wanted any more

    @property
    def what(self) -> str:
        return f"Gang {self.ref} was deleted on purpose while it was {self.last_phase}"


class JobReplaced(JobDeleted):
    """Another Job of the same name, with another uid, replaced the Job."""

    uid: str = ""
    other_uid: str = ""

    _usual_remedy = "Find out who creates Jobs of this name"

    @property
    def what(self) -> str:
        other = f" (uid {self.other_uid})" if self.other_uid else ""
        return f"Job {self.ref} (uid {self.uid}) was replaced by another Job{other}"
