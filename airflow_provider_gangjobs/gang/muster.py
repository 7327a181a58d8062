"""Muster: the pods of one gang, counted as they change, so that a look at 100,000 of them costs what has changed.

Everything here is a function of the pods as they were shown last; how they came to be so leaves no trace.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_gangjobs.gang.indexes import parse_indexes
from airflow_provider_gangjobs.gang.pods import is_of
from airflow_provider_gangjobs.gang.progress import Counts, Fact, all_started_at, fact, ranks_of
from airflow_provider_gangjobs.gang.waiting import has_container_trouble, refusal

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.objects.views import JobView, PodView

K = TypeVar("K", bound="Hashable")


class Muster:
    """Pods of one Job; those of another are passed over."""

    def __init__(self, ref: GangRef, pods: Iterable[PodView] = ()) -> None:
        self._ref = ref
        self._facts: dict[str, Fact] = {}
        # How many pods of each rank are so. A rank is there as long as one of its pods is.
        self._created: Counter[Hashable] = Counter()
        self._placed: Counter[Hashable] = Counter()
        self._started: Counter[Hashable] = Counter()
        self._running: Counter[Hashable] = Counter()
        self._held = 0
        self._terminating = 0
        self._all_started: tuple[int, datetime | None] | None = None
        self._done: tuple[str, frozenset[int]] = ("", frozenset())
        self.troubled: dict[str, PodView] = {}
        """Pods of which a container cannot be made, by uid."""
        self.refusals: Counter[str] = Counter()
        """What the scheduler said to the pods that it could not place: how many pods heard it."""
        self._refusals: dict[str, str] = {}
        self.see(pods)

    def __len__(self) -> int:
        return len(self._facts)

    def see(self, pods: Iterable[PodView]) -> None:
        """These pods are so now."""
        for pod in pods:
            if not is_of(self._ref, pod):
                self.forget([pod])
                continue
            uid = pod.metadata.uid
            before, now = self._facts.get(uid), fact(pod)
            self._note_trouble(uid, pod)
            if now == before:
                continue
            if before is not None:
                self._add(before, -1)
            self._add(now, 1)
            self._facts[uid] = now
            if before is None or (before.rank, before.started) != (now.rank, now.started):
                self._all_started = None

    def forget(self, pods: Iterable[PodView]) -> None:
        """These pods are no more."""
        for pod in pods:
            uid = pod.metadata.uid
            before = self._facts.pop(uid, None)
            if before is not None:
                self._add(before, -1)
                self._all_started = None
            self._note_trouble(uid, None)

    def counts(self, job: JobView | None) -> Counts:
        """Ranks and pods by how far they are, from the pods and the Job."""
        done = self._parsed(job.status.completed_indexes if job else "")
        ended = job.status.succeeded + job.status.failed if job else 0
        started_ever = max(_union(self._started, done), ended + len(self._running))
        ranks = ranks_of(job) if job else len(self._created)
        at_least = min(started_ever, ranks)
        return Counts(
            ranks=ranks,
            created=max(_union(self._created, done), at_least),
            placed=max(_union(self._placed, done), at_least),
            started=started_ever,
            running=len(self._running),
            succeeded=job.status.succeeded if job else 0,
            failed=job.status.failed if job else 0,
            held=self._held,
            terminating=self._terminating,
        )

    def all_started_at(self, ranks: int) -> datetime | None:
        """When the last of `ranks` ranks started first; of fewer, if the pods of the others are gone."""
        if self._all_started is None or self._all_started[0] != ranks:
            self._all_started = ranks, all_started_at(self._facts.values(), ranks)
        return self._all_started[1]

    def _add(self, one: Fact, number: int) -> None:
        for ranks, is_so in (
            (self._created, True),
            (self._placed, one.is_placed),
            (self._started, one.has_started),
            (self._running, one.has_started and not one.has_ended),
        ):
            if is_so:
                _count(ranks, one.rank, number)
        self._held += number * one.is_held
        self._terminating += number * one.is_deleted

    def _note_trouble(self, uid: str, pod: PodView | None) -> None:
        if pod is not None and has_container_trouble(pod):
            self.troubled[uid] = pod
        else:
            self.troubled.pop(uid, None)
        before, now = self._refusals.pop(uid, ""), refusal(pod) if pod is not None else ""
        if before:
            _count(self.refusals, before, -1)
        if now:
            _count(self.refusals, now, 1)
            self._refusals[uid] = now

    def _parsed(self, completed_indexes: str) -> frozenset[int]:
        if completed_indexes != self._done[0]:
            self._done = completed_indexes, parse_indexes(completed_indexes)
        return self._done[1]


def _count(counter: Counter[K], key: K, number: int) -> None:
    counter[key] += number
    if not counter[key]:
        del counter[key]


def _union(ranks: Counter[Hashable], done: frozenset[int]) -> int:
    return len(done.union(ranks)) if done else len(ranks)
