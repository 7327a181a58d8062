"""Event: the state of a gang that the trigger sends to the resumed task, in a few kB of JSON, and what it decides.

Airflow stores the event in its database and sends it to the worker, which may run another version of this provider. The
event therefore has a version, fields are only added, and lists are bounded.

If the cluster, and not the program, ended the gang, the task submits the gang again. One lost rank ends its gang
(kubernetes#142330). The root cause of a disruption is a rank that was preempted, evicted, or lost with its node. A
deletion by a person and a deadline are intended, so they do not count. The Job of the next attempt stores the number of
consecutive disruptions from its creation on, so each is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations at run time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind, failures_first
from airflow_provider_gangjobs.gang.outcome.restarts import (
    Progress,
    Restart,
    SupervisorReport,
    TimeUse,
    add_uses,
    describe_restarts,
    time_use_of,
)
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.pods import name_rank
from airflow_provider_gangjobs.kube.text import cut_end, keep_end, skip_partial_word, to_printable_value

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.pods import Counts
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


VERSION: Final = 1
RANKS_MAX: Final = 20
RANK_MESSAGE_CHARACTERS_MAX: Final = 128
MESSAGE_CHARACTERS_MAX: Final = 1000
NOTES_MAX: Final = 4
COMPLETED_INDEXES_CHARACTERS_MAX: Final = 1024
"""An event omits a longer list and sets `completed_indexes_cut`. The Job has the list."""


class UnreadableEventError(ValueError):
    """A payload that this version of the provider cannot read."""


class RankEnd(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Short form of the outcome of one pod. The ledger has the whole outcome."""

    pod: str
    outcome: OutcomeKind
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    message: str = ""
    container: str = ""
    node: str = ""
    seconds: float | None = None
    disruption: str = ""
    role: str = ""
    role_rank: int | None = None

    @property
    def name(self) -> str:
        return name_rank(self.rank, self.role, self.role_rank, pod=self.pod)


class GangEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Event that a trigger sends to the resumed task. `to_payload` and `from_payload` convert it to and from JSON
    values."""

    v: int
    status: Status
    name: str
    namespace: str
    uid: str
    phase: Phase
    """The last phase that the trigger observed. In a timeout event, the phase that took too long."""
    attempt: int | None = None
    category: str = ""
    """A `Category`, perhaps of a later version."""
    reason: str = ""
    """Reason of the Job controller, or code of the cause."""
    message: str = ""
    remedy: str = ""
    since: datetime | None = None
    """Time at which the phase began."""
    seconds: float | None = None
    """In a timeout event, the limit of the phase in seconds."""
    counts: dict[str, int] = {}
    ranks: tuple[RankEnd, ...] = ()
    """At most `RANKS_MAX` outcomes. Ranks that did not succeed come first, in the order in which they ended."""
    times: dict[str, datetime] = {}
    """When the gang was `submitted`, `admitted` (its queue or its submission let it run), `running` (all ranks had
    started), and `ended`, as far as this is known. After a stop by the queue, the last times count."""
    queue: str = ""
    placement: str = ""
    """How the pods were placed, in the format of `gang.render.placement.PlacementDecision`."""
    requests: dict[str, str] = {}
    """What all ranks requested together: resource -> quantity."""
    completed_indexes: str = ""
    completed_indexes_cut: bool = False
    """The list was too long for the event."""
    disruptions: int = 0
    """Number of consecutive attempts before this one that ended by a disruption."""
    tracking_errors: int = 0
    """How many deferrals in a row before this one ended because the gang could not be followed."""
    notes: tuple[str, ...] = ()
    """Further information for the user, for example that outcomes could not be recorded."""
    image: str = ""
    """In a timeout event of a gang that waited for an image: the image."""
    other_uid: str = ""
    """UID of the Job that has the name now, if the gang's Job was replaced."""
    streamed: dict[str, str] = {}
    """How far logs were streamed into the log of the task: `<pod>/<container>` -> the text of a `LogPosition`, which is
    empty if no line was streamed."""
    whole_logs: tuple[str, ...] = ()
    """The logs among them that were streamed to their end."""
    restarts: tuple[Restart, ...] = ()
    """The last restarts of the programs in their pods."""
    restarts_total: int | None = None
    """How many restarts there were; `None` if it is not known, or if the gang has no supervisors."""
    restarts_max: int | None = None
    """How many there may be; `None` if the gang has no supervisors."""
    progress: Progress | None = None
    """The last progress that is known."""
    time_use: TimeUse | None = None
    """What the time was used for, over all attempts of this try."""
    claim: str = ""
    """The task instance that was responsible for the gang when it had succeeded."""
    job_version: str = ""
    """The resourceVersion of the Job at that moment; empty if the gang has roles."""

    @property
    def ref(self) -> GangRef:
        return GangRef(self.namespace, self.name, self.uid)

    def version_with(self, claim: str) -> str:
        """Return the resourceVersion in which the Job had ended with this claim; empty if that is unknown."""
        return self.job_version if self.claim == claim else ""

    def within_limits(self) -> GangEvent:
        """Return the event with its texts printable (`to_printable`), and cut to their limits. They are masked before:
        the rest of a secret is not recognized."""
        event = msgspec.convert(to_printable_value(msgspec.to_builtins(self)), type(self))
        ranks = (replace(rank, message=keep_end(rank.message, RANK_MESSAGE_CHARACTERS_MAX)) for rank in event.ranks)
        return replace(
            event,
            message=cut_end(event.message, MESSAGE_CHARACTERS_MAX),
            remedy=cut_end(event.remedy, MESSAGE_CHARACTERS_MAX),
            image=cut_end(event.image, MESSAGE_CHARACTERS_MAX),
            notes=tuple(cut_end(note, MESSAGE_CHARACTERS_MAX) for note in event.notes[:NOTES_MAX]),
            ranks=tuple(ranks),
        )

    def to_payload(self) -> dict[str, Any]:
        """Return the event within its limits, as plain JSON values. Fields with default values are omitted, but for
        `v`."""
        payload: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.within_limits()))
        return payload

    @classmethod
    def from_payload(cls, payload: object) -> GangEvent:
        """Read a payload that `to_payload` wrote.

        Raises:
            UnreadableEventError: The payload has another version or an unknown status, or is no event of this provider.
        """
        if not isinstance(payload, Mapping):
            raise UnreadableEventError(f"The event is {type(payload).__name__}, not a mapping. {_REMEDY}")
        if payload.get("v") != VERSION:
            raise UnreadableEventError(f"The event has version {payload.get('v')!r}, known is {VERSION}. {_REMEDY}")
        if payload.get("status") not in list(Status):
            raise UnreadableEventError(f"The event has the unknown status {payload.get('status')!r}. {_REMEDY}")
        try:
            return msgspec.convert(payload, cls)
        except msgspec.ValidationError as exc:
            raise UnreadableEventError(f"The event cannot be read: {exc}. {_REMEDY}") from exc


_REMEDY = "Run the same version of the provider in triggerer and workers, then clear the task: the gang is found again."


def with_history(
    event: GangEvent, report: SupervisorReport | None, restarts_max: int | None, earlier: TimeUse | None
) -> GangEvent:
    """Return the event of an end with the restarts of the programs, and with what the time was used for.

    :param report: What the supervisors have reported; `None` if the gang has none.
    :param restarts_max: How many restarts there may be; `None` if the gang has no supervisors.
    :param earlier: What the time of the attempts before this one was used for.
    """
    if event.status is Status.RUNNING:
        return event
    report = report or SupervisorReport()
    succeeded = event.status is Status.SUCCEEDED
    use = time_use_of(event.times, succeeded=succeeded, restarts_max=restarts_max, report=report)
    notes = event.notes
    if event.status is Status.FAILED and (note := describe_restarts(report, restarts_max or 0)):
        notes = (*notes, note)
    return replace(
        event,
        notes=notes,
        restarts=report.restarts,
        restarts_total=report.total,
        restarts_max=restarts_max,
        progress=report.progress,
        time_use=earlier if event.status is Status.ERROR else add_uses(earlier, use),
    )


