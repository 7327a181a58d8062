"""Lists of gangs: which gangs the words of a person mean, what the gangs of a DAG use, and what is a leak. Pure.

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
from datetime import datetime, timedelta  # noqa: TC003
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.gang.identity import GangRef  # noqa: TC001
from airflow_provider_gangjobs.gang.state.phase import phase_of
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang  # noqa: TC001
from airflow_provider_gangjobs.gang.view import RUNNING, WAITING, kept_until
from airflow_provider_gangjobs.kube.quantity import ResourceList, format_amounts, is_of_bytes, parse, total_of
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.kube.views import JobSpec, JobView

if TYPE_CHECKING:
    from collections.abc import Sequence


class ListedJobSpec(JobSpec, frozen=True):
    """The fields of the `spec` of a Job that a reader of gangs needs."""

    template: msgspec.Raw = msgspec.Raw(b"{}")


class ListedJob(JobView, frozen=True):
    """A Job as those read it who show gangs. The pod template stays undecoded until secrets are looked for in it."""

    spec: ListedJobSpec = ListedJobSpec()


# -- resources -------------------------------------------------------------------------------------------------------


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
    never: dict[str, str] = {}
    """Requests of the gangs that can never run until somebody changes them, the nodes, or the queue, by resource."""


def use_by_dag(
    jobs: Iterable[StoredGang], placed: Collection[GangRef] = (), never: Collection[GangRef] = ()
) -> list[DagUse]:
    """Return what the live gangs hold and wait for, by DAG. The DAG that holds and waits for most comes first.

    :param placed: Gangs that are known to hold their nodes, although not all of their ranks run yet.
    :param never: Gangs that are known to wait for what never comes.
    """
    gangs: dict[str, tuple[list[StoredGang], ...]] = {}
    for job in jobs:
        phase = phase_of(job)
        if phase in WAITING or phase in RUNNING:
            key = job.record.task
            holds, waits, stuck = gangs.setdefault(key.dag_id if key else "", ([], [], []))
            is_waiting = phase in WAITING and job.ref not in placed
            (holds if not is_waiting else stuck if job.ref in never else waits).append(job)
    uses = [
        (dag_id, found, [total_of((_requests_of(gang), 1) for gang in each) for each in found])
        for dag_id, found in gangs.items()
    ]
    uses.sort(key=lambda use: (-sum(amounts.get("cpu", Decimal(0)) for amounts in use[2]), use[0]))
    return [
        DagUse(
            dag_id=dag_id,
            running=len(holds),
            waiting=len(waits) + len(stuck),
            **dict(zip(("held", "wanted", "never"), map(_quantities, amounts), strict=True)),
        )
        for dag_id, (holds, waits, stuck), amounts in uses
    ]


def _requests_of(gang: StoredGang) -> ResourceList:
    try:
        return {name: parse(amount) for name, amount in gang.record.requests.items()}
    except ValueError:  # anybody who may change Jobs may write an annotation
        return {}


def _quantities(amounts: ResourceList) -> dict[str, str]:
    return format_amounts({name: amount for name, amount in sorted(amounts.items()) if amount})


def unit_of(resource: str) -> str:
    """Return the unit of `number_of`, for the title of a column."""
    return " (GiB)" if is_of_bytes(resource) else ""


def number_of(resource: str, quantity: str | None) -> str:
    """Return a Kubernetes quantity as a number, in GiB if it is one of bytes; empty for none."""
    if not quantity:
        return ""
    return f"{parse(quantity) / 2**30 if is_of_bytes(resource) else parse(quantity):,.3f}".rstrip("0").rstrip(".")


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
        if submitted := [job for job in jobs if job.record.submission_id == word]:
            return newest_attempts(submitted)
    return newest_attempts(job for job in jobs if _is_of_task(job, name.words))


def newest_attempts(jobs: Iterable[StoredGang]) -> list[StoredGang]:
    """Return the newest attempt of each task instance and submission, the newest Job first."""
    newest: dict[tuple[str, str], StoredGang] = {}
    for job in jobs:
        key = job.ref.namespace, job.view.metadata.labels.task or job.ref.uid
        if key not in newest or newest[key].attempt < job.attempt:
            newest[key] = job
    return sorted(newest.values(), key=lambda job: job.created_at.timestamp() if job.created_at else 0.0, reverse=True)


def _is_of_task(job: StoredGang, words: Sequence[str]) -> bool:
    key = job.record.task
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


_COMMANDS: Final = {
    LeakKind.INCOMPLETE: "gangjobs tidy -n {namespace} --older-than 15m",
    LeakKind.HELD_PODS: "gangjobs tidy -n {namespace} --older-than 15m",
    LeakKind.UNDELIVERED: "gangjobs show {namespace}/{name}",
    LeakKind.KEPT_FOR_EVER: "gangjobs delete {namespace}/{name}",
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
    command: str = ""
    """What to run; empty if there is nothing to do."""
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
    leak = partial(_leak, job.ref.namespace, job.ref.name, until=kept_until(job))
    if is_half_submitted:
        return leak(LeakKind.INCOMPLETE, "Its submission stopped half-way.", job.created_at)
    since = job.ended_at or job.created_at or now
    if now - since < grace or not job.is_over:
        return None
    if held_pods:
        held = f"It is over, and {pluralize(held_pods, 'pod')} {'is' if held_pods == 1 else 'are'} not recorded yet."
        return leak(LeakKind.HELD_PODS, held, since)
    has_succeeded = job.complete_condition is not None  # a failure needs no delivery
    if job.record.task is not None and has_succeeded and not job.is_delivered:
        return leak(LeakKind.UNDELIVERED, "It has succeeded, and Airflow did not get its outcome.", since)
    if not job.is_ended:
        return None
    if kept_until(job) is None:
        return leak(LeakKind.KEPT_FOR_EVER, "It has ended, and nothing deletes its Job (ttl_after_finished).", since)
    return leak(LeakKind.KEPT, "It has ended, and Kubernetes deletes its Job later.", since)


def leak_of_pods(namespace: str, name: str, pods: int, since: datetime) -> Leak:
    """Return the leak of held pods whose Job is gone."""
    what = f"Its Job is gone, and {pluralize(pods, 'pod')} {'is' if pods == 1 else 'are'} held."
    return _leak(namespace, name, LeakKind.HELD_PODS, what, since)


def _leak(
    namespace: str, name: str, kind: LeakKind, what: str, since: datetime | None, *, until: datetime | None = None
) -> Leak:
    command = _COMMANDS[kind].format(namespace=namespace, name=name)
    return Leak(kind=kind, namespace=namespace, name=name, what=what, command=command, since=since, until=until)
