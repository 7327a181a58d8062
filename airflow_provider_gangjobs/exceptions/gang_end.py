"""Exceptions of the end of a gang, and of reading it: its state, outcomes, or results are unknown or cannot be used."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions.base import LAST_LINES_OF, GangJobError, format_ranks, to_short_sentence
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping

# These names appear in logs and retry policies, where the suffix "Error" would add nothing.
# ruff: noqa: N818


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
    """What to do."""
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


class TrackingFailed(GangJobError):
    """The state of the gang could not be read. The gang may run, or may have ended."""

    ref: str
    reason: str
    last_phase: str = ""
    message: str = ""

    category = "Unknown"
    _evidence_field = "message"
    _usual_remedy = "The gang was not changed. Run the task again: the next try finds a gang that runs or has succeeded"

    @property
    def what(self) -> str:
        last_phase = f"; the last known phase is {self.last_phase}" if self.last_phase else ""
        return f"The state of gang {self.ref} could not be read ({self.reason}){last_phase}"


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
        missing = f"{pluralize(self.count, 'outcome')} of completed ranks cannot be read"
        return f"Gang {self.ref} succeeded, but its results are unknown: {missing}{format_ranks(self.ranks)}"

    @property
    def evidence(self) -> str:
        if self.job_is_gone:
            why = "The Job was deleted after its end, and the recorded outcomes with it"
        elif self.held:
            why = "The outcomes are not recorded"
        else:
            why = "The outcomes are not recorded, and the pods no longer exist"
        held = ""
        if self.held:
            are = "is" if self.held == 1 else "are"
            held = f"{pluralize(self.held, 'pod')} {are} still held by the finalizer gangjobs.airflow/harvest"
        return " ".join(filter(None, (to_short_sentence(why), to_short_sentence(self.problem), held)))

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


class ResultTooLarge(GangJobError):
    """A rank wrote a result above the limit to GANG_RESULT_PATH."""

    ref: str
    rank: int
    size: int = 0
    """The size in bytes. The kubelet keeps no more than `limit`, so this is a lower bound."""
    limit: int = 4096
    """The size from which on a result may have been truncated. The largest result is one byte smaller. The limit is
    lower in a pod of more than three containers, which share 12 KiB."""

    _usual_remedy = "Set result_storage, or write large results to storage and return their address"
    _is_permanent = True  # the program would write a result of the same size

    @property
    def what(self) -> str:
        size = f"{self.size} bytes or more; the limit is {self.limit - 1} bytes"
        return f"Rank {self.rank} of gang {self.ref} wrote a result of {size}"

    @property
    def evidence(self) -> str:
        if self.limit == type(self).limit:
            return ""
        return "The containers of its pod share 12 KiB, and result_storage stores only results of more than 4095 bytes"


class ResultRefused(GangJobError):
    """A rank wrote a result that Airflow cannot store, such as NaN, an integer of 65 bits, or the character U+0000."""

    ref: str
    rank: int
    problem: str
    """What Airflow cannot store, with its place in the result."""

    _evidence_field = "problem"
    _usual_remedy = 'Let the rank write another value there, such as null or text, or set results="none"'
    _is_permanent = True  # the program would write the same result

    @property
    def what(self) -> str:
        return f"Rank {self.rank} of gang {self.ref} wrote a result that Airflow cannot store"


class ResultAddressRefused(GangJobError):
    """A rank returned an address that is not in the folder of its task. Nothing was opened."""

    address: str
    folder: str = ""
    """Where the address may be; empty if no task that runs gangs has checked the address."""
    is_link: bool = False
    """The address is in the folder, and a symbolic link leads somewhere else."""

    _usual_remedy = (
        "If the value is from a sensor or a hook, name the result_storage of the"
        " task that ran the gang: read_result(value, storage=URL). Otherwise find out why the rank returned it"
    )
    _is_permanent = True  # the address stays the same

    @property
    def what(self) -> str:
        return f"The result at {self.address} is not read"

    @property
    def evidence(self) -> str:
        if self.is_link:
            return f"A symbolic link below {self.folder} leads to another file"
        if self.folder:
            return f"The address is not below {self.folder}"
        return "No task has found the address in its own folder, and a rank may write any address"


class ResultsTooLarge(GangJobError):
    """The results of all ranks together exceed `results_limit`. The Job is kept, and so are the results."""

    ref: str
    ranks: int
    """How many ranks have a result."""
    size: int
    """The size of all results in bytes."""
    limit: int

    _usual_remedy = (
        "Raise results_limit and clear the task, which returns the results without another run of the gang. "
        'Or let the ranks write less, or set results="rank0" or "none"'
    )
    _is_permanent = True  # another try would read the same results

    @property
    def what(self) -> str:
        return f"The results of {self.ranks} ranks of gang {self.ref} have {self.size} bytes; the limit is {self.limit}"

    @property
    def evidence(self) -> str:
        return "Airflow would store them as one value of its database. The gang has succeeded, and its Job is kept"


class LedgerUnavailable(GangJobError):
    """The ledger of the ranks' outcomes could not be read or written."""

    ref: str
    cause: str

    _evidence_field = "cause"
    _usual_remedy = "The task's service account needs get, list, create and patch on configmaps in the namespace"

    @property
    def what(self) -> str:
        return f"The outcomes of gang {self.ref} could not be read or written"
