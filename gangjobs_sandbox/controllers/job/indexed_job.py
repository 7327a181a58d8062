"""Indexed Jobs: completion indexes as intervals, such as "0,2-5", and the number of failures of each index. Pure.

The number, for backoffLimitPerIndex (KEP-3850), is an annotation of the pods. A failed pod therefore keeps its
finalizer until its replacement exists, which carries the next number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job import backoff, failure_policy
from gangjobs_sandbox.controllers.job.pods import finished_at
from gangjobs_sandbox.controllers.meta import Obj, annotations_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


ANNOTATION_INDEX = "batch.kubernetes.io/job-completion-index"

_INTERVAL = re.compile(r"^(\d+)(?:-(\d+))?$", re.ASCII)


ANNOTATION_FAILURES = "batch.kubernetes.io/job-index-failure-count"
ANNOTATION_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Indexes:
    """A set of indexes, as ordered, disjoint, non-adjacent closed intervals."""

    intervals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str | None, completions: int) -> Indexes:
        """Parse the compact text. Indexes at or above `completions` and invalid parts are ignored."""
        found = []
        for part in (text or "").split(","):
            match = _INTERVAL.match(part)
            if match is None:
                continue
            first = int(match[1])
            last = min(int(match[2] or first), completions - 1)
            if first <= last:
                found.append((first, last))
        return cls(_normalised(found))

    @classmethod
    def of(cls, indexes: Iterable[int]) -> Indexes:
        return cls(_normalised((index, index) for index in indexes))

    def __or__(self, other: Indexes) -> Indexes:
        return Indexes(_normalised((*self.intervals, *other.intervals)))

    def __contains__(self, index: int) -> bool:
        return any(first <= index <= last for first, last in self.intervals)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.intervals:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.intervals)

    def __str__(self) -> str:
        return ",".join(_interval_text(first, last) for first, last in self.intervals)


def index_of(pod: Mapping[str, Any]) -> int | None:
    """Return the completion index in the pod's annotation, or None if it is missing or not a whole number."""
    text = annotations_of(pod).get(ANNOTATION_INDEX, "")
    return int(text) if text.isascii() and text.isdigit() else None


def valid_index(pod: Mapping[str, Any], completions: int) -> int | None:
    """Return the completion index if it is below the Job's completions."""
    index = index_of(pod)
    return index if index is not None and index < completions else None


def first_free(taken: Indexes, count: int, completions: int) -> list[int]:
    """Return the lowest `count` indexes below `completions` that are not taken."""
    free: list[int] = []
    candidate = 0
    for first, last in (*taken.intervals, (completions, completions)):
        stop = min(first, completions, candidate + count - len(free))
        free.extend(range(candidate, stop))
        candidate = max(candidate, last + 1)
    return free


def _normalised(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _interval_text(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}{',' if last == first + 1 else '-'}{last}"


def failed_indexes(job: Mapping[str, Any], failed: Iterable[Obj]) -> Indexes:
    """Return the indexes that will not be retried: known ones, and those whose last pod exceeded its limit.

    Args:
        failed: the failed pods that still have the tracking finalizer.
    """
    completions = job["spec"]["completions"]
    known = Indexes.parse(job["status"].get("failedIndexes"), completions)
    new = (
        index for pod in failed if _is_last_failure(job, pod) and (index := valid_index(pod, completions)) is not None
    )
    return known | Indexes.of(new)


def awaiting_replacement(
    job: Mapping[str, Any], failed: Iterable[Obj], active_pods: Iterable[Obj], *, settled: Indexes
) -> dict[int, Obj]:
    """Return, by index, the newest failed pod that has no replacement yet."""
    covered = settled | Indexes.of(index for pod in active_pods if (index := index_of(pod)) is not None)
    latest: dict[int, Obj] = {}
    for pod in failed:
        index = valid_index(pod, job["spec"]["completions"])
        if index is None or index in covered:
            continue
        if index not in latest or _recency(pod) >= _recency(latest[index]):
            latest[index] = pod
    return latest


def failure_annotations(job: Mapping[str, Any], replaced: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the failure counts for the annotations of the next pod of an index."""
    failures, ignored = (
        (0, 0) if replaced is None else (_count(replaced, ANNOTATION_FAILURES), _count(replaced, ANNOTATION_IGNORED))
    )
    if replaced is not None:
        if failure_policy.match(job["spec"].get("podFailurePolicy"), replaced).is_counted:
            failures += 1
        else:
            ignored += 1
    annotations = {ANNOTATION_FAILURES: str(failures)}
    return {**annotations, ANNOTATION_IGNORED: str(ignored)} if ignored else annotations


def remaining_s(replaced: Mapping[str, Any] | None, now: datetime) -> float:
    """Return the seconds until the index of this failed pod may be retried."""
    if replaced is None:
        return 0.0
    return backoff.remaining_s(_all_failures(replaced) + 1, finished_at(replaced), now)


def _is_last_failure(job: Mapping[str, Any], pod: Obj) -> bool:
    match = failure_policy.match(job["spec"].get("podFailurePolicy"), pod)
    if match.action == "FailIndex":
        return True
    limit: int = job["spec"]["backoffLimitPerIndex"]
    return match.is_counted and _count(pod, ANNOTATION_FAILURES) >= limit


def _recency(pod: Obj) -> tuple[int, datetime]:
    return _all_failures(pod), finished_at(pod) or _LONG_AGO


def _all_failures(pod: Mapping[str, Any]) -> int:
    return _count(pod, ANNOTATION_FAILURES) + _count(pod, ANNOTATION_IGNORED)


def _count(pod: Mapping[str, Any], annotation: str) -> int:
    text = annotations_of(pod).get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() else 0
