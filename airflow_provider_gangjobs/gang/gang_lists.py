"""Lists of gangs: one row for each gang, which gangs the words of a person mean, and what is a leak. Pure.

A row is computed from the Jobs of its gang alone, so a list of ten thousand gangs needs no pods. The fields of a row
are a contract: `docs/gang-row.schema.json` describes them, and fields are only added. What a gang waits for in detail
needs its pods; `tracking.explanation` has it for one gang.

A Job that is listed is a `ListedJob`: the view that the rules read, and two more fields of the `spec`. The pod template
stays undecoded until somebody asks for the requests.

| words of a person | the gangs |
|---|---|
| `NAMESPACE/JOB` | the Job of this name, in this namespace |
| one word | the Job of this name; else the submission of this id; else all gangs of this DAG |
| `DAG TASK` | all gangs of this task |
| `DAG TASK RUN` | all gangs of this task in this run |
| `DAG TASK RUN MAP_INDEX` | the gang of this mapped task instance |

The attempts of one task instance or submission are one gang, and the newest attempt is meant. An earlier attempt is
named by its Job.

A leak is what stays in a cluster although nobody may need it:

| kind | what stays |
|---|---|
| `incomplete` | the submission stopped half-way |
| `held pods` | pods of a gang that is over, or whose Job is gone, wait for somebody to record their outcomes |
| `undelivered` | a gang of a task has succeeded, and Airflow did not get its outcome |
| `kept for ever` | a Job has ended, and nothing deletes it |
| `kept` | a Job has ended, and Kubernetes deletes it later |

Everything but `kept` is a leak. What happens within the grace is no leak, because triggerers act after the grace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable  # noqa: TC003 - msgspec reads the annotations at run time
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import GangRef  # noqa: TC001
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pods import parse_number
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
from airflow_provider_gangjobs.kube.quantity import ResourceList, format_bytes, format_cpu, requests_of, total_of
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.views import JobSpec, JobView

if TYPE_CHECKING:
    from collections.abc import Sequence


WAITING: Final = frozenset({Phase.SUBMITTED, Phase.QUEUED, Phase.ASSEMBLING})
"""The phases of a gang that waits: not all of its ranks have started."""
RUNNING: Final = frozenset({Phase.RUNNING, Phase.FINISHING})
FAILED: Final = frozenset({Phase.FAILED, Phase.DELETED})
_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


class ListedJobSpec(JobSpec, frozen=True):
    """The fields of the `spec` of a Job that a list of gangs reads."""

    ttl_seconds_after_finished: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")


class ListedJob(JobView, frozen=True):
    """A Job in a list of gangs."""

    spec: ListedJobSpec = ListedJobSpec()


class GangRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One gang: the newest attempt of a task or submission, or an earlier one. Times are those of the API server."""

    namespace: str
    name: str
    """Name of the Job."""
    uid: str
    phase: Phase
    attempt: int
    """Number of the attempt, from 0."""
    ranks: int
    ready: int
    """Number of ranks that run and are ready."""
    succeeded: int = 0
    failed: int = 0
    submitted_at: datetime
    started_at: datetime | None = None
    """When the Job was started, or last resumed. From then on the pods wait for nodes."""
    ended_at: datetime | None = None
    delivered_at: datetime | None = None
    """When Airflow got the outcome."""
    kept_until: datetime | None = None
    """When Kubernetes deletes the Job of a gang that has ended. Absent if nobody does."""
    dag_id: str = ""
    """Empty for a gang that was submitted under an id."""
    task_id: str = ""
    run_id: str = ""
    map_index: int = -1
    installation: str = ""
    submission_id: str = ""
    queue: str = ""
    """Queue of Kueue."""
    reason: str = ""
    """Why the gang failed or was stopped: a reason of the Job, and its message."""

    @property
    def task(self) -> str:
        """The task with its map index, as Airflow writes it; empty for a gang that was submitted under an id."""
        return f"{self.task_id}[{self.map_index}]" if self.map_index >= 0 else self.task_id

    @property
    def is_waiting(self) -> bool:
        """Not all ranks have started."""
        return self.phase in WAITING

    @property
    def is_running(self) -> bool:
        """All ranks have started, and the Job has not ended."""
        return self.phase in RUNNING

    @property
    def has_failed(self) -> bool:
        """The gang failed, was stopped, or is being deleted."""
        return self.phase in FAILED

    def waited(self, now: datetime) -> timedelta:
        """Return for how long the gang has waited until its Job was started, or until now."""
        return max((self.started_at or self.ended_at or now) - self.submitted_at, timedelta())

    def ran(self, now: datetime) -> timedelta | None:
        """Return the time since the Job was started, or until it ended; `None` for a Job that was not started."""
        return None if self.started_at is None else max((self.ended_at or now) - self.started_at, timedelta())