PHASES_OF_TIMES: Final = {"submitted": Phase.SUBMITTED, "admitted": Phase.ASSEMBLING, "running": Phase.RUNNING}
"""Name of a time in the event -> the phase that began then."""


def history_of(job: StoredGang | None, began: Mapping[Phase, datetime], *, ended: datetime | None) -> dict[str, Any]:
    """Return the fields of the event that tell the history of the gang after its Job is gone.

    :param job: The last state of the Job.
    :param began: When each phase began that the gang has reached.
    :param ended: When the gang ended; `None` if it runs on.
    """
    times = {name: began[phase] for name, phase in PHASES_OF_TIMES.items() if phase in began}
    times |= {} if ended is None else {"ended": ended}
    if job is None:
        return {"times": times}
    placed = {"queue": job.queue or "", "placement": job.placement, "requests": job.record.requests}
    return {"times": times, **placed}


def build_event(
    ref: GangRef,
    status: Status,
    phase: Phase,
    *,
    counts: Counts | None = None,
    outcomes: Sequence[Outcome] = (),
    completed_indexes: str = "",
    notes: Sequence[str] = (),
    **fields: Any,
) -> GangEvent:
    """Build an event. Texts are whole: `within_limits` cuts them.

    :param outcomes: The event has the first `RANKS_MAX` of them in the order of `failures_first`.
    """
    is_cut = len(completed_indexes) > COMPLETED_INDEXES_CHARACTERS_MAX
    return GangEvent(
        v=VERSION,
        status=status,
        name=ref.name,
        namespace=ref.namespace,
        uid=ref.uid,
        phase=phase,
        counts={} if counts is None else msgspec.to_builtins(counts),
        ranks=tuple(map(_rank_end, failures_first(outcomes, RANKS_MAX))),
        completed_indexes="" if is_cut else completed_indexes,
        completed_indexes_cut=is_cut,
        notes=tuple(notes),
        **fields,
    )


def _rank_end(outcome: Outcome) -> RankEnd:
    # The message of a succeeded pod is its result. The result may be large, and the task reads it from the ledger.
    message = "" if outcome.outcome is OutcomeKind.SUCCEEDED else outcome.error or outcome.message
    if outcome.message_cut and not outcome.error:
        # The kubelet keeps the end of a long message, which may begin in the middle of a secret.
        message = skip_partial_word(message)
    return replace(msgspec.convert(outcome, RankEnd, from_attributes=True), message=message)


DISRUPTION_CODES: Final = frozenset({"Preempted", "Evicted", "NodeLost"})
"""Codes of reasons that name a disruption as the root cause."""


class Disruption(Struct, frozen=True):
    """The disruption that ended an attempt."""

    number: int
    """Number of consecutive attempts that ended by a disruption, including this attempt."""
    allowed: int
    message: str
    """Summary of the reason: the rank, the kind of the disruption, and the node."""

    @property
    def is_allowed(self) -> bool:
        """The task submits the gang again without using a retry."""
        return self.number <= self.allowed

    @property
    def carried_over(self) -> int:
        """Number of disruptions that the next attempt stores. After a retry of the task the count starts again."""
        return self.number if self.is_allowed else 0

    def __str__(self) -> str:
        return f"{self.message} (disruption {self.number}, {self.allowed} allowed)"


def disruption_of(event: GangEvent, *, allowed: int) -> Disruption | None:
    """Return the disruption that ended the gang; `None` if the gang ended by another cause."""
    if event.status is not Status.FAILED or event.reason not in DISRUPTION_CODES:
        return None
    return Disruption(event.disruptions + 1, allowed, event.message)
