"""Leaks: what stays in a cluster although nobody may need it, for whoever looks after the cluster. Pure.

| kind | what stays |
|---|---|
| `not followed` | the gang of a task is live, and no process says that it follows the gang |
| `incomplete` | the submission stopped half-way |
| `held pods` | pods of a gang that is over, or whose Job is gone, wait for somebody to record their outcomes |
| `undelivered` | a gang of a task has ended, and Airflow did not get its outcome |
| `kept for ever` | a Job has ended, and nothing deletes it |
| `kept` | a Job has ended, and Kubernetes deletes it later |

Everything but `kept` is a leak. A gang of a submission id is not judged by its followers: they write no Lease. What
happens within the grace is no leak, because triggerers act after the grace.
"""

from __future__ import annotations

from datetime import datetime, timedelta  # noqa: TC003 - msgspec reads the annotations at run time
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_provider_gangjobs.gang.gang_rows import kept_until
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


class LeakKind(StrEnum):
    """What stays. The values are part of the output of `gangjobs leaks` and are never renamed."""

    NOT_FOLLOWED = "not followed"
    INCOMPLETE = "incomplete"
    HELD_PODS = "held pods"
    UNDELIVERED = "undelivered"
    KEPT_FOR_EVER = "kept for ever"
    KEPT = "kept"


_REMEDIES = {
    LeakKind.NOT_FOLLOWED: "Check that a triggerer runs. `gangjobs cancel` ends the gang.",
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
    is_followed: bool | None = None,
    is_half_submitted: bool = False,
) -> Leak | None:
    """Return what stays of a gang whose Job exists; `None` if nothing does. The first row of the table that fits wins.

    :param held_pods: How many of its pods the provider's finalizer holds.
    :param is_followed: Whether a process says that it follows the gang; `None` if that is unknown.
    :param is_half_submitted: The submission has stopped half-way.
    """
    if is_half_submitted:
        return _leak(LeakKind.INCOMPLETE, job, "Its submission stopped half-way.", job.created_at)
    since = job.ended_at or job.created_at or now
    if now - since < grace:
        return None
    is_of_task = job.task_key is not None and not job.is_dropped
    if not job.is_over:
        is_leak = is_of_task and is_followed is False and not job.is_delivered
        return _leak(LeakKind.NOT_FOLLOWED, job, "It is live, and no triggerer follows it.", since) if is_leak else None
    if held_pods:
        held = f"It is over, and {pluralize(held_pods, 'pod')} {'is' if held_pods == 1 else 'are'} not recorded yet."
        return _leak(LeakKind.HELD_PODS, job, held, since)
    if is_of_task and job.is_ended and not job.is_delivered:
        return _leak(LeakKind.UNDELIVERED, job, "It has ended, and Airflow did not get its outcome.", since)
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


__all__ = ["Leak", "LeakKind", "find_leak", "leak_of_pods"]