def row_of(job: StoredGang) -> GangRow:
    """Return the row of a gang."""
    assert job.created_at is not None, "a stored Job has a creation time"
    key = job.task_key
    named = {} if key is None else key.to_mapping()
    phase = phase_of(job)
    return GangRow(
        namespace=job.ref.namespace,
        name=job.ref.name,
        uid=job.ref.uid,
        phase=phase,
        attempt=job.attempt_number,
        ranks=job.workers,
        ready=job.status.ready,
        succeeded=job.status.succeeded,
        failed=job.status.failed,
        submitted_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        delivered_at=job.delivered_at,
        kept_until=kept_until(job),
        installation=job.installation,
        submission_id=job.submission_id or "" if key is None else "",
        queue=job.queue or "",
        reason="" if phase in WAITING or phase is Phase.RUNNING else ": ".join(filter(None, job.failure_cause or ())),
        **named,  # type: ignore[arg-type]
    )


def kept_until(job: StoredGang) -> datetime | None:
    """Return when Kubernetes deletes the Job of a gang that has ended; `None` if nothing is known to delete it."""
    ttl_s = getattr(job.view.spec, "ttl_seconds_after_finished", None)
    if ttl_s is None:  # the Job of a gang with roles gets its time to live at the end
        ttl_s = parse_number(job.view.metadata.annotations.ttl)
    if ttl_s is None or job.ended_at is None:
        return None
    try:
        return job.ended_at + timedelta(seconds=ttl_s)
    except OverflowError:  # anybody who may change Jobs may write an annotation of any size
        return None


# -- resources -------------------------------------------------------------------------------------------------------


def requests_of_gang(job: StoredGang) -> ResourceList:
    """Return the requests of all ranks together. Requests that cannot be read are left out."""
    return total_of((_requests_of_rank(one), StoredGang(one).ranks) for one in job.jobs_with_pods or (job.view,))


def _requests_of_rank(job: JobView) -> ResourceList:
    if not isinstance(job.spec, ListedJobSpec):
        return {}
    template: dict[str, Any] = msgspec.json.decode(job.spec.template)
    try:
        return requests_of(template.get("spec") or {})
    except ValueError:
        return {}


class DagUse(Struct, frozen=True, kw_only=True):
    """What the live gangs of one DAG hold and wait for. Amounts are Kubernetes quantities of all ranks together."""

    dag_id: str
    """Empty for gangs that were submitted under an id."""
    running: int
    """Number of gangs whose ranks have all started."""
    waiting: int
    """Number of gangs that wait."""
    held: dict[str, str]
    """Requests of the gangs that run, by resource."""
    wanted: dict[str, str]
    """Requests of the gangs that wait, by resource. A gang that assembles may hold some of it already."""


def use_by_dag(jobs: Iterable[StoredGang], placed: Collection[GangRef] = ()) -> list[DagUse]:
    """Return what the live gangs hold and wait for, by DAG. The DAG that holds and waits for most comes first.

    :param placed: Gangs that are known to hold their nodes, although not all of their ranks run yet.
    """
    gangs: dict[str, tuple[list[StoredGang], list[StoredGang]]] = {}
    for job in jobs:
        phase = phase_of(job)
        if phase in WAITING or phase in RUNNING:
            key = job.task_key
            holds, waits = gangs.setdefault(key.dag_id if key else "", ([], []))
            (waits if phase in WAITING and job.ref not in placed else holds).append(job)
    uses = [
        (dag_id, len(holds), len(waits), _requests_of_gangs(holds), _requests_of_gangs(waits))
        for dag_id, (holds, waits) in gangs.items()
    ]
    uses.sort(key=lambda use: (-use[3].get("cpu", Decimal(0)) - use[4].get("cpu", Decimal(0)), use[0]))
    return [
        DagUse(dag_id=dag_id, running=running, waiting=waiting, held=_quantities(held), wanted=_quantities(wanted))
        for dag_id, running, waiting, held, wanted in uses
    ]


def _requests_of_gangs(gangs: Iterable[StoredGang]) -> ResourceList:
    return total_of((requests_of_gang(gang), 1) for gang in gangs)


def _quantities(amounts: ResourceList) -> dict[str, str]:
    return {name: format_amount(name, amount) for name, amount in sorted(amounts.items()) if amount}


def format_amount(resource: str, amount: Decimal) -> str:
    """Return an amount of a resource as a Kubernetes quantity."""
    return format_bytes(amount) if resource.startswith(_BYTES) else format_cpu(amount)


WORDS_MAX: Final = 4


class GangName(Struct, frozen=True):
    """How a person names a gang."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def namespace(self) -> str | None:
        """The namespace, if the name has one."""
        return self.words[0].partition("/")[0] if self.is_qualified else None

    @property
    def is_qualified(self) -> bool:
        """The name is the namespace and the name of a Job. Neither of them has a slash, but a submission id may."""
        return len(self.words) == 1 and self.words[0].count("/") == 1 and all(self.words[0].split("/"))


def find_named(jobs: Iterable[StoredGang], name: GangName) -> list[StoredGang]:
    """Return the gangs that the name may mean, the newest first."""
    jobs = list(jobs)
    if len(name.words) == 1:
        word = name.words[0]
        exact = [job for job in jobs if (str(job.ref) if name.is_qualified else job.ref.name) == word]
        if exact:
            return exact
        if submitted := [job for job in jobs if job.submission_id == word]:
            return newest_attempts(submitted)
    return newest_attempts(job for job in jobs if _is_of_task(job, name.words))


def newest_attempts(jobs: Iterable[StoredGang]) -> list[StoredGang]:
    """Return the newest attempt of each task instance and submission, the newest Job first."""
    newest: dict[tuple[str, str], StoredGang] = {}
    for job in jobs:
        key = job.ref.namespace, job.task_digest or job.ref.uid
        if key not in newest or newest[key].attempt_number < job.attempt_number:
            newest[key] = job
    return sorted(newest.values(), key=lambda job: job.created_at.timestamp() if job.created_at else 0.0, reverse=True)


def _is_of_task(job: StoredGang, words: Sequence[str]) -> bool:
    key = job.task_key
    if key is None:
        return False
    ids = (key.dag_id, key.task_id, key.run_id, str(key.map_index))
    return tuple(words) == ids[: len(words)]


class LeakKind(StrEnum):
    """What stays. The values are part of the output of `gangjobs leaks` and are never renamed."""

    INCOMPLETE = "incomplete"
    HELD_PODS = "held pods"
    UNDELIVERED = "undelivered"
    KEPT_FOR_EVER = "kept for ever"
    KEPT = "kept"


_REMEDIES = {
    LeakKind.INCOMPLETE: "Run `gangjobs tidy`, or run the task again.",
    LeakKind.HELD_PODS: "Run `gangjobs tidy`, which records the outcomes and releases the pods.",
    LeakKind.UNDELIVERED: "Look at the state of the task. `gangjobs delete` deletes the gang with its outcomes.",
    LeakKind.KEPT_FOR_EVER: "`gangjobs delete` deletes the gang. Set ttl_after_finished for the next ones.",
    LeakKind.KEPT: "",
}


class Leak(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stays of one gang."""

    kind: LeakKind
    namespace: str
    name: str
    """Name of the Job, which may be gone."""
    what: str
    """A sentence."""
    remedy: str = ""
    since: datetime | None = None
    until: datetime | None = None
    """When Kubernetes deletes the Job. Absent if it does not."""

    @property
    def is_leak(self) -> bool:
        """Nobody can be expected to remove it."""
        return self.kind is not LeakKind.KEPT


def find_leak(
    job: StoredGang,
    *,
    now: datetime,
    grace: timedelta,
    held_pods: int = 0,
    is_half_submitted: bool = False,
) -> Leak | None:
    """Return what stays of a gang whose Job exists; `None` if nothing does. The first row of the table that fits wins.

    :param held_pods: How many of its pods the provider's finalizer holds.
    :param is_half_submitted: The submission has stopped half-way.
    """
    if is_half_submitted:
        return _leak(LeakKind.INCOMPLETE, job, "Its submission stopped half-way.", job.created_at)
    since = job.ended_at or job.created_at or now
    if now - since < grace or not job.is_over:
        return None
    is_of_task = job.task_key is not None and not job.is_dropped
    if held_pods:
        held = f"It is over, and {pluralize(held_pods, 'pod')} {'is' if held_pods == 1 else 'are'} not recorded yet."
        return _leak(LeakKind.HELD_PODS, job, held, since)
    if is_of_task and job.complete_condition is not None and not job.is_delivered:  # a failure needs none
        return _leak(LeakKind.UNDELIVERED, job, "It has succeeded, and Airflow did not get its outcome.", since)
    if not job.is_ended:
        return None
    if kept_until(job) is None:
        return _leak(LeakKind.KEPT_FOR_EVER, job, "It has ended, and nothing deletes its Job.", since)
    return _leak(LeakKind.KEPT, job, "It has ended, and Kubernetes deletes its Job later.", since)


def leak_of_pods(namespace: str, name: str, pods: int, since: datetime) -> Leak:
    """Return the leak of held pods whose Job is gone."""
    what = f"Its Job is gone, and {pluralize(pods, 'pod')} {'is' if pods == 1 else 'are'} held."
    kind = LeakKind.HELD_PODS
    return Leak(kind=kind, namespace=namespace, name=name, what=what, remedy=_REMEDIES[kind], since=since)


def _leak(kind: LeakKind, job: StoredGang, what: str, since: datetime | None) -> Leak:
    return Leak(
        kind=kind,
        namespace=job.ref.namespace,
        name=job.ref.name,
        what=what,
        remedy=_REMEDIES[kind],
        since=since,
        until=kept_until(job),
    )
